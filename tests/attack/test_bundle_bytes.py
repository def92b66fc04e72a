"""No byte of a bundle can change unnoticed: every position, three replacements each. The report names the event or the line.

Each altered file goes through `verify` whole: what stands before the change is checked anew every time. The complete walk over a
bundle of every kind takes a while and belongs to `make slow`; `make test` takes every eleventh byte of it.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import random

import pytest

from mandamus.core import records as r
from mandamus.core.canonical import parse
from mandamus.proof import bundle, verify
from mandamus.proof import mail as post
from mandamus.proof.report import Finding
from tests.logged import Log, proofs
from tests.samples import (
    ADMIN,
    ADMIN_2,
    ALICE,
    BOB,
    MANIFEST,
    ORIGIN,
    RUN,
    Chain,
    Story,
    clock,
    enrolled,
    log_chain,
    statement,
    story,
    trust,
)

SLICES = 8
NEWLINE = 0x0A
OLDER = [b"older leaf %d" % n for n in range(9)]


@functools.cache
def small() -> bytes:
    """The shortest run that has every section."""
    tale = Story(log=log_chain())
    tale.opened()
    tale.chain.add(r.ModelFailed(attempt=1, category="auth", status=401), 1)
    tale.chain.add(r.RunEnded(state="failed", code="model_auth"), 1)
    tale.chain.seal_up("failed")
    return tale.bundle()


class Eventful(Story):
    """The story with everything that may come between: each record type that the plain one does not have."""

    reached: r.EvidenceReached

    def opened(self) -> None:
        super().opened()
        self.chain.add(r.ModelFailed(attempt=1, category="rate_limit", retry_at=clock(3).now, status=429), 1)
        self.chain.add(r.ModelCalled(attempt=2, model="scripted", reserves=100), 1)
        said = post.say(
            "today", secret=bytes(32), nonce="m", origin=ORIGIN, principal="p-bob", run=RUN, signer=BOB.sign, keyid=BOB.key.id
        )  # a person's own words; the salt is the one that `Payload` gives below
        fact = r.MessageReceived(clock=clock(3), mail=r.MailRef(cursor=1, key="m"), principal="p-bob")
        self.chain.entropy = itertools.chain([bytes(32)], self.chain.entropy)
        self.chain.add(fact, 1, text="today", statement=parse(said.envelope.encode()))

    def proposed(self) -> None:
        super().proposed()
        self.chain.add(r.GuardrailChecked(name="tone", point="output", result="annotate", source="f" * 64), 1, finding={"note": "curt"})

    def voted(self) -> None:
        self.chain.add(r.MessageRefused(mail=r.MailRef(cursor=2, key="x"), reason="forged"), 1, message={"vote": "mine"})
        super().voted()

    def started(self) -> None:
        super().started()
        self.chain.add(r.CapabilityChecked(action="1.1", capability="clock", mechanism="in_process", result="granted", use=1), 1, value=7)
        self.chain.add(r.ActionDoubted(action="1.1", attempt=1, cause="timeout", retry_at=clock(8).now), 1)
        self.chain.add(r.TimePassed(clock=clock(8), source="worker"), 1)
        stop = post.stop(post.StopStatement(mode="halt", nonce="s", origin=ORIGIN, run=RUN), signer=ALICE.sign, keyid=ALICE.key.id)
        self.chain.add(r.StopRequested(clock=clock(8), mode="halt", principal="p-alice"), 1, statement=parse(stop.envelope.encode()))
        self.chain.add(r.RunHalted(cause="people", code="stop"), 1)
        early = Log().add(OLDER).add([*self.log.raws, *self.chain.raws]).checkpoint()
        self.reached = r.EvidenceReached(level="witnessed", root=early.root.hex(), seq=3, size=early.size)
        self.chain.add(self.reached, 1)


def eventful() -> bytes:
    """A run and a chain `log` that together hold every record type there is."""
    changed = r.PolicyChanged(agent="Corporate Assistant", clock=clock(2), new="a" * 64, old="b" * 64)
    log = enrolled()
    log.add(changed, statement=statement(changed, ADMIN, ADMIN_2, nonce="n2"))
    log.add(r.RunRefused(agent="Corporate Assistant", clock=clock(2), codes=("MDM-0311",)), diagnosis={"codes": ["MDM-0311"]})
    log.add(r.VoteWithdrawn(ballot="c" * 64, clock=clock(2), principal="p-alice"))
    kept(log)
    tale = Eventful(log=log, authority=6, price=r.Price(currency="USD", input=2_500_000, output=10_000_000))
    tale.tell()
    tiles = Log().add(OLDER).add([*log.raws, *tale.chain.raws])
    return tale.bundle(proofs=(*proofs(tale, tiles), tiles.proof(tale.chain.raws[3], size=tale.reached.size)))


def kept(log: Chain) -> None:
    """A hold that was placed and lifted, an erasure that waited for it, and what was given away."""
    log.add(r.HoldPlaced(clock=clock(2), ground="lawsuit", hold="H1", principal="p-alice", subject="s-1"), reason={"text": "lawsuit"})
    log.add(r.ErasureRequested(after=clock(2).now, clock=clock(2), erasure="E1", ground="request", principal="p-bob", subject="s-1"))
    log.add(r.ErasureBlocked(clock=clock(2), erasure="E1", ground="hold", hold="H1"))
    lifted = r.HoldLifted(clock=clock(2), hold="H1", principal="p-alice")
    log.add(lifted, statement=statement(lifted, ADMIN, ADMIN_2, nonce="n3"))
    log.add(r.Erased(clock=clock(2), commits=("e" * 64,), erasure="E1", ground="request", principal="p-bob", subject="s-1"))
    log.add(r.Exported(clock=clock(2), kind="bundle", principal="p-alice"), scope={"digest": "d" * 64})


STORIES = {"plain": lambda: story().bundle(), "eventful": eventful}


def replacements(byte: int, rnd: random.Random) -> list[int]:
    """One bit, another printable character, anything else."""
    printable = rnd.choice([c for c in range(0x20, 0x7F) if c != byte])
    return [byte ^ (1 << rnd.randrange(8)), printable, (byte + rnd.randrange(1, 256)) % 256]


class Lines:
    """Where the lines of the untouched bundle lie, and which place a report has to name for a byte of each."""

    def __init__(self, raw: bytes) -> None:
        self.starts = [0, *(n + 1 for n, byte in enumerate(raw[:-1]) if byte == NEWLINE)]
        self.box = bundle.read(raw)

    def right(self, found: Finding, position: int) -> bool:
        """The line, or the event that stands on it.

        Of two deltas that contradict each other, and of key hints and signatures of strangers, which nothing rests on, any line of their
        section. The header says where sections begin: when it lies, the first line that is not what it says.
        """
        number = bisect.bisect_right(self.starts, position)
        for chain, section in (("run", "record"), ("log", "log")):
            if found.chain == chain and found.event is not None and number == self.box.first[section] + found.event:
                return True
        for section in ("account", "key", "proof"):
            first = self.box.first[section]
            lines = range(first, first + len(self.box.sections[section]))
            if number in lines and found.line in lines:
                return True
        return found.line == number or (number == 1 and found.line is not None)


def survivors(raw: bytes, positions: range, seed: int) -> list[tuple[int, int, str]]:
    """Changes that were not refused, or were refused at another place than theirs. Where lines were joined or cut, any place will do."""
    roots, rnd, lines, out = trust(), random.Random(seed), Lines(raw), []
    for position in positions:
        for byte in replacements(raw[position], rnd):
            report = verify(raw[:position] + bytes([byte]) + raw[position + 1 :], roots)
            found = report.broken
            named = found is not None and (found.event is not None or found.line is not None)
            if found is not None and NEWLINE not in (byte, raw[position]):
                named = lines.right(found, position)
            if report.exit_code != 1 or report.verdict != "NOT PROVEN" or not named:
                out.append((position, byte, found.where if found else report.verdict))
    return out


def test_the_untouched_bundles_are_proven() -> None:
    for raw in (small(), *(made() for made in STORIES.values())):
        assert verify(raw, trust()).exit_code == 0, verify(raw, trust())


def test_the_eventful_story_holds_every_record_type() -> None:
    box = bundle.read(eventful())
    assert {r.decode(raw).type for raw in (*box.sections["record"], *box.sections["log"])} == set(r.FACTS)


@pytest.mark.parametrize("part", range(SLICES))
def test_every_byte_of_a_small_bundle(part: int) -> None:
    assert survivors(small(), range(part, len(small()), SLICES), part) == []


@pytest.mark.parametrize("tale", STORIES)
def test_bytes_of_a_whole_story(tale: str) -> None:
    """Every eleventh byte of a bundle with votes, takeover, deltas and statements."""
    raw = STORIES[tale]()
    assert survivors(raw, range(3, len(raw), 11), 1) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("tale", STORIES)
def test_every_byte_of_a_whole_story(tale: str, part: int) -> None:
    raw = STORIES[tale]()
    assert survivors(raw, range(part, len(raw), SLICES), part) == []


def test_no_byte_can_be_added_or_taken_away() -> None:
    raw, roots = small(), trust()
    for position in range(0, len(raw), 29):
        assert verify(raw[:position] + b"0" + raw[position:], roots).exit_code == 1
        assert verify(raw[:position] + raw[position + 1 :], roots).exit_code == 1


def test_cut_anywhere_it_is_refused() -> None:
    raw, roots = small(), trust()
    assert {verify(raw[:length], roots).exit_code for length in range(1, len(raw), 37)} == {1}


def test_the_manifest_is_shown_as_written() -> None:
    assert MANIFEST.splitlines()[0].encode() in small()
