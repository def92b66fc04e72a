"""What the law asks before a run may start: all reasons at once, none waived by a flag.

`reasons(agent, …) -> tuple[Reason, ...]`; an empty tuple means that the run may open. Nothing here says "compliant". The rule a
newcomer would break: a type checker or a constructor may have been passed by, so what they refuse is asked again here.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence

from msgspec import Struct

from mandamus.core.data import (
    BUILTIN_RETENTIONS,
    Art9,
    Confidential,
    NoSubject,
    Personal,
    Public,
    Retention,
    SpecialCategory,
    SubjectRef,
    bases_of,
    name_of,
)  # fmt: skip
from mandamus.core.definition import CONSEQUENTIAL, AgentSpec, ToolSpec
from mandamus.core.facts import Chain, RuleBook
from mandamus.core.records import RunOpened
from mandamus.core.retention import below_floor

_ART9 = typing.get_args(Art9)


class Reason(Struct, frozen=True, kw_only=True):
    """One refusal: its code, the articles behind it, what is wrong and how to mend it."""

    code: str
    articles: str
    what: str
    fix: str


def reasons(
    agent: AgentSpec,
    book: RuleBook,
    *,
    tier: str,
    isolation: str,
    approvers: Sequence[str],
    roles: Mapping[str, Sequence[str]],
    author: str = "",
    stranger: str = "",
) -> tuple[Reason, ...]:
    """`author` signed agent.yaml, by a key that is trusted; `stranger` is the key that signed it, when nobody here knows that one."""
    out: list[Reason] = []
    retentions = {**BUILTIN_RETENTIONS, **{r.id: r for r in agent.retentions}}
    for tool in agent.tools:
        out += _of_tool(agent, tool, retentions)
    if any(_personal(t) for t in agent.tools) and not agent.purpose.strip():
        out.append(
            _reason(
                "purpose_missing", "GDPR 5(1)(b)", "tools touch personal data and the agent states no purpose", 'purpose="what it is for"'
            )
        )
    for low in below_floor(agent):
        what = f"retention {low['id']!r} keeps records or decisions {low['found']}, profile {agent.profile!r} demands {low['floor']}"
        fix = f"hash_days and decision_days of at least {low['floor']}, or another retention"
        out.append(_reason("retention_floor", "AI Act 19, 26(6)", what, fix))
    out += _oversight(agent, book, approvers, roles)
    out += _controls(agent, book)
    out += _wiring(agent, book, tier, isolation, author, stranger)
    return tuple(out)


def changed(agent: AgentSpec, opened: RunOpened | None) -> tuple[Reason, ...]:
    """A run of consequence to people is not carried on by another agent than the one that began it."""
    if opened is None or opened.definition == agent.digest() or (agent.annex_iii == "none" and not agent.art22_decision):
        return ()
    what = "the agent (its model, instructions, tools or duties) is another one than when the run was opened"
    fix = "resume with the agent as it was, or begin a new run"
    return (_reason("definition_changed", "AI Act 14; GDPR 22", what, fix),)


def refusal(code: str, what: str, fix: str, articles: str = "") -> Reason:
    """A reason that only the shell can find: a manifest that is not true of what was loaded."""
    return _reason(code, articles, what, fix)


def _reason(code: str, articles: str, what: str, fix: str) -> Reason:
    return Reason(code=code, articles=articles, what=what, fix=fix)


# -- tools -------------------------------------------------------------------------------------------------------------------
def _personal(tool: ToolSpec) -> bool:
    data = tool.data
    return isinstance(data, Personal | SpecialCategory) or (isinstance(data, Confidential) and bool(data.allowed_lawful_bases))


def _of_tool(agent: AgentSpec, tool: ToolSpec, retentions: Mapping[str, Retention]) -> list[Reason]:
    data, what = tool.data, f"tool {tool.name!r} ({name_of(tool.data)})"
    retention = retentions.get(data.retention) if data.retention else None
    out = _subject(tool, what)
    if retention is None and (data.retention or not isinstance(data, Public)):
        known = ", ".join(sorted(retentions))
        fix = f"one of {known}, or retentions=[Retention(...)]"
        out.append(_reason("retention_missing", "GDPR 5(1)(e)", f"{what}: retention {data.retention!r} is no policy", fix))
    if isinstance(data, SpecialCategory) and data.art9_basis not in _ART9:
        fix = "art9_basis= one of " + ", ".join(_ART9)
        out.append(_reason("art9_missing", "GDPR 9(2)", f"{what} names no basis of Art. 9", fix))
    return out + (_basis(agent, tool, what, retention) if _personal(tool) else [])


def _subject(tool: ToolSpec, what: str) -> list[Reason]:
    """A reasoned absence will do, but not where personal data is inside."""
    ref = getattr(tool.data, "subject", None)
    if isinstance(tool.data, Public) or isinstance(ref, SubjectRef) or (isinstance(ref, NoSubject) and not _personal(tool)):
        return []
    fix = 'subject=subject("the argument that names the person")'
    return [_reason("subject_missing", "GDPR 5(1)(c), 17", f"{what} does not say whose data it touches", fix)]


def _basis(agent: AgentSpec, tool: ToolSpec, what: str, retention: Retention | None) -> list[Reason]:
    allowed = set(bases_of(tool.data))
    if retention is not None and retention.allowed_bases:
        allowed &= set(retention.allowed_bases)
    if agent.lawful_basis is None:
        fix = f"lawful_basis={sorted(allowed)[0] if allowed else 'contract'!r}"
        return [_reason("basis_missing", "GDPR 5(1)(a), 6", f"{what} needs a lawful basis and the agent has none", fix)]
    if agent.lawful_basis not in allowed:
        fix = f"one of {', '.join(sorted(allowed)) or 'none: tool and retention exclude each other'}"
        return [_reason("basis_mismatch", "GDPR 5(1)(a), 6", f"{what} does not allow {agent.lawful_basis!r}", fix)]
    return []


# -- people ------------------------------------------------------------------------------------------------------------------
def _oversight(agent: AgentSpec, book: RuleBook, approvers: Sequence[str], roles: Mapping[str, Sequence[str]]) -> list[Reason]:
    out: list[Reason] = []
    chain = book.chains.get(agent.oversight)
    live = chain is not None and _live(chain, approvers, roles)
    fix = 'oversight="CHAIN" of the policies, and enrol its approvers: mandamus key enroll'
    if agent.annex_iii != "none" and not live:
        out.append(
            _reason("oversight_missing", "AI Act 14, 26(2)", f"Annex III domain {agent.annex_iii!r} without a live approval chain", fix)
        )
    if agent.art22_decision and not live:
        out.append(_reason("art22_unguarded", "GDPR 22", "an Art. 22 decision could leave without an approval", fix))
    elif agent.art22_decision and not any(t.safety != "read" for t in agent.tools):
        what = "an Art. 22 decision could leave as the final answer, which nobody approves"
        out.append(
            _reason("art22_unguarded", "GDPR 22", what, 'give the decision a tool (safety="write" or more): its call waits for people')
        )
    return out


def _live(chain: Chain, approvers: Sequence[str], roles: Mapping[str, Sequence[str]]) -> bool:
    """Some tier can be met by people who are enrolled."""
    for tier in chain.tiers:
        people = {
            p for p in approvers if not tier.of or p in tier.of or any(x.startswith("role:") and p in roles.get(x[5:], ()) for x in tier.of)
        }
        if len(people) >= max(1, tier.quorum):
            return True
    return False


def _controls(agent: AgentSpec, book: RuleBook) -> list[Reason]:
    """Controls that cannot fail are none."""
    out: list[Reason] = []
    for chain in book.chains.values():
        if any(t.quorum < 1 for t in chain.tiers):
            out.append(
                _reason(
                    "noop_control", "AI Act 14", f"chain {chain.id!r} has a quorum of 0: a control that cannot fail", "quorum: 1 or more"
                )
            )
        if chain.id == agent.oversight and any("requester" not in t.sod for t in chain.tiers):
            what = f"chain {chain.id!r} lets the requester approve: oversight of oneself"
            out.append(_reason("noop_control", "AI Act 14", what, "sod: [requester, author]"))
    return out


# -- wiring ------------------------------------------------------------------------------------------------------------------
def _wiring(agent: AgentSpec, book: RuleBook, tier: str, isolation: str, author: str, stranger: str) -> list[Reason]:
    out: list[Reason] = []
    if tier != "dev":
        if isolation == "in_process":
            what = f"tier {tier!r} needs a sandbox and tools run in process here"
            out.append(_reason("isolation_missing", "", what, "tier dev, until the machine has the sandbox"))
        if not author:
            who = f"; {stranger} has, whom the trust file does not know" if stranger else ""
            fix = "sign agent.yaml, and trust its author: mandamus key trust --add 'author NAME VKEY'"
            out.append(_reason("manifest_unsigned", "", f"tier {tier!r} needs an agent.yaml that a trusted author has signed{who}", fix))
        if book.default == "allow":
            out.append(_reason("dev_default", "", f"default: allow in tier {tier!r}", "default: deny"))
    elif book.default == "allow" and any(t.safety in CONSEQUENTIAL for t in agent.tools):
        fix = "default: deny, and a permit for what may happen"
        out.append(_reason("dev_default", "", "default: allow beside financial or privileged tools", fix))
    return out


def needs_approval(agent: AgentSpec, tool: ToolSpec) -> bool:
    """Under Art. 22 every deed of the agent waits for its oversight chain, whatever the policies say."""
    return agent.art22_decision and tool.safety != "read"
