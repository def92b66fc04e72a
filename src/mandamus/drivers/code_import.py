"""`module:attr` of a file beside a manifest, as the object it names: `resolve("app:send_payment", folder, where)`.

The rule a newcomer would break: two folders may each hold an app.py. A module of the same name that came from elsewhere is never
taken for the one beside the manifest.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from mandamus.core.strict import did_you_mean
from mandamus.errors import MandamusError, Misuse

CODE = "MDM-0761"
_reference = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", re.ASCII)


def is_reference(text: str) -> bool:
    return _reference.fullmatch(text) is not None


def resolve(text: str, folder: Path, where: str) -> tuple[Any, str]:
    """(the object, the name by which this process finds it again). Raises Misuse at `where`; the code's own Misuse passes."""
    match = _reference.fullmatch(text)
    if match is None:
        raise Misuse(f"{text[:80]!r} is no name of code", code=CODE, where=where, expected="module:attr, such as app:send_payment")
    module = _module(match[1], folder.resolve(), where)
    found: Any = module
    for step in match[2].split("."):
        if not hasattr(found, step):
            known = [n for n in vars(found) if not n.startswith("_")] if hasattr(found, "__dict__") else []
            raise Misuse(f"{match[1]} has no {step!r}", code=CODE, where=where, fix=did_you_mean(step, known))
        found = getattr(found, step)
    return found, f"{module.__name__}:{match[2]}"


def _module(name: str, folder: Path, where: str) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    beside = folder / f"{name.replace('.', '/')}.py"
    try:
        if beside.is_file() and "." not in name:
            return _from_file(name, beside)
        return importlib.import_module(name)
    except MandamusError:
        raise
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            known = [p.stem for p in folder.glob("*.py")]
            raise Misuse(f"there is no module {name!r}", code=CODE, where=where, fix=did_you_mean(name, known)) from None
        raise _failed(name, where, error) from error
    except Exception as error:
        raise _failed(name, where, error) from error


def _from_file(name: str, file: Path) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(file):
        name = f"{name}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
        known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} has no loader")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _failed(name: str, where: str, error: Exception) -> Misuse:
    """The line of theirs and the kind of error; the text of an error may hold anything, so it is shown only by its traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename and f.filename != __file__]
    line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else name
    if isinstance(error, SyntaxError) and error.lineno:
        line = f"{Path(error.filename or name).name}:{error.lineno}"
    return Misuse(f"{name} fails while it is read ({type(error).__name__} at {line})", code=CODE, where=where, fix="mend that line")
