"""Port `Signer`, by a key in a PKCS#11 token (an HSM, a smart card, SoftHSM): the private key is made in it and cannot leave it.

    pkcs11:token=ops;object=bundle?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=env:HSM_PIN      (RFC 7512)
`&name=` is the key's name in signatures; by default the object's label. Ed25519 and P-256. The rule a newcomer would break: a PIN is
never written into an address, which ends in process lists and logs; `pin-source` says where it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pkcs11
from pkcs11 import Attribute, KeyType, Mechanism, ObjectClass
from pkcs11.util.ec import encode_named_curve_parameters

from mandamus.drivers._pkcs11 import Address, fault, session, token_of
from mandamus.drivers._signer import Keyed
from mandamus.errors import EngineFault, Misuse
from mandamus.proof.keys import ED25519, P256, VKey, verify, vkey

# DER PrintableString "edwards25519" (PKCS#11 3.0, 6.3.3); tokens that want the object identifier instead take the second.
_EDWARDS = (bytes.fromhex("130c656477617264733235353139"), bytes.fromhex("06032b6570"))
_OCTETS = bytes((0x04, 0x20))  # an EC_POINT is an OCTET STRING


class Pkcs11Signer(Keyed):
    """One key. Its session is made again when the token was taken away; threads take turns."""

    def __init__(self, at: Address, name: str | Callable[[bytes], str]) -> None:
        self._at, self._token = at, token_of(at)
        with self._token.lock:
            public, kind = self._find()
        self.key: VKey = vkey(name(public) if callable(name) else name, public, kind)

    def sign(self, message: bytes) -> bytes:
        """Raises EngineFault when the token does not sign, or signs what does not verify."""
        with self._token.lock:
            try:
                raw = self._raw(message)
            except pkcs11.exceptions.PKCS11Error:
                self._token.lost()
                try:
                    self._find()
                    raw = self._raw(message)
                except pkcs11.exceptions.PKCS11Error as error:
                    raise fault("the token does not sign", self._at, error) from None
        if not verify(self.key, message, raw):
            raise EngineFault("the token's signature does not verify", code="MDM-0981", where=self._at.object)
        return raw

    def _raw(self, message: bytes) -> bytes:
        if self.key.kind == ED25519:
            return bytes(self._private.sign(message, mechanism=Mechanism.EDDSA))
        return bytes(self._private.sign(hashlib.sha256(message).digest(), mechanism=Mechanism.ECDSA))  # r and s, as they are

    def _find(self) -> tuple[bytes, int]:
        """The pair, in a session that is open. Raises Misuse and EngineFault."""
        opened, label = self._token.session(self._at), self._at.object
        try:
            self._private = opened.get_key(object_class=ObjectClass.PRIVATE_KEY, label=label)
            public = opened.get_key(object_class=ObjectClass.PUBLIC_KEY, label=label)
        except pkcs11.exceptions.NoSuchKey:
            raise Misuse(
                "no such key in the token", code="MDM-0980", where=f"token {self._at.token}", found=label,
                fix="mandamus key new URI --name NAME makes it there",
            ) from None  # fmt: skip
        except pkcs11.exceptions.MultipleObjectsReturned:
            raise Misuse("several keys of that label in the token", code="MDM-0980", found=label, fix="one label, one key") from None
        if self._private[Attribute.EXTRACTABLE] or not self._private[Attribute.SENSITIVE]:
            raise Misuse(
                "the key can be taken out of the token", code="MDM-0982", found=label, why="then nobody knows who else signs with it",
                fix="make a new one: mandamus key new URI --name NAME",
            )  # fmt: skip
        return _public(public)


def from_uri(uri: str, name: str | Callable[[bytes], str] = "") -> Pkcs11Signer:
    """Opens a key that is there. Raises Misuse or EngineFault."""
    at = Address(uri)
    return Pkcs11Signer(at, at.name or name or at.object)


def create(uri: str, name: str | Callable[[bytes], str] = "", kind: int = ED25519) -> Pkcs11Signer:
    """Makes the pair in the token: it can neither be read nor copied. Raises Misuse when there is one of that label."""
    at = Address(uri)
    token = token_of(at)
    with token.lock:
        token.session(at)  # logged in; the one that writes is opened beside it
        writing = session(at, {"rw": True})
        try:
            if list(writing.get_objects({Attribute.LABEL: at.object, Attribute.CLASS: ObjectClass.PRIVATE_KEY})):
                raise Misuse("there is a key of that label already", code="MDM-0193", where=f"token {at.token}", found=at.object)
            _generate(writing, at, kind)
        except pkcs11.exceptions.PKCS11Error as error:
            raise fault("the token made no key", at, error) from None
        finally:
            writing.close()
    return from_uri(uri, name)


def _generate(writing: Any, at: Address, kind: int) -> None:
    template = {Attribute.EXTRACTABLE: False, Attribute.SENSITIVE: True, Attribute.PRIVATE: True}
    if kind == P256:
        curve = writing.create_domain_parameters(KeyType.EC, {Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")}, local=True)
        curve.generate_keypair(store=True, label=at.object, private_template=template)
        return
    if kind != ED25519:
        raise Misuse("a token makes Ed25519 and P-256 keys", code="MDM-0980", found=f"0x{kind:02x}")
    last: Exception | None = None
    for params in _EDWARDS:
        try:
            curve = writing.create_domain_parameters(KeyType.EC_EDWARDS, {Attribute.EC_PARAMS: params}, local=True)
            curve.generate_keypair(mechanism=Mechanism.EC_EDWARDS_KEY_PAIR_GEN, store=True, label=at.object, private_template=template)
            return
        except pkcs11.exceptions.PKCS11Error as error:
            last = error
    assert last is not None
    raise last


def _public(key: Any) -> tuple[bytes, int]:
    point = bytes(key[Attribute.EC_POINT])
    if key.key_type == KeyType.EC_EDWARDS:
        return (point[2:] if point[:2] == _OCTETS and len(point) == 34 else point), ED25519
    if key.key_type == KeyType.EC and len(point) == 67 and point[2] == 0x04:
        return point[2:], P256
    raise Misuse("the token's key is neither Ed25519 nor P-256", code="MDM-0980", found=str(key.key_type))
