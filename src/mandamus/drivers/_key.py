"""Where a model driver's key comes from, and the addresses that name it. A `Key` holds a reference, never the secret.

The rule a newcomer would break: the key itself is read at each call, goes into one header, and is stored, shown or quoted nowhere.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl

from mandamus.core.messages import ModelFault
from mandamus.errors import Misuse

KeySource = str | Callable[[], str] | None

_reference = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_header_value = re.compile(r"[\x21-\x7e]+")


class Key:
    """`env:NAME`, a function, or none. `read()` gives the secret for one request."""

    __slots__ = ("_source",)

    def __init__(self, source: KeySource) -> None:
        if isinstance(source, str) and not _reference.fullmatch(source):
            why = "a key written into code or an address ends in logs and records"
            raise Misuse("a model's key is named, not written", code="MDM-0173", expected="env:NAME or a function", why=why)
        self._source = source

    def read(self) -> str | None:
        """The secret. Raises ModelFault("auth") when it cannot be had."""
        if self._source is None:
            return None
        if isinstance(self._source, str):
            name = self._source.removeprefix("env:")
            secret, where = os.environ.get(name, ""), f"the environment variable {name}"
        else:
            secret, where = _called(self._source), "the key function"
        secret = secret.strip()
        if not _header_value.fullmatch(secret):
            raise ModelFault("auth", f"{where} holds no usable key; nothing was sent")
        return secret

    def __bool__(self) -> bool:
        return self._source is not None

    def __repr__(self) -> str:
        return self._source if isinstance(self._source, str) else "none" if self._source is None else "function"


def _called(source: Callable[[], str]) -> str:
    secret: object = ""
    failed = ""
    try:
        secret = source()
    except Exception as error:  # its text may hold the secret, so only its type is told
        failed = type(error).__name__
    if failed:
        raise ModelFault("auth", f"the key function raised {failed}; nothing was sent")
    return secret if isinstance(secret, str) else ""


@dataclass(frozen=True)
class Address:
    """What a model's URI says. `base_url` "" = the provider's own."""

    base_url: str
    model: str
    options: dict[str, str]


def address(uri: str, scheme: str, options: tuple[str, ...]) -> Address:
    """`scheme:MODEL?option=value` or `scheme+http(s)://host/path?option=value#MODEL`. Raises Misuse."""
    shape = f"{scheme}:MODEL or {scheme}+https://host/v1#MODEL"
    rest = ""
    if uri.startswith((f"{scheme}+http://", f"{scheme}+https://")):
        base, _, model = uri.removeprefix(f"{scheme}+").partition("#")
        base, _, rest = base.partition("?")
    elif uri.startswith(f"{scheme}:") and not uri.startswith(f"{scheme}://"):
        base = ""
        model, _, rest = uri.removeprefix(f"{scheme}:").partition("?")
    else:
        raise Misuse("this is no address of a model", code="MDM-0174", expected=shape)
    if not model or any(c.isspace() or not c.isprintable() for c in model):
        place = "after #" if base else "last"
        raise Misuse("the address names no model", code="MDM-0174", expected=shape, fix=f"put the model's name {place}")
    return Address(base, model, _options(rest, options))


def _options(query: str, known: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {close[0]}?" if close else ""
            raise Misuse("unknown option in a model's address", code="MDM-0175", expected=", ".join(known), found=name[:40], fix=fix)
        if name in found:
            raise Misuse("an option of a model's address is given twice", code="MDM-0175", found=name)
        found[name] = value
    return found


def flag(options: dict[str, str], name: str) -> bool:
    """`name=1` or absent. Raises Misuse for any other value."""
    value = options.get(name, "0")
    if value not in ("0", "1"):
        raise Misuse("an option of a model's address is 0 or 1", code="MDM-0175", where=name, found=value[:40])
    return value == "1"
