"""Cedar, embedded: `CedarEngine.load(sources, tools)` answers for the layer *policy*.

Loading parses, types every policy strictly against a schema made from the tools, and refuses what cannot be enforced; deciding
parses nothing. The rule a newcomer would break: Cedar *skips* a policy whose evaluation fails, so a forbid that errors does not
forbid; any diagnostic error is the verdict `error`, whatever the decision beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import cedarpy
import msgspec

from mandamus.core.asks import united
from mandamus.core.canonical import canon, digest
from mandamus.core.cedartext import Plan, Reads, as_plan, cut, picked, plan_of, question, read_by, schema_of
from mandamus.core.definition import ToolSpec
from mandamus.core.envelope import Contract, Contracts
from mandamus.core.facts import Determining, FactEnvelope, Judgement, PrincipalFacts, RuleBook
from mandamus.core.records import Ask
from mandamus.core.rulebook import compiled
from mandamus.drivers.policy_cedar import binding
from mandamus.drivers.policy_cedar.sources import Note, ReadYaml, noted, read_sources
from mandamus.errors import EngineFault, Misuse

ENGINE = f"cedar/{version('cedarpy')}"
NO_MATCH = "no_match"
_SLICES_MAX = 512
_DEFAULT_ALLOW = """@id("default.allow")
@reason("the default of tier dev")
permit (principal, action, resource)
unless
{
  ["financial", "privileged"].contains(resource.safety)
};
"""
_CANARY_SCHEMA = "entity E; action a appliesTo { principal: [E], resource: [E], context: { n: Long } };"
_CANARY = '@id("p") permit (principal, action, resource);\n@id("f") forbid (principal, action, resource) when { context.n * 4 > 0 };'


class CedarEngine:
    """Made by `load`. `parses` counts policy and schema parses (it stands still after load); `slices` counts entity slices built."""

    def __init__(self, notes: Sequence[Note], text: str, tools: Sequence[ToolSpec], book: RuleBook) -> None:
        self.parses = 0
        self.slices = 0
        self._book = book
        self._notes = {f"policy{i}": note for i, note in enumerate(notes)}
        limits = [limit.id for limit in book.limits]
        self._closed = Contracts(tools, frozenset(limits))
        self._contracts = _contracts(tools)
        lean = _Lean(notes, self._contracts, limits, text)
        self._plans = lean.plans
        self._policies = self._parse(cedarpy.PolicySet.from_str, text)
        self._schema = self._parse(cedarpy.Schema.from_json_str, json.dumps(lean.schema))
        self._entities: dict[tuple[PrincipalFacts, str], Any] = {}

    @classmethod
    def load(
        cls,
        sources: Sequence[str | Path | Mapping[str, Any]],
        tools: Sequence[ToolSpec],
        *,
        default: Literal["deny", "allow"] = "deny",
        read_yaml: ReadYaml | None = None,
    ) -> CedarEngine:
        """The engine of folders (every *.cedar and rules.yaml), files and thin rules. Raises Misuse with file:line:col where known.

        `read_yaml` is `yaml_strict.load`; without it rules.yaml is refused, not skipped.
        """
        contracts = _contracts(tools)
        read = read_sources(sources, read_yaml)
        rules = compiled(read.rules, contracts)
        files = [*read.cedar, *((f"{place} (rule {name})", text) for name, place, text in rules.policies)]
        files += [("default: allow", _DEFAULT_ALLOW)] if default == "allow" else []
        if not files:
            raise Misuse("no policy at all", code="MDM-0740", why="nothing would be permitted", fix="policies=[...]: a folder or a rule")
        notes, text = noted(files, rules.chains), "\n".join(body for _, body in files)
        schema = _schema(contracts, [x.id for x in rules.limits])
        texts = {
            "policy/policies.cedar": cedarpy.format_policies(text),
            "policy/rules.json": canon(rules.source).decode(),
            "policy/schema.json": canon(schema).decode(),
        }
        static = {"default": default, "tools": {name: _tool_attributes(name, c) for name, c in contracts.items()}}
        book = RuleBook(
            digest=digest("policy", canon({"engine": "cedar", "static": static, "texts": texts})),
            limits=rules.limits,
            chains=rules.chains,
            on_deny=rules.on_deny,
            texts=texts | {note.id: note.reason or note.name for note in notes},
            default=default,
            covered=tuple(note.id for note in notes),
        )
        return cls(notes, text, tools, book)

    @property
    def book(self) -> RuleBook:
        return self._book

    def digest(self) -> str:
        return self._book.digest

    async def decide(self, facts: FactEnvelope) -> Judgement:
        """The judgement of closed facts. Never raises for a bad question: that is the verdict `error`."""
        try:
            fault = self._closed.fault(facts)
            if fault:
                return self._error(fault)
            return self._judged(binding.ask(self._request(facts), self._policies, self._slice(facts), self._schema))
        except Exception as error:  # a fault of the binding is a fault of the engine: never an allow, never a crash of the loop
            return self._error(f"the engine failed: {type(error).__name__}")

    async def check(self) -> None:
        """Raises EngineFault when this build of Cedar does not report what `decide` relies on."""
        policies, schema = cedarpy.PolicySet.from_str(_CANARY), cedarpy.Schema.from_str(_CANARY_SCHEMA)
        nobody = binding.entities("[]", schema)
        for n, skipped in ((2**62, True), ('"2"', None), (0, False)):
            ask = {"principal": 'E::"p"', "action": 'Action::"a"', "resource": 'E::"r"', "context": f'{{"n": {n}}}'}
            result = binding.ask(ask, policies, nobody, schema)
            refused = result.decision == "NoDecision"
            if refused != (skipped is None) or bool(result.diagnostics.errors) != (skipped is not False):
                raise EngineFault(
                    "Cedar does not report a policy that fails",
                    code="MDM-0520",
                    found=ENGINE,
                    why="a forbid that is skipped in silence does not forbid",
                    fix="install the version that the lock names",
                )

    # -- one decision ------------------------------------------------------------------------------------------------------------
    def _request(self, facts: FactEnvelope) -> dict[str, Any]:
        tool = facts.action.tool
        out: dict[str, Any] = {
            "principal": {"type": "Agent", "id": facts.principal.agent},
            "action": {"type": "Action", "id": tool},
            "resource": {"type": "Tool", "id": tool},
        }
        if plan := self._plans[tool]:  # no context at all is the empty one, and costs half as much to type
            out["context"] = msgspec.json.encode(picked(facts, plan)).decode()
        return out

    def _slice(self, facts: FactEnvelope) -> Any:
        """The principal, its roles and the tool; kept, because a run asks again and again about the same ones."""
        key = (facts.principal, facts.action.tool)
        found = self._entities.get(key)
        if found is None:
            if len(self._entities) >= _SLICES_MAX:
                self._entities.clear()
            self.slices += 1
            text = json.dumps(_entities(facts.principal, facts.action.tool, self._contracts[facts.action.tool]))
            found = self._entities[key] = binding.entities(text, self._schema)
        return found

    def _judged(self, answer: binding.Answer) -> Judgement:
        decision, errors = answer.decision, answer.diagnostics.errors
        if errors or decision == "NoDecision":
            return self._error(*(self._spoken(text) for text in errors or ("no decision",)))
        notes = [self._notes[name] for name in answer.diagnostics.reason]
        if decision == "Allow":
            return self._told("allow", notes) if notes else self._error("an allow that no policy gave")
        if not notes:
            return self._told("deny", notes, reason=NO_MATCH, on_deny=self._book.on_deny)
        if all(note.verdict == "escalate" for note in notes):
            return self._told("escalate", notes, reason="needs_approval", asks=self._asks(notes))
        halts = "halt" in (self._book.on_deny, *(note.on_deny for note in notes))
        return self._told("deny", notes, reason="forbidden", on_deny="halt" if halts else "feedback")

    def _asks(self, notes: Sequence[Note]) -> tuple[Ask, ...]:
        """The largest quorum for each chain, never below what the chain itself demands of its first tier."""
        return united(note.evidence or self._people(note) for note in notes)

    def _people(self, note: Note) -> Ask:
        return Ask(chain=note.chain, quorum=max(note.approvals, self._book.chains[note.chain].tiers[0].quorum))

    def _told(self, verdict: Literal["allow", "escalate", "deny"], notes: Sequence[Note], **more: Any) -> Judgement:
        if len(notes) > 1:
            notes = sorted(notes, key=lambda n: n.id)
        determining = tuple([Determining(id=n.id, name=n.name, reason=n.reason, verdict=n.verdict) for n in notes])
        return Judgement(verdict=verdict, determining=determining, engine=ENGINE, policy=self._book.digest, **more)

    def _error(self, *errors: str) -> Judgement:
        return Judgement(verdict="error", errors=errors, reason="engine_error", engine=ENGINE, policy=self._book.digest)

    def _spoken(self, text: str) -> str:
        """Cedar quotes the values of a request; they may be personal, so only the place of the fault is kept."""
        named = next((note.id for name, note in self._notes.items() if f"`{name}`" in text), "")
        return f"policy {named} failed when it was evaluated" if named else "the facts do not fit the schema of the policy"

    def _parse(self, parser: Any, text: str) -> Any:
        self.parses += 1
        return parser(text)


# -- loading ---------------------------------------------------------------------------------------------------------------------
def _contracts(tools: Sequence[ToolSpec]) -> dict[str, Contract]:
    out: dict[str, Contract] = {}
    for spec in tools:
        if spec.name in out or spec.name in ("invoke", "handoff"):
            what = "two tools of one name" if spec.name in out else "a tool may not be named after a group of actions"
            raise Misuse(what, code="MDM-0741", where=f"tool {spec.name}", why="policies could not tell them apart", fix="rename it")
        out[spec.name] = Contract.of(spec)
    return out


class _Lean:
    """The schema of the facts that the policies read, and what to pick for it. The envelope has judged every fact; Cedar types again
    those that it reads, which costs a third of typing them all.

    Policies are typed against this schema alone: what they do not read cannot change their types. The whole one has the better words
    for what does not fit.
    """

    def __init__(self, notes: Sequence[Note], contracts: dict[str, Contract], limits: Sequence[str], text: str) -> None:
        reads: Reads = set()
        for note in notes:
            read_by(note.conditions, reads)
        self.plans: dict[str, Plan] = {}
        contexts: dict[str, dict[str, Any]] = {}
        for name, contract in contracts.items():
            fields = question(contract, limits)
            self.plans[name] = plan_of(reads, as_plan(fields))
            contexts[name] = cut(fields, self.plans[name])
        bare = question(None, limits)
        self.schema = schema_of(contracts, contexts, cut(bare, plan_of(reads, as_plan(bare))))
        try:
            _validate(text, self.schema, notes)
        except Misuse:
            _validate(text, _schema(contracts, limits), notes)
            raise


def _schema(contracts: dict[str, Contract], limits: Sequence[str]) -> dict[str, Any]:
    """The schema of every fact."""
    return schema_of(contracts, {name: question(c, limits) for name, c in contracts.items()}, question(None, limits))


def _validate(text: str, schema: dict[str, Any], notes: Sequence[Note]) -> None:
    result = cedarpy.validate_policies(text, json.dumps(schema))
    for error in result.errors:
        note = notes[int(error.policy_id.removeprefix("policy"))] if error.policy_id else None
        raise Misuse(
            f"policy {note.id!r} does not fit the tools and facts" if note else "the policies cannot be parsed",
            code="MDM-0742",
            where=note.place if note else "",
            found=error.error.replace(f"for policy `{error.policy_id}`, ", "") if note else error.error,
            why="a policy that cannot be typed may be skipped when it is needed",
            fix="the name of a tool, an argument or a fact; optional ones need `context has amount && ...` first",
        )


def _entities(principal: PrincipalFacts, tool: str, contract: Contract) -> list[dict[str, Any]]:
    roles = [{"type": "Role", "id": role} for role in principal.roles]
    agent = {name: getattr(principal, name) for name in ("annex_iii", "basis", "depth", "purpose", "tenant")}
    return [
        *({"uid": role, "attrs": {}, "parents": []} for role in {r["id"]: r for r in roles}.values()),
        {"uid": {"type": "Agent", "id": principal.agent}, "attrs": agent, "parents": roles},
        {"uid": {"type": "Tool", "id": tool}, "attrs": _tool_attributes(tool, contract), "parents": []},
    ]


def _tool_attributes(name: str, c: Contract) -> dict[str, str]:
    return {"data": c.data, "effect": c.effect, "kind": c.kind, "name": name, "pin": c.pin, "safety": c.safety}
