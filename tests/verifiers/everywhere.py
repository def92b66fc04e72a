"""A pytest plugin, `-p tests.verifiers.everywhere`: wherever a test asks the library's `verify`, the single file is asked too.

What tests of attacks make up anew is so held against both, without a line in them. A disagreement fails the test that made the bundle.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from mandamus.proof import verify
from tests.verifiers.single import agreed

ASKED = [0]


def both(*args: Any, **more: Any) -> Any:
    ASKED[0] += 1
    return agreed(*args, **more)


@pytest.fixture(autouse=True)
def _both(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every module of tests that has taken the name over."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tests.") and not name.startswith("tests.verifiers.") and getattr(module, "verify", None) is verify:
            monkeypatch.setattr(module, "verify", both)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"{ASKED[0]} bundles were read by both verifiers")
