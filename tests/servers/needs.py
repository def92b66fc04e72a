"""`needs("nats", "nats-server")`: what a test cannot do without. Missing on a user's machine it is skipped aloud; in CI it is a failure."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig

import pytest


def needs(*names: str) -> None:
    """Each name is a package as it is imported, or a program beside Python or on the path."""
    gone = [name for name in names if not _found(name)]
    if not gone:
        return
    text = f"not installed here: {', '.join(gone)}"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)


def _found(name: str) -> bool:
    where = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    return (name.isidentifier() and importlib.util.find_spec(name) is not None) or shutil.which(name, path=where) is not None
