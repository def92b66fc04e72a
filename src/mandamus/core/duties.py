"""What the law asks before a run may start (COMPLIANCE, sections 1 and 3): all reasons at once, none waived by a flag.

`reasons(agent, …) -> tuple[Reason, ...]`; an empty tuple means that the run may open. Nothing here says "compliant".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from mandamus.core.data import BUILTIN_RETENTIONS, Confidential, Personal, Public, Retention, SpecialCategory, bases_of, name_of
from mandamus.core.definition import CONSEQUENTIAL, AgentSpec, ToolSpec
from mandamus.core.facts import Chain, RuleBook


class Reason(Struct, frozen=True, kw_only=True):
    """One refusal: its code, the articles behind it, what is wrong and how to mend it."""

    code: str
    articles: str
    what: str
    fix: str


def reasons(agent: AgentSpec, book: RuleBook, *, tier: str, isolation: str, approvers: Sequence[str], roles: Mapping[str, Sequence[str]]) -> tuple[Reason, ...]:
    out: list[Reason] = []
    retentions = {**BUILTIN_RETENTIONS, **{r.id: r for r in agent.retentions}}
    for tool in agent.tools:
        out += _of_tool(agent, tool, retentions)
    if any(_personal(t) for t in agent.tools) and not agent.purpose.strip():
        out.append(_reason("purpose_missing", "GDPR 5(1)(b)", "tools touch personal data and the agent states no purpose", 'purpose="what it is for"'))
    out += _oversight(agent, book, approvers, roles)
    out += _wiring(agent, book, tier, isolation)
    for chain in book.chains.values():
        if any(t.quorum < 1 for t in chain.tiers):
            out.append(_reason("noop_control", "AI Act 14", f"chain {chain.id!r} has a quorum of 0: a control that cannot fail", "quorum: 1 or more"))
    return tuple(out)


def _reason(code: str, articles: str, what: str, fix: str) -> Reason:
    return Reason(code=code, articles=articles, what=what, fix=fix)


def _personal(tool: ToolSpec) -> bool:
    return isinstance(tool.data, Personal | SpecialCategory) or (isinstance(tool.data, Confidential) and bool(tool.data.allowed_lawful_bases))


def _of_tool(agent: AgentSpec, tool: ToolSpec, retentions: Mapping[str, Retention]) -> list[Reason]:
    out: list[Reason] = []
    data, what = tool.data, f"tool {tool.name!r} ({name_of(tool.data)})"
    retention = retentions.get(data.retention) if data.retention else None
    if not isinstance(data, Public) and retention is None:
        known = ", ".join(sorted(retentions))
        out.append(_reason("retention_missing", "GDPR 5(1)(e)", f"{what}: retention {data.retention!r} is no policy", f"one of {known}, or retentions=[Retention(...)]"))
    if not _personal(tool):
        return out
    allowed = set(bases_of(data))
    if retention is not None and retention.allowed_bases:
        allowed &= set(retention.allowed_bases)
    if agent.lawful_basis is None:
        out.append(_reason("basis_missing", "GDPR 5(1)(a), 6", f"{what} needs a lawful basis and the agent has none", f"lawful_basis={sorted(allowed)[0] if allowed else 'contract'!r}"))
    elif agent.lawful_basis not in allowed:
        out.append(_reason("basis_mismatch", "GDPR 5(1)(a), 6", f"{what} does not allow {agent.lawful_basis!r}", f"one of {', '.join(sorted(allowed)) or 'none: tool and retention exclude each other'}"))
    return out


def _oversight(agent: AgentSpec, book: RuleBook, approvers: Sequence[str], roles: Mapping[str, Sequence[str]]) -> list[Reason]:
    out: list[Reason] = []
    chain = book.chains.get(agent.oversight)
    if agent.annex_iii != "none" and (chain is None or not _live(chain, approvers, roles)):
        out.append(
            _reason("oversight_missing", "AI Act 14, 26(2)", f"Annex III domain {agent.annex_iii!r} without a live approval chain", 'oversight="CHAIN", and enrol its approvers: mandamus key enroll')
        )
    if agent.art22_decision and chain is None:
        out.append(_reason("art22_unguarded", "GDPR 22", "an Art. 22 decision could leave without an approval", 'oversight="CHAIN" of the policies'))
    return out


def _live(chain: Chain, approvers: Sequence[str], roles: Mapping[str, Sequence[str]]) -> bool:
    """Some tier can be met by people who are enrolled."""
    for tier in chain.tiers:
        people = {p for p in approvers if not tier.of or p in tier.of or any(x.startswith("role:") and p in roles.get(x[5:], ()) for x in tier.of)}
        if len(people) >= tier.quorum:
            return True
    return False


def _wiring(agent: AgentSpec, book: RuleBook, tier: str, isolation: str) -> list[Reason]:
    out: list[Reason] = []
    if tier != "dev" and isolation == "in_process":
        out.append(_reason("isolation_missing", "", f"tier {tier!r} needs a sandbox and tools run in process here", "tier dev, until the machine has the sandbox"))
    if book.default == "allow":
        if tier != "dev":
            out.append(_reason("dev_default", "", f"default: allow in tier {tier!r}", "default: deny"))
        elif any(t.safety in CONSEQUENTIAL for t in agent.tools):
            out.append(_reason("dev_default", "", "default: allow beside financial or privileged tools", "default: deny, and a permit for what may happen"))
    return out
