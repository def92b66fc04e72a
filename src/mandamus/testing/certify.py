"""`certify("agent.py")`: find the agent in a file, a module or a manifest, and crash it everywhere.

A Python file holds one Agent (or names it: `file.py:attr`; a function without arguments is a factory) and may hold PROMPT. The rule
a newcomer would break: the file is run here, as code; certify only what you would run.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mandamus.agent import Agent
from mandamus.errors import MandamusError, Misuse
from mandamus.testing.crash import Made, Report, crash_everywhere

DEFAULT_PROMPT = "Do your task."


def certify(target: str | Path, prompt: str = "", *, sqlite: int = 24, pairs: int = 0, seed: int = 0) -> Report:
    """`target` is FILE.py, FILE.py:attr, module:attr or agent.yaml. Raises Misuse when no agent is found there."""
    made, said = find(str(target))
    return crash_everywhere(made, prompt or said or DEFAULT_PROMPT, sqlite=sqlite, pairs=pairs, seed=seed)


def find(target: str) -> tuple[Made, str]:
    """(agent or factory, its PROMPT)."""
    place, _, attr = target.rpartition(":") if ":" in target else (target, "", "")
    if len(place) == 1 and attr.startswith("\\"):  # a drive letter is no module
        place, attr = target, ""
    if place.endswith((".yaml", ".yml")):
        return Agent.load(place), ""
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    said = getattr(module, "PROMPT", "")
    return _agent(module, place, attr), said if isinstance(said, str) else ""


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Misuse("there is no such file", code="MDM-0283", where=str(path), fix="mandamus certify FILE.py")
    name = f"_certified_{path.stem}_{abs(hash(str(path.resolve())))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations of tools are resolved in it
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except MandamusError:
        raise
    except Exception as error:
        raise Misuse(f"the file does not run: {type(error).__name__}", code="MDM-0284", where=str(path), fix=f"python {path}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Misuse(
            "there is no such module", code="MDM-0283", where=name, found=type(error).__name__, fix="module:attr, or a path FILE.py"
        ) from None


def _agent(module: ModuleType, place: str, attr: str) -> Made:
    if attr:
        found: Any = getattr(module, attr, None)
        if isinstance(found, Agent) or callable(found):
            chosen: Made = found
            return chosen
        raise Misuse(f"{attr!r} is no agent and no function that makes one", code="MDM-0285", where=place, found=type(found).__name__)
    agents = {name: x for name, x in vars(module).items() if isinstance(x, Agent)}
    if "agent" in agents:
        return agents["agent"]
    if len({id(x) for x in agents.values()}) == 1:
        return next(iter(agents.values()))
    known = ", ".join(sorted(agents)) or "none"
    raise Misuse(
        "which agent?", code="MDM-0285", where=place, expected="one Agent, or one called `agent`", found=known, fix=f"{place}:NAME"
    )


__all__ = ["certify", "find"]
