"""A driver is imported when it is named: `load("module:name")`, and what to install when it is not there.

The rule a newcomer would break: nothing of a driver is imported before its URI was given, or `--help` would cost as much as all of them.
"""

from __future__ import annotations

import importlib
from typing import Any

from mandamus.errors import Misuse


def load(target: str) -> Any:
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for step in name.split("."):
        found = getattr(found, step)
    return found


_EXTRAS = {"s3": "s3", "pkcs11": "pkcs11", "awskms": "kms"}


def not_installed(uri: str, module: str) -> Misuse:
    scheme = uri.partition(":")[0]
    extra = _EXTRAS.get(scheme, "nats" if "nats" in scheme else "postgres")
    return Misuse(
        "the driver of this store is not installed", code="MDM-0112", where=uri.partition(":")[0] + ":", found=f"no module {module}",
        fix=f"pip install 'mandamus[{extra}]'",
    )  # fmt: skip
