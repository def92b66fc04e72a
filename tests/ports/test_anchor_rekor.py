"""The public anchor: a checkpoint of ours becomes an entry of somebody else's log, and nothing is believed that does not name it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mandamus import wiring
from mandamus.drivers.anchor_rekor import RekorAnchor
from mandamus.drivers.anchor_rekor import verify as held
from mandamus.errors import Misuse, ProofError, Refused, Unavailable
from mandamus.proof.note import parse_note
from mandamus.proof.tlogproof import parse, write
from mandamus.proof.witnessed import is_entry_over
from mandamus.runtime.witnesses import ask, collect
from tests.servers.rekor import ORIGIN, Rekor, rekor
from tests.servers.witnesses import ORIGIN as OURS
from tests.servers.witnesses import Log, key, standing, trust

pytestmark = pytest.mark.service


def anchored(work: Callable[[Rekor, RekorAnchor, Log], Awaitable[None]]) -> None:
    async def main() -> None:
        async with rekor() as public:
            one = public.client()
            try:
                await work(public, one, Log().grow(40))
            finally:
                await one.close()

    asyncio.run(main())


def test_the_answer_is_a_proof_that_names_our_checkpoint() -> None:
    """A tlog-proof whose extra is the entry: leaf, place, checkpoint of the public log; what left the house is one digest."""

    async def work(public: Rekor, one: RekorAnchor, log: Log) -> None:
        raw = await one.add(OURS, 0, (), log.note())
        text = parse_note(log.note()).text.encode()
        proof = parse(raw)
        assert (proof.index, proof.extra) == (300, public.entries[300])
        assert is_entry_over(proof.extra, text)
        held(raw, public.signer.key, text)
        sent = public.entries[300].decode()
        assert base64.b64encode(hashlib.sha256(text).digest()).decode() in sent
        assert OURS not in sent
        assert text.split(b"\n")[2].decode() not in sent

    anchored(work)


def test_it_counts_for_no_quorum_and_is_no_cosignature(tmp_path: Path) -> None:
    """`collect` keeps it apart: quorum and note are the witnesses' alone, and `ask` leaves anchors out."""

    async def work(public: Rekor, one: RekorAnchor, log: Log) -> None:
        async with standing(tmp_path, log.signer) as witness:
            client = witness.client()
            taken = await (await collect([client, one], trust(log, witness, quorum=1), log.note(), log)).rest()
            assert taken.met
            held(taken.anchors[ORIGIN], public.signer.key, parse_note(log.note()).text.encode())
            assert ORIGIN not in taken.note.decode()
            assert await ask([client, one], log.note(0)) == {"w1.example": 40}
            await client.close()
        alone = await (await collect([one], trust(log, witness, quorum=1), log.note(), log)).rest()
        assert not alone.met
        assert alone.anchors.keys() == {ORIGIN}

    anchored(work)


def _other_entry(told: dict[str, Any]) -> dict[str, Any]:
    body = json.loads(base64.b64decode(told["canonicalizedBody"]))
    body["spec"]["hashedRekordV002"]["data"]["digest"] = base64.b64encode(hashlib.sha256(b"another").digest()).decode()
    return told | {"canonicalizedBody": base64.b64encode(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).decode()}


def _changed(told: dict[str, Any], **more: Any) -> dict[str, Any]:
    return told | {"inclusionProof": told["inclusionProof"] | more}


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an entry about something else, with our place": _other_entry,
    "another place": lambda t: t | {"logIndex": "299"},
    "a place beyond its log": lambda t: t | {"logIndex": "100000"},
    "a negative place": lambda t: t | {"logIndex": "-1"},
    "a hash left out": lambda t: _changed(t, hashes=t["inclusionProof"]["hashes"][1:]),
    "a short hash": lambda t: _changed(t, hashes=["AAAA"]),
    "a checkpoint that nobody signed": lambda t: _changed(t, checkpoint={"envelope": f"{ORIGIN}\n302\n{'A' * 43}=\n\n— x AAAAAAAA\n"}),
    "no checkpoint": lambda t: {k: v for k, v in t.items() if k != "inclusionProof"},
    "no entry": lambda t: t | {"canonicalizedBody": ""},
    "a list": lambda t: [t],
    "nothing": lambda t: None,
}


@pytest.mark.parametrize("what", LIES)
def test_a_public_log_that_lies_proves_nothing(what: str) -> None:
    """Attack 46 (a valid entry that does not name the artifact) and its neighbours: ProofError, whatever the status said."""

    async def work(public: Rekor, one: RekorAnchor, log: Log) -> None:
        public.twist = LIES[what]
        with pytest.raises(ProofError) as told:
            await one.add(OURS, 0, (), log.note())
        assert told.value.diagnosis.code in ("MDM-0956", "MDM-0900", "MDM-0904"), told.value

    anchored(work)


def test_an_entry_of_an_earlier_checkpoint_is_not_taken_for_this_one() -> None:
    async def work(public: Rekor, one: RekorAnchor, log: Log) -> None:
        first = await one.add(OURS, 0, (), log.note(20))
        public.twist = lambda told: public.told(300)
        with pytest.raises(ProofError, match="something else"):
            await one.add(OURS, 0, (), log.note(40))
        held(first, public.signer.key, parse_note(log.note(20)).text.encode())

    anchored(work)


def test_a_checkpoint_of_another_key_proves_nothing() -> None:
    """Attack 47: the identity of the public log is the key in the address, never what the server says of itself."""

    async def work(public: Rekor, one: RekorAnchor, log: Log) -> None:
        assert public.server is not None
        other = RekorAnchor.open(f"rekor+http://127.0.0.1:{public.server.port}#{key(ORIGIN).vkey}")
        with pytest.raises(ProofError, match="its key did not sign"):
            await other.add(OURS, 0, (), log.note())
        await other.close()

    anchored(work)


def test_our_checkpoint_itself_may_be_the_entry() -> None:
    """A log that takes free entries: the leaf is the three lines."""
    public, log = Rekor(), Log().grow(3)
    text = parse_note(log.note()).text.encode()
    index = public._append(text)
    note = public.told(index)["inclusionProof"]["checkpoint"]["envelope"].encode()
    held(write(index, public.tree.inclusion(index), note, text), public.signer.key, text)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Refused), (404, Refused), (409, Refused), (302, Refused), (500, Unavailable), (429, Unavailable)]
)
def test_each_status_is_one_kind_of_error(status: int, kind: type[Exception]) -> None:
    async def work(public: Rekor, one: RekorAnchor, log: Log) -> None:
        public.status = status
        with pytest.raises(kind):
            await one.add(OURS, 0, (), log.note())

    anchored(work)


def test_it_is_off_by_default_and_its_residency_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is anchored that nobody named; declared outside of the demanded place it is refused before anything is sent."""
    assert wiring.witnesses() == ()
    uri = f"rekor+https://rekor.example?residency=eu_approved#{key(ORIGIN).vkey}"
    assert wiring.witnesses(uri)[0].name == ORIGIN
    with pytest.raises(Misuse, match="residency"):
        wiring.witnesses(uri, residency="eu")
    with pytest.raises(Misuse, match="residency"):
        wiring.witnesses(uri.replace("?residency=eu_approved", ""), residency="eu_approved")
    monkeypatch.setenv("MANDAMUS_RESIDENCY", "moon")
    with pytest.raises(Misuse):
        wiring.witnesses(uri)
