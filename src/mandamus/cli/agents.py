"""AGENT on the command line: a path to agent.yaml, FILE.py:attr or module:attr, as the Agent it names.

Also remembers, beside the ledger, where the agent of each run was found, so that `mandamus resume RUN` needs no second word. The rule a
newcomer would break: that note is a convenience, never evidence, and it is of one run: a looser agent of the same name and definition,
run later, must never be what an older run is resumed with.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mandamus import _files
from mandamus.drivers import code_import
from mandamus.errors import MandamusError, Misuse

if TYPE_CHECKING:
    from mandamus.agent import Agent

_FORMS = "agent.yaml, FILE.py:attr or module:attr"


def load(reference: str) -> Agent[Any]:
    """Raises Misuse: no such file, module or attribute, or code that fails while it is read."""
    if reference.endswith((".yaml", ".yml")):
        return _from_manifest(reference)
    place, attr = code_import.split(reference)
    return _agent(_module(place, reference), attr, reference)


def _from_manifest(path: str) -> Agent[Any]:
    from mandamus.agent import Agent

    if not Path(path).is_file():
        raise Misuse("there is no such file", code="MDM-0014", where=path, expected=_FORMS)
    return Agent.load(path)


def _module(place: str, reference: str) -> ModuleType:
    try:
        return code_import.from_file(Path(place)) if place.endswith(".py") else code_import.by_name(place, Path.cwd())
    except FileNotFoundError:
        raise Misuse("there is no such file", code="MDM-0014", where=place, expected=_FORMS) from None
    except ModuleNotFoundError:
        raise _no_module(place, reference) from None
    except code_import.CodeError as error:
        fix = "mend that line; --debug shows the whole"
        raise Misuse(f"the agent's code fails while it is read ({error.what})", code="MDM-0016", where=error.at, fix=fix) from error
    except MandamusError as error:
        raise _placed(place, error) from error


def _no_module(name: str, reference: str) -> Misuse:
    if not all(part.isidentifier() for part in name.split(".")):
        return Misuse(f"{reference[:80]!a} names no agent", code="MDM-0014", expected=_FORMS, fix="mandamus run agent.py:agent PROMPT")
    fix = f"{name}.py:agent" if Path(f"{name}.py").exists() else "a path ends in .py or .yaml"
    return Misuse(f"there is no module {name!r}", code="MDM-0014", expected=_FORMS, fix=fix)


def _placed(where: str, error: MandamusError) -> MandamusError:
    """A refusal of ours, with the line of theirs that it is about."""
    d = error.diagnosis
    if d.where or type(error) is not Misuse:
        return error
    at = code_import.line_of(error, where)
    return Misuse(d.what, code=d.code, where=at, expected=d.expected, found=d.found, why=d.why, fix=d.fix)


def _agent(module: ModuleType, attr: str, reference: str) -> Agent[Any]:
    from mandamus.agent import Agent

    agents = {name: x for name, x in vars(module).items() if isinstance(x, Agent)}
    if not attr:
        if "agent" in agents or len(agents) == 1:
            return agents["agent"] if "agent" in agents else next(iter(agents.values()))
        raise Misuse(
            f"{len(agents)} agents stand in {reference}",
            code="MDM-0014",
            expected="one, or :attr",
            found=", ".join(agents) or "none",
            fix=f"{reference}:NAME",
        )
    if attr not in agents:
        near = difflib.get_close_matches(attr, agents, n=1)
        found = "something else" if hasattr(module, attr) else "nothing"
        fix = f"did you mean {near[0]}?" if near else ", ".join(agents) or "agent = Agent(...)"
        raise Misuse(f"{attr!r} is no agent", code="MDM-0014", where=reference, expected="an Agent", found=found, fix=fix)
    return agents[attr]


# -- where a run's agent was found ---------------------------------------------------------------------------------------------
def remember(folder: Path | None, run: str, reference: str) -> None:
    """Beside the ledger, one small file per run: another run of an agent that looks the same says nothing about this one."""
    if folder is None:
        return
    path, attr = _path_of(reference)
    if path:
        try:
            moved = os.path.relpath(Path(path).resolve(), folder.resolve())
        except ValueError:  # another drive
            moved = str(Path(path).resolve())
        reference = moved + attr
    _files.write(folder / "agents" / run, f"{reference}\n".encode())


def forget(folder: Path | None, run: str) -> None:
    """Of a run that was never opened."""
    if folder is not None:
        (folder / "agents" / run).unlink(missing_ok=True)


def recalled(folder: Path | None, run: str) -> str:
    """The reference that was noted for this very run, or ""."""
    note = folder / "agents" / run if folder else None
    if folder is None or note is None or not note.is_file():
        return ""
    reference = note.read_text(encoding="utf-8").strip()
    path, attr = _path_of(reference)
    return os.path.normpath(folder / path) + attr if path else reference


def _path_of(reference: str) -> tuple[str, str]:
    """(path, ":attr" or "") of a reference that names a file, else ("", "")."""
    place, sep, attr = reference.rpartition(":")
    if sep and place.endswith(".py"):
        return place, f":{attr}"
    return (reference, "") if reference.endswith((".yaml", ".yml", ".py")) else ("", "")
