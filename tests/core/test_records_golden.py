"""One frozen record per type, byte for byte, with every optional field in use. A released type never changes: its file stays as it is.

`--golden-update` writes the file of a type that has none; it never rewrites one. A file that fails says that stored ledgers would too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.canonical import accept, canon
from mandamus.core.clock import Clock
from mandamus.core.records import FACTS, BodyPart, Record, decode, encode, event_hash
from mandamus.errors import ProofError
from mandamus.proof.chain import walk
from mandamus.testing._place import HERE

FOLDER = Path(__file__).parent.parent / "golden" / "records"
CLOCK = Clock(1_795_000_000_000_000, 60, "Europe/Berlin")
MAIL = r.MailRef(cursor=7, key="ab" * 32)
HEX = "0123456789abcdef" * 4
USAGE = r.Usage(cache_read=1, cache_write=2, estimated=True, input=30, output=4, reasoning=5)
RESERVE = (r.Reserve(account="limit/t/daily/a/2026-11-21", amount=5_000_000),)

SAMPLES: dict[str, r.Fact] = {
    type(fact).__name__: fact
    for fact in (
        r.RunOpened(
            agent="payout-bot",
            anchor=r.Anchor(root=HEX, size=3),
            clock=CLOCK,
            default="allow",
            definition=HEX,
            depth=1,
            environment="production",
            budget=r.BudgetLimits(calls=9, cost=1_000_000, currency="USD", denials=3, retries=5, tokens=200_000, turns=20, wall_ms=60_000),
            grant=r.Grant(tools=("send_payment",)),
            isolation="in_process",
            manifest=HEX,
            nonce="00" * 16,
            origin="mandamus.local/0123456789abcdef",
            parent=r.Parent(hash=HEX, kind="handoff", run="01JD9Z6Q7M0T3K8W5R2N4X1YBC", seq=7),
            plugins=("kit@1.0:" + HEX,),
            policy=HEX,
            profile="ai_act",
            register=r.Register(number=2, prev=HEX),
            tenant="default",
            tier="dev",
            trusted_code=(HEX,),
            user=r.User(principal="p-carol", roles=("clerk",)),
        ),
        r.RunOwned(clock=CLOCK, nonce="01JD9Z6Q7M0T3K8W5R2N4X1YBC", signature="c2lnbmF0dXJl", worker="pid-1"),
        r.StopRequested(agent="payout-bot", clock=CLOCK, mail=MAIL, mode="cancel", principal="p-alice", tenant="default"),
        r.RunHalted(action="1.1", cause="denials", code="policy"),
        r.RunEnded(code="rejected", state="failed"),
        r.RunSealed(closed="completed", count=14, head=HEX, state=HEX),
        r.TurnStarted(clock=CLOCK),
        r.ContextCompiled(items=3, tokens=225, window=128_000),
        r.GuardrailChecked(action="1.1", name="no-secrets", point="tool_result", result="annotate", source=HEX, usage=USAGE),
        r.ModelCalled(attempt=1, model="gpt-4o", reserves=4_269),
        r.ModelPriced(
            price=r.Price(cache_read=1_250_000, cache_write=3_125_000, currency="USD", input=2_500_000, output=10_000_000),
        ),
        r.ModelReplied(attempt=1, calls=1, model="gpt-4o", stop="calls", usage=USAGE),
        r.ModelFailed(attempt=1, category="rate_limit", retry_at=1_795_000_000_500_000, status=429),
        r.ActionProposed(
            action="1.1m1",
            by="person",
            call="1.1m1",
            effect="keyed",
            fault="invalid_arguments",
            kind="invoke",
            parent="1.1",
            pin=HEX,
            repeats=5,
            replaces="1.1",
            safety="financial",
            tool="send_payment",
        ),
        r.ActionJudged(
            action="1.1",
            asks=(r.Ask(chain="treasury", quorum=2),),
            attempt=1,
            authority=4,
            bundle=HEX,
            code="policy",
            determining=("pay.large",),
            engine="cedar/4.12.2",
            layers=(r.Layer(layer="contract", verdict="allow"), r.Layer(layer="policy", of="agent", verdict="escalate")),
            verdict="escalate",
        ),
        r.ActionStarted(
            action="1.1",
            attempt=2,
            capabilities=(r.Issued(capability="tool.invoke:send_payment", mechanism="in_process"),),
            child=HEX[:26],
            deadline=30_000,
            effect="keyed",
            landing=30_000,
            operation=HEX,
            reserves=RESERVE,
            votes=(9, 10),
        ),
        r.CapabilityChecked(action="1.1", capability="clock.read", mechanism="in_process", result="granted", use=1),
        r.ActionDoubted(action="1.1", attempt=1, cause="timeout", retry_at=1_795_000_000_500_000),
        r.ActionEnded(
            action="1.1",
            attempt=1,
            code="not_done",
            output="none",
            result="failed",
            retry_at=1_795_000_000_500_000,
            spends=RESERVE,
            via="tool",
        ),
        r.ApprovalRequested(
            about="start",
            action="1.1",
            card=HEX,
            carries=(8,),
            chain="treasury",
            digest=HEX,
            expires=1_795_000_003_600_000,
            policy=HEX,
            quorum=2,
            request="01JD9Z6Q7M0T3K8W5R2N4X1YBC",
            tier=1,
            until=1_795_000_003_600_000,
        ),
        r.Voted(
            about="start",
            action="1.1",
            ballot=HEX,
            clock=CLOCK,
            decision="approve",
            mail=MAIL,
            principal="p-alice",
            request="01JD9Z6Q7M0T3K8W5R2N4X1YBC",
            scope="once",
            veto=True,
        ),
        r.VoteWithdrawn(ballot=HEX, clock=CLOCK, mail=MAIL, principal="p-alice"),
        r.MessageReceived(clock=CLOCK, mail=MAIL, principal="p-carol"),
        r.MessageRefused(mail=MAIL, reason="forged"),
        r.TimePassed(clock=CLOCK, source="worker"),
        r.LogOpened(
            clock=CLOCK,
            keys=(r.NamedKey(key="admin+01234567+BASE64", principal="p-root", role="administrator"),),
            nonce="00" * 16,
            origin="mandamus.local/0123456789abcdef",
            quorum=1,
        ),
        r.RunRefused(
            agent="payout-bot", clock=CLOCK, codes=("MDM-0311",), register=r.Register(number=3, prev=HEX), run="01JD9Z6Q7M0T3K8W5R2N4X1YBC"
        ),
        r.PolicyChanged(agent="payout-bot", clock=CLOCK, new=HEX, old=HEX),
        r.KeyChanged(clock=CLOCK, new="approver+01234567+BASE64", old="approver+76543210+BASE64", principal="p-alice", role="approver"),
        r.EvidenceReached(level="witnessed", root=HEX, seq=7, size=1_000),
        r.HoldPlaced(clock=CLOCK, ground="legal_claims", hold="h-1", principal="p-counsel", run="01JD9Z6Q7M0T3K8W5R2N4X1YBC", subject=HEX),
        r.HoldLifted(clock=CLOCK, hold="h-1", principal="p-counsel"),
        r.ErasureRequested(after=CLOCK.now, clock=CLOCK, erasure="e-1", ground="request", principal="p-dpo", subject=HEX),
        r.ErasureBlocked(clock=CLOCK, erasure="e-1", ground="hold", hold="h-1", run="01JD9Z6Q7M0T3K8W5R2N4X1YBC"),
        r.Erased(clock=CLOCK, commits=(HEX, HEX), erasure="e-1", ground="request", principal="p-dpo", subject=HEX),
        r.Exported(clock=CLOCK, kind="log", principal="p-auditor"),
    )
}


def sample(name: str) -> bytes:
    """The record, with every envelope field in use."""
    record: Record[Any] = Record(
        actor=r.Actor(agent="payout-bot", principal="p-carol", runtime=HEX),
        at="2026-11-21T22:36:12.000000Z",
        causes=(HEX,),
        epoch=2,
        body=(BodyPart(class_="confidential", commit=HEX, media="application/json", part="args", subject="s-1"),),
        fact=SAMPLES[name],
        prev=HEX,
        run=r.LOG if name in ("LogOpened", "RunRefused", "PolicyChanged", "KeyChanged") else "01JD9Z6Q7M0T3K8W5R2N4X1YBC",
        seq=7,
        turn=1,
        type=name,
    )
    return encode(record)


def frozen(name: str) -> bytes:
    path = FOLDER / f"{name}.json"
    if not path.exists() and HERE.update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample(name) + b"\n")
    assert path.exists(), f"{name} has no frozen record; --golden-update adds it"
    return path.read_bytes().removesuffix(b"\n")


@pytest.mark.parametrize("name", FACTS)
def test_the_bytes_are_those_of_the_first_day(name: str) -> None:
    assert sample(name) == frozen(name)


@pytest.mark.parametrize("name", FACTS)
def test_a_frozen_record_reads_back_to_itself(name: str) -> None:
    raw = frozen(name)
    record = decode(raw)
    assert record.fact == SAMPLES[name]
    assert encode(record) == raw
    assert canon(accept(raw)) == raw
    assert raw.isascii()


@pytest.mark.parametrize("name", FACTS)
def test_every_optional_field_stands_in_the_sample(name: str) -> None:
    """A field that no golden record uses could change unnoticed."""
    for field in msgspec.structs.fields(FACTS[name]):
        assert getattr(SAMPLES[name], field.name) is not UNSET, field.name


def test_no_two_types_share_bytes_and_none_is_forgotten() -> None:
    assert set(SAMPLES) == set(FACTS)
    assert {p.stem for p in FOLDER.glob("*.json")} == set(FACTS)
    assert len({event_hash(frozen(name)) for name in FACTS}) == len(FACTS)


def test_the_names_of_events_are_frozen_too() -> None:
    """Domain and hash: the name of one event, written down."""
    assert event_hash(frozen("TurnStarted")) == "a8ab4a078bbaab3e5d1df24bae4ec8b347b1b3142630c81f035475c44f724d18"


@pytest.mark.parametrize("name", FACTS)
def test_a_name_that_ends_like_a_known_one_is_another_name(name: str) -> None:
    """The decoder is found by the last letters: the whole name is compared all the same, in one record and in a chain."""
    for other in ("X" + name, "Re" + name, name[1:], name + "s"):
        raw = frozen(name).replace(f'"type":"{name}"'.encode(), f'"type":"{other}"'.encode())
        assert raw != frozen(name)
        with pytest.raises(ProofError, match="not known") as refused:
            decode(raw)
        assert refused.value.diagnosis.code == "MDM-0602"
        fault = walk([raw]).fault
        assert fault is not None
        assert fault.code == "MDM-0602"


@pytest.mark.parametrize("end", [b'"type":"RunOpened,"v":1}', b'"type":"RunOpened"","v":1}', b'"type":RunOpened","v":1}', b'","v":1}'])
def test_an_end_that_is_nearly_one_is_none(end: bytes) -> None:
    raw = frozen("RunOpened")
    with pytest.raises(ProofError) as refused:
        decode(raw[: raw.rfind(b'"type"')] + end)
    assert refused.value.diagnosis.code in ("MDM-0601", "MDM-0602")
