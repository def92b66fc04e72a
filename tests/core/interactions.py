"""A script language for the pure core: each line is an input, answered by the exact facts it makes and by what is due then.

    start turns=3          open a run               reply pay:p keyed:k       a reply that proposes calls
    judge 1.1 allow        a judgement of a batch   outcome 1.1 done          what became of an attempt
No ledger, no world, no clock, no event loop: every instant and id comes from the script. `play(text) -> text`.
"""

from __future__ import annotations

import shlex
from typing import Any

from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.canonical import canon
from mandamus.core.clock import Clock
from mandamus.core.fold import evolve
from mandamus.core.rules import NotDue, decide, due, owned, wakes
from mandamus.core.run import EMPTY, Run
from mandamus.core.seal import Draft, Position, seal

TOOLS = {  # name → safety, effect
    "look": ("read", "read"),
    "file": ("write", "idempotent"),
    "pay": ("financial", "keyed"),
    "move": ("financial", "reconcilable"),
    "wire": ("financial", "irreversible"),
    "clerk": ("write", "keyed"),
}
SECOND = 1_000_000
QUIET = ("attempt",)


class Player:
    """The run, a clock in seconds, and a counter for salts and mail."""

    def __init__(self) -> None:
        self.run: Run = EMPTY
        self.at = Position("r", -1, "0" * 64, 1)
        self.now = 0
        self.mails = 0
        self.records: list[r.AnyRecord] = []

    def clock(self) -> Clock:
        return Clock(self.now * SECOND, 0, "UTC")

    def take(self, drafts: list[Draft]) -> list[str]:
        sealed, self.at = seal(drafts, self.at, "1970-01-01T00:00:00.000000Z", iter(lambda: b"s" * 32, b""))
        out = []
        for one in sealed:
            self.records.append(one.record)
            self.run = evolve(self.run, one.record, one.hash)
            out.append("  " + show(one.record))
        return out or ["  nothing follows"]

    def give(self, given: e.Input) -> list[str]:
        try:
            return self.take(decide(self.run, given))
        except NotDue as error:
            return [f"  not due: {error}"]

    def due(self) -> str:
        effects = [_effect(x) for x in due(self.run)]
        at, word = wakes(self.run)
        return f"due: {', '.join(effects) or 'nothing'}; {word}" + ("" if not at else f" until {at // SECOND}s")


def play(text: str) -> str:
    player, out = Player(), []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        command = lines[: lines.index("----")] if "----" in lines else lines
        shown: list[str] = []
        for line in command:
            if line and not line.startswith("#"):
                shown += step(player, line)
        out.append("\n".join([*command, "----", *shown, player.due()]))
    return "\n\n".join(out) + "\n"


# -- commands ----------------------------------------------------------------------------------------------------------------
def step(p: Player, line: str) -> list[str]:
    verb, *words = shlex.split(line)
    plain = [w for w in words if "=" not in w]
    named = dict(w.split("=", 1) for w in words if "=" in w)
    return COMMANDS[verb](p, plain, named)  # type: ignore[no-any-return]


def _start(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    limits = r.BudgetLimits(**{k: int(v) for k, v in named.items()})
    fact = r.RunOpened(
        agent="a",
        anchor=r.Anchor(root=r.EMPTY_ROOT, size=0),
        budget=limits,
        clock=p.clock(),
        definition="d",
        isolation="in_process",
        manifest="",
        nonce="",
        origin="o",
        policy="p",
        profile="none",
        register=r.Register(number=1, prev=""),
        tenant="t",
        tier="dev",
    )
    return p.take([Draft(fact, 0)])


def _turn(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    """Prepare what is due. `check=point:result` adds a guardrail, `fault=window` a prompt that does not fit."""
    effect = next((x for x in due(p.run) if isinstance(x, e.Prepare)), e.Prepare(turn=p.run.turn + 1, attempt=1))
    checks = (
        tuple(e.GuardCheck(name="g", point=x.split(":")[0], result=x.split(":")[1], source="s") for x in [named["check"]])
        if "check" in named
        else ()
    )  # type: ignore[arg-type]
    return p.give(
        e.Prepared(
            turn=effect.turn,
            attempt=effect.attempt,
            clock=p.clock(),
            model="m",
            reserves=int(named.get("reserves", 10)),
            items=1,
            tokens=1,
            window=9,
            manifest=[],
            checks=checks,
            fault=named.get("fault", ""),
        )
    )


def _reply(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    proposals = tuple(_proposal(w, named) for w in words)
    usage = r.Usage(input=int(named.get("input", 5)), output=int(named.get("output", 5)))
    return p.give(
        e.Reply(
            turn=p.run.turn,
            attempt=p.run.attempt,
            value={},
            raw=canon({}),
            model="m",
            stop="calls" if words else "end",
            usage=usage,
            proposals=proposals,
            bad=named.get("bad", ""),
        )
    )


def _proposal(tool: str, named: dict[str, str] | None = None) -> e.Proposal:
    safety, effect = TOOLS.get(tool, ("read", "read"))
    repeats = int(named["repeats"]) if named and "repeats" in named else None
    kind: Any = "handoff" if tool == "clerk" else "invoke"
    fault = "" if tool in TOOLS else "unknown_tool"
    return e.Proposal(
        tool=tool if tool in TOOLS else "?", args={"n": 1}, kind=kind, safety=safety, effect=effect, pin="pin", fault=fault, repeats=repeats
    )


def _lost(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    retry = int(named["retry"]) * SECOND if "retry" in named else None
    return p.give(e.ModelLost(turn=p.run.turn, attempt=p.run.attempt, category=words[0], retry_at=retry))


def _judge(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    """judge 1.1 allow 1.2 escalate …; `quorum`, `chain`, `code`, `deadline` in seconds, `settle`, `halt`, `terminate`, `stale`."""
    pairs = list(zip(words[::2], words[1::2], strict=True))
    rulings = tuple(_verdict(p, action, verdict, named) for action, verdict in pairs)
    return p.give(e.Rulings(seq=p.run.seq - int(named.get("stale", 0)), clock=p.clock(), rulings=rulings))


def _verdict(p: Player, action: str, verdict: Any, named: dict[str, str]) -> e.Ruling:
    about: Any = named.get("about", "start")
    quorum, chain = int(named.get("quorum", 1)), named.get("chain", "people")
    request = None
    if verdict == "escalate":
        request = e.Request(
            id=f"R{p.run.seq}",
            chain=chain,
            digest="digest",
            card={},
            card_digest="card",
            quorums=(quorum,),
            policy="p",
            deadlines_ms=tuple(int(x) * 1000 for x in named.get("deadline", "3600").split("+")),
        )
    return e.Ruling(
        action=action,
        about=about,
        verdict=verdict,
        layers=(r.Layer(layer="policy", verdict=verdict),),
        determining=(named.get("rule", "rule"),),
        asks=(r.Ask(chain=chain, quorum=quorum),) if verdict == "escalate" else (),
        code=named.get("code", ""),
        engine="test",
        bundle="b",
        authority=0,
        facts=b"{}",
        decision={},
        settle=named.get("settle", ""),
        terminate="terminate" in named,
        halt=named.get("halt", ""),  # type: ignore[arg-type]
        operation=f"op-{action}",
        deadline_ms=1000,
        landing_ms=1000,
        request=request,
        child="CHILD" if p.run.actions[action].kind == "handoff" else "",
        votes=tuple(v.seq for a in [p.run.actions[action]] if a.request for v in a.request.votes),
        reserves=(r.Reserve(account="limit", amount=int(named["amount"])),) if "amount" in named else (),
    )


def _outcome(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    """outcome 1.1 done|failed|doubt|absent|unclear; `retry` in seconds, `cause`, `via`."""
    action, kind = words
    known = p.run.actions.get(action)
    return p.give(
        e.Outcome(
            action=action,
            attempt=int(named.get("attempt", known.attempt if known else 1)),
            kind=kind,
            value=1 if kind == "done" else None,  # type: ignore[arg-type]
            output="valid" if kind == "done" else "none",
            cause=named.get("cause", "fault"),
            via=named.get("via", "tool"),  # type: ignore[arg-type]
            retry_at=int(named["retry"]) * SECOND if "retry" in named else None,
        )
    )


def _vote(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    """vote 1.1 p-alice approve; `veto`, `again` sends the same message a second time."""
    action, principal, decision = words
    p.mails += "again" not in named
    request = p.run.actions[action].request if action in p.run.actions else None
    about: Any = "outcome" if decision in ("done", "again", "abandon") else "start"
    modified = _proposal(named["tool"]) if decision == "modify" else None
    return p.give(
        e.Mail(
            ref=r.MailRef(cursor=p.mails, key=f"key{p.mails}"),
            clock=p.clock(),
            kind="vote",
            principal=principal,
            action=action,
            about=about,
            request=request.id if request else "none",
            decision=decision,
            ballot="ballot",
            value={},
            veto="veto" in named,
            modified=modified,
        )
    )


def _mail(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    """stop | halt | say | junk"""
    p.mails += 1
    kind: Any = {"stop": "stop", "halt": "stop", "say": "message", "junk": "refused"}[words[0]]
    return p.give(
        e.Mail(
            ref=r.MailRef(cursor=p.mails, key=f"key{p.mails}"),
            clock=p.clock(),
            kind=kind,
            principal="p-alice",
            value="text",
            reason="malformed" if kind == "refused" else "",
            mode="halt" if words[0] == "halt" else "cancel",
        )
    )


def _step(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    """step 1.1 look: a running tool proposes a sibling."""
    return p.give(e.Steps(parent=words[0], first=int(named.get("n", 1)), proposals=(_proposal(words[1]),)))


def _use(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    return p.give(e.Use(action=words[0], capability=words[1], result="granted", value=1))


def _wait(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    """wait 60: time goes by, nobody says anything."""
    p.now += int(words[0])
    return []


def _time(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    """time: the clock becomes a fact; `tier=1.1:2` asks the next tier with that quorum for an hour."""
    tiers: tuple[e.NextTier, ...] = ()
    if "tier" in named:
        action, quorum = named["tier"].split(":")
        request = p.run.actions[action].request
        assert request is not None
        carries = tuple(v.seq for v in request.votes)
        tiers = (
            e.NextTier(action=action, tier=request.tier + 1, quorum=int(quorum), until=p.now * SECOND + 3600 * SECOND, carries=carries),
        )
    return p.give(e.Time(clock=p.clock(), tiers=tiers))


def _resume(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    p.at = Position("r", p.at.seq, p.at.hash, p.at.epoch + 1)
    return p.take(owned(p.run, r.RunOwned(clock=p.clock(), nonce="n", signature="s", worker=words[0])))


def _close(p: Player, words: list[str], named: dict[str, str]) -> list[str]:
    return p.give(e.Closing())


COMMANDS: dict[str, Any] = {
    "start": _start,
    "turn": _turn,
    "reply": _reply,
    "lost": _lost,
    "judge": _judge,
    "outcome": _outcome,
    "vote": _vote,
    "mail": _mail,
    "step": _step,
    "use": _use,
    "wait": _wait,
    "time": _time,
    "resume": _resume,
    "close": _close,
}

# -- showing -----------------------------------------------------------------------------------------------------------------
_HIDDEN = frozenset(
    (
        "anchor",
        "agent",
        "authority",
        "ballot",
        "budget",
        "bundle",
        "call",
        "capabilities",
        "card",
        "clock",
        "definition",
        "depth",
        "digest",
        "engine",
        "environment",
        "isolation",
        "items",
        "landing",
        "layers",
        "mail",
        "manifest",
        "model",
        "nonce",
        "origin",
        "plugins",
        "policy",
        "profile",
        "register",
        "signature",
        "source",
        "state_",
        "tenant",
        "tier_",
        "tokens",
        "trusted_code",
        "usage",
        "window",
        "default",
        "head",
        "deadline",
        "scope",
        "request",
        "pin",
        "kind",
        "effect",
        "safety",
        "grant",
        "parent_",
        "user",
    )
)


def show(record: r.AnyRecord) -> str:
    fact: Any = record.fact
    words = [
        f"{n}={_word(v)}"
        for n in fact.__struct_fields__
        if n not in _HIDDEN and (v := getattr(fact, n)) is not UNSET and v not in ("", (), False)
    ]
    if isinstance(fact, r.RunSealed):
        words = [f"closed={fact.closed}"]
    return " ".join([f"{record.seq} {record.type}", *words])


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_word(v) for v in value)
    if isinstance(value, r.Reserve):
        return f"{value.account}:{value.amount}"
    if isinstance(value, r.Ask):
        return f"{value.quorum}x{value.chain}"
    if isinstance(value, int) and value >= SECOND:
        return f"{value // SECOND}s"
    return str(value)


def _effect(x: e.Effect) -> str:
    later = f"@{x.not_before // SECOND}s" if x.not_before else ""
    match x:
        case e.Prepare(turn=t, attempt=n):
            return f"Prepare {t}/{n}{later}"
        case e.AskModel(turn=t, attempt=n):
            return f"AskModel {t}/{n}"
        case e.Judge(actions=actions):
            return f"Judge {' '.join(actions)}{later}"
        case e.Execute(action=a, attempt=n) | e.Reconcile(action=a, attempt=n):
            return f"{type(x).__name__} {a}/{n}{later}"
        case _:
            return type(x).__name__
