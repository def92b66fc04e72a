"""Port `Wraps`, by AES keys in a PKCS#11 token (an HSM that hosts share, SoftHSM): made in it, and they cannot leave it.

    MANDAMUS_KEK=pkcs11:token=ops?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=env:HSM_PIN       (RFC 7512)
Wraps with AES-256-GCM in the token. The rule a newcomer would break: a token's own backup, or a second one that it is mirrored to, holds
what was destroyed in the first. Whoever runs it destroys there too, or keeps no backup of these keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pkcs11
from pkcs11 import Attribute, GCMParams, KeyType, Mechanism, MechanismFlag, ObjectClass

from mandamus.drivers._pkcs11 import Address, fault, session, token_of
from mandamus.errors import EngineFault, Erased, Misuse, ProofError

NONCE, BITS = 12, 256
_USES = MechanismFlag.ENCRYPT | MechanismFlag.DECRYPT
_UNCLEAR = (pkcs11.exceptions.GeneralError, pkcs11.exceptions.FunctionFailed)  # some tokens say no more of a tag that is wrong
_CHANGED = (pkcs11.exceptions.EncryptedDataInvalid, pkcs11.exceptions.EncryptedDataLenRange)
T = TypeVar("T")


class Pkcs11Wraps:
    """Implements `ports.Wraps`. An id is a label. Threads take turns, as the signers of this token do."""

    def __init__(self, at: Address) -> None:
        self._at, self._token = at, token_of(at)

    @classmethod
    def open(cls, uri: str) -> Pkcs11Wraps:
        """Raises Misuse. The token is asked at the first use."""
        return cls(Address(uri, one=False))

    @property
    def place(self) -> str:
        return f"pkcs11:token={self._at.token}"

    def new(self, name: str) -> str:
        def make(writing: Any) -> str:
            if list(_found(writing, name)):
                raise Misuse("there is a wrapping key of that label already", code="MDM-0978", where=self.place, found=name)
            template = {Attribute.EXTRACTABLE: False, Attribute.SENSITIVE: True, Attribute.PRIVATE: True}
            writing.generate_key(KeyType.AES, BITS, label=name, store=True, capabilities=_USES, template=template)
            return name

        return self._write("the token made no wrapping key", make)

    def wrap(self, id: str, key: bytes, about: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + self._use(id, lambda box: bytes(box.encrypt(key, mechanism=Mechanism.AES_GCM, mechanism_param=_gcm(nonce, about))))

    def unwrap(self, id: str, wrapped: bytes, about: bytes) -> bytes:
        nonce, closed = wrapped[:NONCE], wrapped[NONCE:]
        return self._use(id, lambda box: _decrypted(box, closed, _gcm(nonce, about)))

    def destroy(self, id: str) -> int:
        def gone(writing: Any) -> int:
            for key in _found(writing, id):
                key.destroy()
            return 0

        return self._write("the token did not destroy a wrapping key", gone)

    def list(self, prefix: str = "") -> Mapping[str, str]:
        with self._token.lock:
            labels = self._again(lambda: [str(key[Attribute.LABEL]) for key in _found(self._token.session(self._at), "")])
        return {label: label for label in sorted(labels) if label.startswith(prefix)}

    def close(self) -> None:
        """The login is the process's; signers may use it."""

    # -- the token ---------------------------------------------------------------------------------------------------------------
    def _use(self, id: str, work: Callable[[Any], T]) -> T:
        with self._token.lock:
            try:
                return self._again(lambda: work(self._key(id)))
            except _CHANGED:
                raise ProofError(
                    "what a wrapping key wraps was changed", code="MDM-0968", where=id, why="it does not open",
                    fix="restore the newest backup of the key store",
                ) from None  # fmt: skip

    def _key(self, id: str) -> Any:
        found = list(_found(self._token.session(self._at), id))
        if not found:
            raise Erased("there is no such wrapping key", code="MDM-0979", where=self.place, found=id)
        if len(found) > 1 or found[0][Attribute.EXTRACTABLE] or not found[0][Attribute.SENSITIVE]:
            raise EngineFault(
                "a wrapping key that is not what was made", code="MDM-0978", where=f"{self.place}, {id}",
                found="several of that label" if len(found) > 1 else "it can be taken out of the token",
                why="what others hold too is not destroyed here",
            )  # fmt: skip
        return found[0]

    def _again(self, work: Callable[[], T]) -> T:
        """Once more with a new session, when the token was taken away or its service began anew."""
        try:
            return work()
        except _CHANGED:
            raise
        except pkcs11.exceptions.PKCS11Error:
            self._token.lost()
            try:
                return work()
            except pkcs11.exceptions.PKCS11Error as error:
                raise fault("the token does not answer", self._at, error) from None

    def _write(self, what: str, work: Callable[[Any], T]) -> T:
        with self._token.lock:
            self._token.session(self._at)  # logged in; the one that writes is opened beside it
            writing = session(self._at, {"rw": True})
            try:
                return work(writing)
            except pkcs11.exceptions.PKCS11Error as error:
                raise fault(what, self._at, error) from None
            finally:
                writing.close()


def _found(opened: Any, label: str) -> Any:
    wanted = {Attribute.CLASS: ObjectClass.SECRET_KEY, Attribute.KEY_TYPE: KeyType.AES}
    return opened.get_objects(wanted | ({Attribute.LABEL: label} if label else {}))


def _decrypted(box: Any, closed: bytes, how: Any) -> bytes:
    try:
        return bytes(box.decrypt(closed, mechanism=Mechanism.AES_GCM, mechanism_param=how))
    except _UNCLEAR:
        probe: dict[str, Any] = {"mechanism": Mechanism.AES_GCM, "mechanism_param": _gcm(os.urandom(NONCE), b"probe")}
        if bytes(box.decrypt(bytes(box.encrypt(b"?", **probe)), **probe)) == b"?":
            raise pkcs11.exceptions.EncryptedDataInvalid from None  # the key works, so it is what was given that does not open
        raise


def _gcm(nonce: bytes, about: bytes) -> Any:
    return GCMParams(nonce=nonce, aad=about, tag_bits=128)
