"""What users test their agents with: `Runner`, `assert_trace`, `VirtualTime`; `testing.crash` and `testing.conformance` beside them.

Names load at first use, so that importing `mandamus.testing` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mandamus.testing.golden import Event, assert_trace
    from mandamus.testing.runner import Runner
    from mandamus.testing.virtual import VirtualTime

_LATER = {
    "Event": "mandamus.testing.golden",
    "Runner": "mandamus.testing.runner",
    "VirtualTime": "mandamus.testing.virtual",
    "assert_trace": "mandamus.testing.golden",
}
__all__ = ["Event", "Runner", "VirtualTime", "assert_trace"]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'mandamus.testing' has no attribute {name!r}")
