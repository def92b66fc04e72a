"""What a run's genesis binds of its agent, and what of it is not true today: `since(agent, default, opened, home, run)`.

A run that agent.yaml began is carried on by that agent: model, instructions, tools, budget and duties by the definition's digest, the
policy too when agent.yaml bound it. The rule a newcomer would break: a kept text is only believed when its digest is the one in genesis,
and a difference that cannot be shown is refused all the same.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from mandamus.core.canonical import canon, digest, parse
from mandamus.core.digests import manifest_digest
from mandamus.core.duties import Reason, refusal
from mandamus.errors import Misuse

if TYPE_CHECKING:
    from mandamus.core.definition import AgentSpec
    from mandamus.core.records import RunOpened
    from mandamus.manifest import Loaded

LIMIT = 120
# Keys of agent.yaml that no digest of genesis holds but the text's own. Policies may change: that stands on chain log, and voids votes.
_TEXT_ONLY = ("deps", "max_output", "timeout", "stream", "default", "output")


def definition(spec: AgentSpec) -> bytes:
    """The bytes whose digest genesis names."""
    return canon(msgspec.to_builtins(spec))


def since(spec: AgentSpec, loaded: Loaded | None, policy: str, opened: RunOpened | None, home: Any, run: str) -> tuple[Reason, ...]:
    """One reason per difference to the agent.yaml that began `run`; none for a run that code began."""
    if opened is None or not opened.manifest:
        return ()
    found = differences(spec, opened.definition, home)
    old = home.manifest(opened.manifest)
    if loaded is None:
        found.append(("agent.yaml", opened.manifest[:12], "an agent in code, which nobody signed"))
    elif loaded.digest != opened.manifest:
        found += _texts(old if manifest_digest(old) == opened.manifest else "", loaded, opened.manifest)
    if (bound := _read(old).get("policy_digest")) and bound != policy:
        found.append(("policy_digest", str(bound)[:12], policy[:12]))
    way = f"put it back as it was, or begin a new run with the agent as it is: mandamus fork {run} --at 0"
    return tuple(refusal("manifest_drift", f"{what} is not what run {run} began with: - {a} + {b}", way) for what, a, b in found)


def differences(spec: AgentSpec, opened: str, home: Any) -> list[tuple[str, str, str]]:
    """(what, then, now) of every part of the definition that is another one."""
    now = definition(spec)
    if digest("definition", now) == opened:
        return []
    kept = home.definition(opened)
    if not kept or digest("definition", kept) != opened:
        return [("the agent's definition", opened[:12], digest("definition", now)[:12])]
    then, today = parse(kept), parse(now)
    out = _tools(then.pop("tools", []), today.pop("tools", []))
    return out + [(name, _shown(name, then.get(name)), _shown(name, today.get(name))) for name in _others(then, today)]


def _others(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]


def _tools(then: list[Any], now: list[Any]) -> list[tuple[str, str, str]]:
    """Each tool by its pin, and in which of its parts it differs."""
    before, after = ({t["name"]: t for t in tools} for tools in (then, now))
    out = []
    for name in _others(before, after):
        a, b = before.get(name, {}), after.get(name, {})
        parts = ", ".join(x for x in _others(a, b) if x != "pin") if a and b else ""
        pins = [f"pin {t['pin'][:12]}" if t else "nothing" for t in (a, b)]
        out.append((f"tool {name!r}" + (f" ({parts})" if parts else ""), pins[0], pins[1]))
    return out or [("the order of the tools", ", ".join(before), ", ".join(after))] * (then != now)


def _shown(name: str, value: Any) -> str:
    """A setting as it is written; a text that may be long by its digest."""
    if name == "instructions" and isinstance(value, str):
        return "sha256 " + hashlib.sha256(value.encode()).hexdigest()[:12]
    text = "nothing" if value in (None, "", [], {}) else value if isinstance(value, str) else canon(value).decode()
    return text if len(text) <= LIMIT else text[:LIMIT] + "..."


def _texts(old: str, loaded: Loaded, bound: str) -> list[tuple[str, str, str]]:
    """What of agent.yaml itself differs, beyond what the definition tells; words of no effect, such as comments, are none of it."""
    if not old:
        return [("agent.yaml", bound[:12], loaded.digest[:12] + ", and the text of then is not kept here")]
    then, now = _read(old), _read(loaded.text)
    return [(name, _shown(name, then.get(name)), _shown(name, now.get(name))) for name in _TEXT_ONLY if then.get(name) != now.get(name)]


def _read(text: str) -> dict[str, Any]:
    from mandamus.drivers import yaml_strict  # an agent in code needs no YAML

    try:
        value = yaml_strict.parse(text).value if text else {}
    except Misuse:  # it was read once; a kept copy that cannot be read any more tells nothing
        return {}
    return value if isinstance(value, dict) else {}
