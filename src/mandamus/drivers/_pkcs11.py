"""What drivers of a PKCS#11 token share: its address, one login for a process, and the diagnoses.

    at = Address("pkcs11:token=ops;object=bundle?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=env:HSM_PIN")
    with token_of(at).lock:
        token_of(at).session(at)

The rule a newcomer would break: PKCS#11 logs in a process, not a session, and out again with the first session that closes. So one session
stays open; what writes is opened beside it, and everybody takes turns.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any
from urllib.parse import parse_qsl, unquote

import pkcs11

from mandamus.errors import EngineFault, Misuse

FORM = "pkcs11:token=LABEL;object=LABEL?module-path=FILE&pin-source=env:NAME"


class Address:
    """What a URI says. Raises Misuse. `one`: it names an object; else a whole token."""

    def __init__(self, uri: str, *, one: bool = True) -> None:
        scheme, _, rest = uri.partition(":")
        path, _, query = rest.partition("?")
        said = dict(part.partition("=")[::2] for part in path.split(";") if part)
        asked = dict(parse_qsl(query, keep_blank_values=True))
        unknown = (said.keys() - {"token", "object"}) | (asked.keys() - {"module-path", "pin-source", "name"})
        form = FORM if one else FORM.replace(";object=LABEL", "")
        if scheme != "pkcs11" or unknown or not said.get("token") or one != bool(said.get("object")):
            secret = "pin-value" in unknown
            raise Misuse(
                "an address with a PIN in it" if secret else "this is no address of a key in a token", code="MDM-0980", expected=form,
                found=", ".join(sorted(unknown))[:80], why="a PIN in an address ends in process lists and logs" if secret else "",
            )  # fmt: skip
        self.token, self.object = unquote(said["token"]), unquote(said.get("object", ""))
        self.module = asked.get("module-path") or os.environ.get("PKCS11_MODULE_PATH", "")
        self.name, self._pin = asked.get("name", ""), asked.get("pin-source", "")
        if not self.module:
            raise Misuse("which PKCS#11 library?", code="MDM-0980", expected=form, fix="&module-path=/usr/lib/softhsm/libsofthsm2.so")

    def pin(self) -> str:
        """Read when it is needed, and kept nowhere."""
        source, _, name = self._pin.partition(":")
        if source == "env" and os.environ.get(name):
            return os.environ[name]
        if source == "file" and name:
            try:
                with open(name, encoding="utf-8") as file:
                    return file.readline().rstrip("\n")
            except OSError as error:
                raise Misuse(f"the PIN cannot be read: {error.strerror}", code="MDM-0980", where=name) from None
        raise Misuse(
            "where is the PIN?", code="MDM-0980", expected="pin-source=env:NAME or file:PATH, and it is there", found=self._pin[:60]
        )


class Token:
    """One login for a process: PKCS#11 logs in a process, not a session, and out again with the first session that closes."""

    def __init__(self, at: Address) -> None:
        self.lock = threading.RLock()
        self.at = at
        self._session: Any = None

    def session(self, at: Address) -> Any:
        """Raises Misuse, EngineFault. The PIN counts at the first login; later ones find the token open."""
        if self._session is None:
            self._session = session(at, {"user_pin": at.pin()})
        return self._session

    def lost(self) -> None:
        """It was taken away, or its service began anew."""
        lost, self._session = self._session, None
        if lost is not None:
            with contextlib.suppress(pkcs11.exceptions.PKCS11Error):
                lost.close()


_tokens: dict[tuple[str, str], Token] = {}


def token_of(at: Address) -> Token:
    return _tokens.setdefault((at.module, at.token), Token(at))


def session(at: Address, how: dict[str, Any]) -> Any:
    try:
        return pkcs11.lib(at.module).get_token(token_label=at.token).open(**how)
    except pkcs11.exceptions.NoSuchToken:
        raise Misuse("no such token", code="MDM-0980", found=at.token, where=at.module) from None
    except pkcs11.exceptions.PinIncorrect:
        raise Misuse(
            "the PIN is wrong", code="MDM-0980", where=f"token {at.token}", why="tokens lock themselves after some tries"
        ) from None
    except (pkcs11.exceptions.PKCS11Error, RuntimeError, OSError) as error:
        raise fault("the token cannot be used", at, error) from None


def fault(what: str, at: Address, error: Exception) -> EngineFault:
    said = f"{type(error).__name__} {error}".strip()[:120]
    return EngineFault(
        what,
        code="MDM-0981",
        where=f"token {at.token}, object {at.object}",
        found=said,
        fix="look at the token: pkcs11-tool --list-objects",
    )
