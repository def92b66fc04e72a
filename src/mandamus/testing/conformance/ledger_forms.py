"""In which forms a ledger takes payloads: plain, held against their commitments, or sealed, which nobody but their keeper can read.

The rule a newcomer would break: what is sealed here is sealed in earnest, but with a key that everybody has. It is for suites only.
"""

from __future__ import annotations

import hashlib

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mandamus.core.payload import INLINE_MAX, Payload
from mandamus.core.records import LOG
from mandamus.core.seal import Content, Draft, Sealed, seal
from mandamus.errors import Misuse, ProofError
from mandamus.ports import Ledger
from mandamus.testing.conformance.chains import CLAIM, Chain, bodies, log_opened, raws, turn
from mandamus.testing.conformance.suite import Suite, expect, put

_key = AESGCM(hashlib.sha256(b"a key of the suite's").digest())
SEAL = 28


def sealed(payload: Payload) -> Payload:
    """Nonce, then AES-256-GCM; the same again for the same payload."""
    nonce = hashlib.sha256(f"{payload.run}/{payload.seq}/{payload.part}".encode() + payload.bytes).digest()[:12]
    return msgspec.structs.replace(payload, form="sealed", bytes=nonce + _key.encrypt(nonce, payload.bytes, None))


class PlainCases(Suite):
    async def test_refuses_a_payload_that_is_not_the_one_committed_to(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        sealed = chain.next(note="pay 10 to A")
        (good,) = bodies(sealed)
        for value in (good.bytes.replace(b"10", b"99"), good.bytes[::-1], good.bytes[:32], good.bytes[:10], b""):
            await expect(ProofError, ledger.append("run-1", head, raws(sealed), payloads=[msgspec.structs.replace(good, bytes=value)]))
        await expect(Misuse, ledger.append("run-1", head, raws(sealed), payloads=[msgspec.structs.replace(good, form="other")]))
        await self._untouched(ledger, head, 1)


class SealedCases(Suite):
    async def test_takes_what_is_sealed_beside_how_its_record_was_sealed(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(input="i"))
        made = chain.next(turn(), a="x", b="y")
        one, two = map(sealed, bodies(made))
        replace = msgspec.structs.replace
        for wrong in ([two, one], [one], [one, one], [one, replace(two, seq=2)], [replace(one, run="run-2"), two]):
            await expect(Misuse, ledger.append("run-1", head, raws(made), payloads=wrong, seals=made))
        await self._untouched(ledger, head, 1)
        await ledger.append("run-1", head, raws(made), payloads=[one, two], seals=made)
        assert await ledger.payload("run-1", 1, "a") == one
        assert await ledger.payload("run-1", 1, "b") == two

    async def test_refuses_what_no_sealing_makes(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        made = chain.next(note="n")
        good = sealed(bodies(made)[0])
        longest = SEAL + 32 + INLINE_MAX
        for value in (b"", good.bytes[:SEAL], b"x" * (SEAL + 32), b"x" * (longest + 1)):
            for seals in ((), made):
                wrong = [msgspec.structs.replace(good, bytes=value)]
                await expect(Misuse, ledger.append("run-1", head, raws(made), payloads=wrong, seals=seals))
        for form in ("erased", "", "SEALED"):
            await expect(Misuse, ledger.append("run-1", head, raws(made), payloads=[msgspec.structs.replace(good, form=form)]))
        await self._untouched(ledger, head, 1)


class SealedOnlyCases(Suite):
    """For a ledger that takes nothing in plain that somebody may want to have forgotten."""

    async def test_refuses_what_is_plain(self, ledger: Ledger) -> None:
        chain, bare = Chain("run-1"), self.handles[0]
        head = await put(ledger, None, chain.genesis(input="i"))
        made = chain.next(note="n", other="o")
        note, other = bodies(made)
        for payloads in ([note, other], [note, sealed(other)], [sealed(note), other]):
            refused = await expect(Misuse, bare.append("run-1", head, raws(made), payloads=payloads))
            assert refused.diagnosis.code == "MDM-0125"
        opening = Chain("run-2").genesis(input="i")
        await expect(Misuse, bare.append("run-2", None, raws(opening), payloads=bodies(opening)))
        await self._untouched(ledger, head, 1)

    async def test_takes_in_plain_what_the_log_says_to_everybody(self, ledger: Ledger) -> None:
        """Statements and ballots, which every verifier needs; nothing there that is personal or confidential."""
        chain, bare = Chain(LOG, log_opened()), self.handles[0]
        head = await put(ledger, None, chain.genesis())
        for kind in ("personal", "confidential", "special_category", "a word nobody knows"):
            made = _one(chain.fork(), kind)
            refused = await expect(Misuse, bare.append(LOG, head, raws(made), payloads=bodies(made)))
            assert refused.diagnosis.code == "MDM-0125"
        head = await put(ledger, head, _one(chain, "personal"))
        for kind in ("public", "business"):
            made = _one(chain, kind)
            head = await bare.append(LOG, head, raws(made), payloads=bodies(made))
            assert await ledger.payload(LOG, head.seq, "statement") == bodies(made)[0]


def _one(chain: Chain, kind: str) -> list[Sealed]:
    made, chain.at = seal([Draft(turn(), 1, (Content("statement", {"text": "x"}, kind),))], chain.at, CLAIM, iter([b"s" * 32]))
    return made
