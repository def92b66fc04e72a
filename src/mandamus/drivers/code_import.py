"""The one way to import a user's code: `from_file(path)`, `by_name(name, folder)`, `resolve("app:send_payment", folder, where)`.

agent.yaml, the command line and the crash certifier all come here. The rule a newcomer would break: two folders may each hold an
app.py. A module of the same name that came from elsewhere is never taken for the one that was asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import itertools
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from mandamus.core.strict import did_you_mean
from mandamus.errors import MandamusError, Misuse

CODE = "MDM-0761"
_reference = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", re.ASCII)
_drive = re.compile(r"[A-Za-z]:[\\/][^:]*")
_TELLING = (ImportError, SyntaxError, NameError, AttributeError)
# What Python itself says of a call: names of arguments, no values.
_CALL = re.compile(r"[\w.<>]+\(\) (missing \d+ required|got an unexpected keyword argument|takes |got multiple values)").match
_anew = itertools.count(1)
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


class CodeError(Exception):
    """Code that fails while it is read: `what` may be shown, `at` is the FILE:LINE of theirs. Each caller words it for its reader."""

    def __init__(self, what: str, at: str) -> None:
        super().__init__(what, at)
        self.what, self.at = what, at


# -- what a reference says --------------------------------------------------------------------------------------------------------
def is_reference(text: str) -> bool:
    return _reference.fullmatch(text) is not None


def split(reference: str) -> tuple[str, str]:
    """(place, attr) of FILE.py:attr or module:attr; attr is "" when none is named. The colon of a drive letter divides nothing."""
    if ":" not in reference or _drive.fullmatch(reference):
        return reference, ""
    place, _, attr = reference.rpartition(":")
    return place, attr


def resolve(text: str, folder: Path, where: str) -> tuple[Any, str]:
    """(the object, the name by which this process finds it again). Raises Misuse at `where`; the code's own Misuse passes."""
    match = _reference.fullmatch(text)
    if match is None:
        raise Misuse(f"{text[:80]!r} is no name of code", code=CODE, where=where, expected="module:attr, such as app:send_payment")
    module = _beside(match[1], folder, where)
    found: Any = module
    for step in match[2].split("."):
        if not hasattr(found, step):
            known = [n for n in vars(found) if not n.startswith("_")] if hasattr(found, "__dict__") else []
            raise Misuse(f"{match[1]} has no {step!r}", code=CODE, where=where, fix=did_you_mean(step, known))
        found = getattr(found, step)
    return found, f"{module.__name__}:{match[2]}"


def _beside(name: str, folder: Path, where: str) -> ModuleType:
    try:
        return by_name(name, folder)
    except ModuleNotFoundError:
        known = [p.stem for p in folder.glob("*.py")]
        raise Misuse(f"there is no module {name!r}", code=CODE, where=where, fix=did_you_mean(name, known)) from None
    except CodeError as error:
        raise Misuse(f"{name} fails while it is read ({error.what} at {error.at})", code=CODE, where=where, fix="mend that line") from error


# -- importing --------------------------------------------------------------------------------------------------------------------
def by_name(name: str, folder: Path) -> ModuleType:
    """The module of that name: the one in `folder` first. Raises ModuleNotFoundError when there is none, CodeError when it fails."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ModuleNotFoundError(f"{name!r} is no name of a module", name=name)
    file = folder.resolve() / f"{name}.py"
    if file.is_file():
        return from_file(file)
    _reachable(folder.resolve())
    try:
        with _reading(name):
            return importlib.import_module(name)
    except CodeError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise cause from None  # it is this module that is missing, not one that it imports
        raise


def from_file(path: Path, *, anew: bool = False) -> ModuleType:
    """The module in this file, read once. `anew`: a module of its own, with a world of its own, whoever has read the file before.

    Raises FileNotFoundError, CodeError; a MandamusError of the code passes.
    """
    file = path.resolve()
    if not file.is_file():
        raise FileNotFoundError(str(path))
    _reachable(file.parent)
    name = file.stem if file.stem.isidentifier() else "agent_file"
    if anew:
        return _executed(f"{name}_{next(_anew)}", file)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(file):
        name = f"{name}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"  # never in the place of another module of that name
        known = sys.modules.get(name)
    return known or _executed(name, file)


def _executed(name: str, file: Path) -> ModuleType:
    with _reading(file.name):
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file.name} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # annotations of tools are resolved in it
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return module


def _reachable(folder: Path) -> None:
    """What the code imports in its turn is looked for beside it."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


# -- what went wrong --------------------------------------------------------------------------------------------------------------
@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Whatever their code raises becomes CodeError; a refusal of ours says enough itself."""
    try:
        yield
    except MandamusError:
        raise
    except (Exception, SystemExit) as error:
        raise CodeError(_told(error), line_of(error, name)) from error


def line_of(error: BaseException, where: str) -> str:
    """FILE:LINE of the innermost line that is theirs; `where` when none is."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{os.path.basename(error.filename or where)}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename and not f.filename.startswith(_OURS)]
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else where


def _told(error: BaseException) -> str:
    """The kind of error; its text only where Python wrote it, for a text of theirs may hold anything."""
    if not (isinstance(error, _TELLING) or (isinstance(error, TypeError) and _CALL(str(error)))):
        return type(error).__name__
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"[:200]
