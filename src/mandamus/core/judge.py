"""One judgement: the facts that are asked, the layers that answer, and how their answers combine.

error > deny > escalate > allow over the layers contract, asks, capability, limits, policy; all are evaluated and named, except that
after a broken contract nobody else is asked, since facts cannot be typed then. A vote is a fact for policy and never a bypass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct

from mandamus.core import facts as f
from mandamus.core.asks import united
from mandamus.core.canonical import INT_MAX, es6_number
from mandamus.core.clock import Clock
from mandamus.core.data import name_of
from mandamus.core.definition import CONSEQUENTIAL, AgentSpec, ToolSpec
from mandamus.core.handed import held, used
from mandamus.core.money import Money, minor
from mandamus.core.records import Ask, Layer
from mandamus.core.run import NOTHING, Action, Run, decision_of

VerdictName = Literal["allow", "escalate", "deny", "error"]
_FORCE = {"error": 3, "deny": 2, "escalate": 1, "allow": 0}


class Answer(Struct, frozen=True, kw_only=True):
    """What one layer says. `code` is the reason code that the model may see."""

    layer: str
    verdict: VerdictName
    of: str = ""
    code: str = ""
    determining: tuple[f.Determining, ...] = ()
    asks: tuple[Ask, ...] = ()
    errors: tuple[str, ...] = ()
    on_deny: str = "feedback"
    engine: str = ""


class Combined(Struct, frozen=True, kw_only=True):
    verdict: VerdictName
    code: str
    layers: tuple[Layer, ...]
    determining: tuple[f.Determining, ...]
    asks: tuple[Ask, ...]
    errors: tuple[str, ...]
    halt: bool
    engine: str


def combine(answers: Sequence[Answer]) -> Combined:
    """The strongest answer wins; its rules are the determining ones. No answer of layer policy is a deny (`no_match`)."""
    worst = answers[0]
    for a in answers:
        if _FORCE[a.verdict] > _FORCE[worst.verdict]:
            worst = a
    verdict, code, engine, halt = worst.verdict, "", "", False
    determining: tuple[f.Determining, ...] = ()
    errors: tuple[str, ...] = ()
    for a in answers:
        engine, errors = engine or a.engine, errors + a.errors
        if a.verdict == verdict:
            code, determining, halt = code or a.code, determining + a.determining, halt or a.on_deny == "halt"
    return Combined(
        verdict=verdict,
        code=code if verdict != "allow" else "",
        layers=tuple([Layer(layer=a.layer, of=a.of or UNSET, verdict=a.verdict) for a in answers]),
        determining=determining,
        asks=united(x for a in answers if a.verdict == verdict for x in a.asks) if verdict == "escalate" else (),
        errors=errors,
        halt=verdict == "deny" and halt,
        engine=engine or "none",
    )


_ALLOWED = {layer: Answer(layer=layer, verdict="allow") for layer in ("contract", "asks", "capability", "limits")}


# -- layers that need no engine ----------------------------------------------------------------------------------------------
def contract(action: Action, spec: ToolSpec | None) -> Answer:
    if action.fault or spec is None:
        return Answer(layer="contract", verdict="deny", code=action.fault or "unknown_tool", determining=(_rule("contract.arguments"),))
    if action.pin != spec.pin:
        return Answer(layer="contract", verdict="deny", code="pin_changed", determining=(_rule("contract.pin"),))
    return _ALLOWED["contract"]


def asks(action: Action, guarded: str = "", met: Sequence[str] = (), late: bool = False) -> Answer:
    """Rejected and expired are verdicts by rule: `ask.rejected` is a person's word, `ask.expired` nobody's, and the log's (`late`).

    `guarded` names the oversight chain of an agent that decides under GDPR, Art. 22: its deeds wait for that chain whatever policy says.
    """
    request = action.request
    if late:
        return Answer(layer="asks", verdict="deny", code="expired", determining=(_rule("ask.expired"),))
    if guarded and guarded not in met and (request is None or decision_of(request) == "approve"):
        rule = f.Determining(id="ask.art22", verdict="escalate")
        return Answer(layer="asks", verdict="escalate", determining=(rule,), asks=(Ask(chain=guarded, quorum=1),))
    if request is None:
        return _ALLOWED["asks"]
    match decision_of(request):
        case "reject":
            return Answer(layer="asks", verdict="deny", code="rejected", determining=(_rule("ask.rejected"),))
        case "":
            return Answer(layer="asks", verdict="deny", code="expired", determining=(_rule("ask.expired"),))
        case _:
            pass
    return _ALLOWED["asks"]


def capability(run: Run, action: Action) -> Answer:
    """The parent's grant; the manifest's own allowlist is the contract (a tool outside it does not exist)."""
    grant = run.genesis.grant
    if grant is not UNSET and action.tool not in grant.tools:
        return Answer(layer="capability", verdict="deny", code="not_granted", determining=(_rule("capability.grant"),))
    return _ALLOWED["capability"]


def limits(run: Run, action: Action, stopped: bool, exhausted: str = "") -> Answer:
    """Accounts of the run itself, and the tenant's or agent's stop. Limits of policy are sums, judged by policy.

    `exhausted`: of what a handoff would hand down, nothing is left. What open children may still use is not free for a call by a tool.
    """
    budget = run.genesis.budget
    if stopped:
        return Answer(layer="limits", verdict="deny", code="stopped", determining=(_rule("limits.stop"),), on_deny="halt")
    if budget.calls is not UNSET and run.spent.calls + (run.spent.below or NOTHING).calls > budget.calls:
        return Answer(layer="limits", verdict="deny", code="calls_exhausted", determining=(_rule("limits.calls"),))
    if action.parent and budget.calls is not UNSET and used(run, "calls") + held(run, "calls") > budget.calls:
        return Answer(layer="limits", verdict="deny", code="calls_exhausted", determining=(_rule("limits.calls"),))
    if exhausted:
        rule = "limits." + exhausted.partition("_")[0]
        return Answer(layer="limits", verdict="deny", code=exhausted, determining=(_rule(rule),))
    return _ALLOWED["limits"]


def policy(judgement: f.Judgement, of: str = "agent") -> Answer:
    code = "engine_error" if judgement.verdict == "error" else ""
    if judgement.verdict == "deny":
        code = "no_match" if judgement.reason == "no_match" else "policy"
    return Answer(
        layer="policy", of=of, verdict=judgement.verdict, code=code, determining=judgement.determining, asks=judgement.asks,
        errors=judgement.errors, on_deny=judgement.on_deny, engine=judgement.engine,
    )  # fmt: skip


def _rule(id: str) -> f.Determining:
    return f.Determining(id=id, verdict="deny")


# -- facts -------------------------------------------------------------------------------------------------------------------
def envelope(
    run: Run,
    agent: AgentSpec,
    tool: ToolSpec,
    action: Action,
    args: dict[str, Any],
    clock: Clock,
    people: f.PeopleFacts,
    sums: dict[str, int],
) -> f.FactEnvelope:
    """The facts of one action. Raises ValueError when an argument has no form that policy can compare (then the verdict is error)."""
    g = run.genesis
    user = f.UserFacts() if g.user is UNSET else f.UserFacts(principal=g.user.principal, roles=g.user.roles)
    return f.FactEnvelope(
        action=f.ActionFacts(
            attempt=action.attempt + 1, data=name_of(tool.data), effect=tool.effect, kind=tool.kind, pin=tool.pin,
            repeats=action.repeats is not None, safety=tool.safety, tool=tool.name,
        ),
        amount=amount(tool, args),
        args={k: v if type(v) is str else fact_value(v) for k, v in args.items() if v is not None},
        clock=clock.local(),
        context=f.ContextFacts(environment=g.environment, tier=g.tier, user=user),
        people=people,
        principal=f.PrincipalFacts(
            agent=agent.name, annex_iii=agent.annex_iii, basis=agent.lawful_basis or "", depth=g.depth, purpose=agent.purpose,
            roles=agent.roles, tenant=g.tenant,
        ),
        run=f.RunFacts(calls=run.spent.calls, denials=run.spent.denials, tokens=run.spent.input + run.spent.output, turn=run.turn),
        sums=sums,
    )  # fmt: skip


def amount(tool: ToolSpec, args: dict[str, Any]) -> Any:
    """AmountFacts of the argument that the contract names, or UNSET when the tool moves no money."""
    if not tool.amount:
        return UNSET
    value = args[tool.amount]
    money = Money(value["amount"], value["currency"], value.get("decimals", 2))
    to = args.get(tool.counterparty) if tool.counterparty else None
    return f.AmountFacts(counterparty="" if to is None else str(to), currency=money.currency, minor=minor(money))


def counterparty(tool: ToolSpec, args: dict[str, Any]) -> str:
    """The argument that the contract names, as text, and as `amount` says it; "" when it names none, or it was left out."""
    to = args.get(tool.counterparty) if tool.counterparty else None
    return "" if to is None else str(to)


def fact_value(value: Any) -> Any:
    """As policy may compare it: floats as canonical text, integers beyond 2^53-1 as digits, null left out."""
    t = type(value)
    if t is float:
        return es6_number(value)
    if t is int and not -INT_MAX <= value <= INT_MAX:
        return str(value)
    if t is dict:
        return {k: fact_value(v) for k, v in value.items() if v is not None}
    if t is list or t is tuple:
        return [fact_value(v) for v in value if v is not None]
    return value


def terminates(chain: f.Chain, tool: ToolSpec) -> bool:
    """What a rejection does: by default it ends the run for tools that move money or power, and is told to the model for others."""
    return (chain.on_reject or ("terminate" if tool.safety in CONSEQUENTIAL else "feedback")) == "terminate"


# -- cards -------------------------------------------------------------------------------------------------------------------
def card(
    request: str,
    action_digest: str,
    tool: ToolSpec,
    args: dict[str, Any],
    rules: Sequence[f.Determining],
    texts: dict[str, str],
    needed: int,
    expires: int,
    about: str,
) -> dict[str, Any]:
    """The card `mandamus.card/1` (docs/concepts/ballot-format.md): every argument in full, the rules in words, what is signed."""
    return {
        "about": about,
        "action": action_digest,
        "effect": tool.description.split("\n")[0] or tool.name,
        "expires": expires,
        "fields": [{"label": k, "value": _shown(args[k])} for k in _order(tool, args)],
        "locale": "en",
        "needed": needed,
        "request": request,
        "reversible": tool.effect in ("read",),
        "rules": [{"id": d.id, "text": d.reason or texts.get(d.id, "")} for d in rules],
        "tool": tool.name,
        "v": "mandamus.card/1",
    }


def _order(tool: ToolSpec, args: dict[str, Any]) -> list[str]:
    """As the contract names them: the order in which a model wrote them is not recorded, and a card is made again on replay."""
    place = {name: n for n, name in enumerate(tool.input_schema.get("properties", {}))}
    return sorted(args, key=lambda name: (place.get(name, len(place)), name))


def _shown(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"amount", "currency", "decimals"}:
        return str(Money(value["amount"], value["currency"], value["decimals"]))
    return value
