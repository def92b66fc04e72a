"""Where golden files of the running test lie, and whether they may be rewritten. Set by the pytest plugin, read by `golden`.

Its own module, so that the plugin costs a test run that never uses it nothing but this.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Place:
    folder: Path | None = None
    update: bool = False


HERE = Place()
