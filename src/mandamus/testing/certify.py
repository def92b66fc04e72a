"""`certify("agent.py")`: find the agent in a file, a module or a manifest, and crash it everywhere. `certify_folder("desk/")`: all of it.

A Python file holds one Agent (or names it: `file.py:attr`; a function without arguments is a factory) and may hold PROMPT. A folder is
its agent.yaml, or else every Python file in it that holds an Agent. The rule a newcomer would break: the files are run here, as code;
certify only what you would run.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from mandamus.agent import Agent
from mandamus.drivers import code_import
from mandamus.errors import Misuse
from mandamus.testing.crash import Made, Report, crash_everywhere
from mandamus.tool import Tool

DEFAULT_PROMPT = "Do your task."


def certify(target: str | Path, prompt: str = "", *, sqlite: int = 24, pairs: int = 0, seed: int = 0) -> Report:
    """`target` is FILE.py, FILE.py:attr, module:attr or agent.yaml. Raises Misuse when no agent is found there."""
    made, said = find(str(target))
    return crash_everywhere(made, prompt or said or DEFAULT_PROMPT, sqlite=sqlite, pairs=pairs, seed=seed)


def find(target: str) -> tuple[Made, str]:
    """(agent or factory, its PROMPT)."""
    place, attr = code_import.split(target)
    if place.endswith((".yaml", ".yml")):
        return Agent.load(place), ""
    module = _module(place)
    said = getattr(module, "PROMPT", "")
    return _agent(module, place, attr), said if isinstance(said, str) else ""


def _module(place: str) -> ModuleType:
    try:
        return code_import.from_file(Path(place), anew=True) if place.endswith(".py") else code_import.by_name(place, Path.cwd())
    except FileNotFoundError:
        raise Misuse("there is no such file", code="MDM-0283", where=place, fix="mandamus certify FILE.py") from None
    except ModuleNotFoundError:
        raise Misuse("there is no such module", code="MDM-0283", where=place, fix="module:attr, or a path FILE.py") from None
    except code_import.CodeError as error:
        raise Misuse(f"the file does not run: {error.what}", code="MDM-0284", where=error.at, fix=f"python {place}") from error


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


# -- a folder ----------------------------------------------------------------------------------------------------------------
class Whole(Struct, frozen=True, kw_only=True):
    """Every agent of a folder. `skipped`: files that hold none, and why that matters; `ok` only when all that was tried is."""

    reports: dict[str, Report]
    skipped: dict[str, str]

    @property
    def ok(self) -> bool:
        return bool(self.reports) and all(report.ok for report in self.reports.values())

    def as_dict(self) -> dict[str, Any]:
        reports = [{"target": target, **report.as_dict()} for target, report in self.reports.items()]
        return {"ok": self.ok, "reports": reports, "skipped": self.skipped}

    def text(self) -> str:
        rows = []
        for target, report in self.reports.items():
            rows += [target, *(f"  {line}" for line in report.text().split("\n")), ""]
        rows += [f"not certified: {target} ({why})" for target, why in self.skipped.items()]
        unsafe = [target for target, report in self.reports.items() if not report.ok]
        verdict = f"NOT SAFE: {', '.join(unsafe)}" if unsafe else "nothing twice, nothing unaccounted"
        return "\n".join([*rows, f"{len(self.reports)} agent{'s' * (len(self.reports) != 1)} of this folder: {verdict}"])


def certify_folder(folder: str | Path, prompt: str = "", *, sqlite: int = 24, pairs: int = 0, seed: int = 0) -> Whole:
    """One verdict over a folder. Raises Misuse when it holds no agent at all, or a file that does not run."""
    targets, skipped = _agents_of(Path(folder))
    if not targets:
        raise Misuse(
            "there is no agent in this folder", code="MDM-0283", where=str(folder), expected="agent.yaml, or FILE.py with an Agent",
            found=", ".join(skipped)[:80] or "neither", fix="mandamus certify FILE.py",
        )  # fmt: skip
    return Whole(reports={x: certify(x, prompt, sqlite=sqlite, pairs=pairs, seed=seed) for x in targets}, skipped=skipped)


def _agents_of(folder: Path) -> tuple[list[str], dict[str, str]]:
    manifest = next((folder / name for name in ("agent.yaml", "agent.yml") if (folder / name).is_file()), None)
    if manifest is not None:
        return [str(manifest)], {}
    targets: list[str] = []
    skipped: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith(("test_", "_", "conftest.", "setup.")):
            continue
        found = vars(_module(str(path)))
        agents = {id(x): name for name, x in reversed(found.items()) if isinstance(x, Agent)}
        if agents:
            targets += [f"{path}:{name}" for name in sorted(agents.values())]
        else:
            tools = any(isinstance(x, Tool) for x in found.values())
            skipped[str(path)] = "it holds tools, and no agent that calls them" if tools else "it holds no agent"
    return targets, skipped


__all__ = ["Whole", "certify", "certify_folder", "find"]
