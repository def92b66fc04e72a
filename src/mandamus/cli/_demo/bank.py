"""The bank's own process: the bank of `mandamus.testing`, behind the demo's socket guard."""

from __future__ import annotations

import sys

from mandamus.cli._demo import guard

if __name__ == "__main__":
    guard.install()

    from mandamus.testing.bank import main

    sys.exit(main())
