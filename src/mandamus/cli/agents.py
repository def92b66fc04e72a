"""AGENT on the command line: a path to agent.yaml, FILE.py:attr or module:attr, as the Agent it names.

Also remembers, beside the ledger, where the agent of a run was found, so that `mandamus resume RUN` needs no second word. The rule a
newcomer would break: that note is a convenience, never evidence; the run knows its agent by the digest of its definition.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mandamus.errors import MandamusError, Misuse

if TYPE_CHECKING:
    from mandamus.agent import Agent

_FORMS = "agent.yaml, FILE.py:attr or module:attr"
_TELLING = (ImportError, SyntaxError, NameError, AttributeError)
# What Python itself says of a call: names of arguments, no values.
_CALL = re.compile(r"[\w.<>]+\(\) (missing \d+ required|got an unexpected keyword argument|takes |got multiple values)").match


def load(reference: str) -> Agent[Any]:
    """Raises Misuse: no such file, module or attribute, or code that fails while it is read."""
    if reference.endswith((".yaml", ".yml")):
        return _from_manifest(reference)
    place, _, attr = (
        reference.rpartition(":") if ":" in reference and not re.fullmatch(r"[A-Za-z]:[\\/][^:]*", reference) else (reference, "", "")
    )
    module = _from_file(place) if place.endswith(".py") else _from_module(place, reference)
    return _agent(module, attr, reference)


def _from_manifest(path: str) -> Agent[Any]:
    from mandamus.agent import Agent

    if not Path(path).is_file():
        raise Misuse("there is no such file", code="MDM-0014", where=path, expected=_FORMS)
    return Agent.load(path)


def _from_file(path: str) -> ModuleType:
    file = Path(path).resolve()
    if not file.is_file():
        raise Misuse("there is no such file", code="MDM-0014", where=path, expected=_FORMS)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    name = file.stem if file.stem.isidentifier() else "agent_file"
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) == str(file):
            return known
        name = f"agent_{name}"  # never in the place of another module of that name
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise Misuse("this file cannot be imported", code="MDM-0014", where=path, expected=_FORMS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except MandamusError as error:
        sys.modules.pop(name, None)
        raise _placed(path, error) from error
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise _failed(path, error) from error
    return module


def _from_module(name: str, reference: str) -> ModuleType:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise Misuse(f"{reference[:80]!a} names no agent", code="MDM-0014", expected=_FORMS, fix="mandamus run agent.py:agent PROMPT")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except MandamusError as error:
        raise _placed(name, error) from error
    except ModuleNotFoundError as error:
        if error.name == name.split(".")[0]:
            fix = f"{name}.py:agent" if Path(f"{name}.py").exists() else "a path ends in .py or .yaml"
            raise Misuse(f"there is no module {name!r}", code="MDM-0014", expected=_FORMS, fix=fix) from None
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _placed(where: str, error: MandamusError) -> MandamusError:
    """A refusal of ours, with the line of theirs that it is about."""
    d = error.diagnosis
    ours = os.path.dirname(os.path.dirname(__file__))
    if d.where or type(error) is not Misuse:
        return error
    return Misuse(d.what, code=d.code, where=_line(where, error, ours), expected=d.expected, found=d.found, why=d.why, fix=d.fix)


def _line(where: str, error: BaseException, but: str) -> str:
    """file:line of the innermost frame that is not in the folder `but`."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename and not f.filename.startswith(but)]
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else where


def _failed(where: str, error: BaseException) -> Misuse:
    """Which line of theirs; its text only where Python wrote it, for a text of theirs may hold anything."""
    at = _line(where, error, __file__)
    if isinstance(error, SyntaxError) and error.lineno:
        at = f"{os.path.basename(error.filename or where)}:{error.lineno}"
    what = (
        f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
        if isinstance(error, _TELLING) or (isinstance(error, TypeError) and _CALL(str(error)))
        else type(error).__name__
    )
    return Misuse(
        f"the agent's code fails while it is read ({what[:200]})", code="MDM-0016", where=at, fix="mend that line; --debug shows the whole"
    )


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
def remember(folder: Path | None, definition: str, reference: str) -> None:
    """Beside the ledger, one small file per definition."""
    if folder is None:
        return
    place, sep, attr = reference.rpartition(":")
    path = place if sep and place.endswith(".py") else reference if reference.endswith((".yaml", ".yml", ".py")) else ""
    if path:
        try:
            moved = os.path.relpath(Path(path).resolve(), folder.resolve())
        except ValueError:  # another drive
            moved = str(Path(path).resolve())
        reference = moved + (f":{attr}" if path == place and sep else "")
    note = folder / "agents" / definition
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(reference + "\n", encoding="utf-8")


def recalled(folder: Path | None, definition: str) -> str:
    """The reference that was noted, or ""."""
    if folder is None:
        return ""
    note = folder / "agents" / definition
    if not note.is_file():
        return ""
    reference = note.read_text(encoding="utf-8").strip()
    place, sep, attr = reference.rpartition(":")
    path = place if sep and place.endswith(".py") else reference if reference.endswith((".yaml", ".yml", ".py")) else ""
    if not path:
        return reference
    return os.path.normpath(folder / path) + (f":{attr}" if path == place and sep else "")
