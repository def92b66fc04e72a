"""`mandamus-verify.py` as a module, and one question put to it and to the library: `agreed(raw, trust)` raises where they differ.

The rule a newcomer would break: the two share no code, so only what they say is compared: exit code, verdict, state, and each claim's
outcome. Words may differ.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from mandamus.proof import Report, verify
from mandamus.proof.trust import Trust
from mandamus.proof.verify import Beside

SCRIPT = Path(__file__).parents[2] / "verifiers" / "mandamus-verify.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mandamus_verify_single", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SINGLE: Any = load()


def text_of(trust: Trust) -> str:
    """A trust file that says the same."""
    rows = [f"log {key}" for key in trust.logs]
    rows += [f"bundle {name} {key}" for name, key in trust.bundles]
    rows += [f"approver {principal} {key}" for principal, key in trust.approvers.values()]
    rows += [f"role {role} {' '.join(holders)}" for role, holders in trust.roles.items()]
    rows += [f"admin {key}" for key in trust.admins]
    rows += [f"author {name} {key}" for name, key in trust.authors]
    rows += [f"frontend {name} {key}" for name, key in trust.frontends]
    rows += [f"anchor {key.name} {key}" for key in trust.anchors]
    rows += [f"witness {name} {key}" for name, key in trust.witnesses.items()]
    rows += [f"group {name} {group.k} {' '.join(group.members)}" for name, group in trust.groups.items()]
    rows += [f"quorum {trust.quorum}"] if trust.quorum is not None else []
    return "\n".join(rows) + "\n"


def said(report: Report | Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of a report."""
    plain = report.as_json() if isinstance(report, Report) else report
    claims = [(claim["name"], claim["outcome"], claim["exit_code"]) for claim in plain["claims"]]
    return {"exit_code": plain["exit_code"], "verdict": plain["verdict"], "state": plain.get("state", "unknown"), "claims": claims}


def by_single(raw: bytes, trust: str | None, beside: Beside | None = None, tiles: str | None = None) -> dict[str, Any]:
    b = beside or Beside()
    last = None if b.last is None else {origin: {"root": head.root, "size": head.size} for origin, head in b.last.items()}
    given = {"views": dict(b.views), "blobs": dict(b.blobs), "max_age": b.max_age, "last": last, "tiles": tiles}
    report: dict[str, Any] = SINGLE.verify(raw, None if trust is None else trust.encode(), now=b.now, **given)
    return report


def agreed(raw: bytes, trust: Trust | None, beside: Beside | None = None, *, regenerated: Mapping[str, bytes] | None = None) -> Report:
    """The library's report, after the single file has said the same (where it can be asked)."""
    if regenerated is not None:
        beside = Beside(views=regenerated)
    report = verify(raw, trust, beside)
    if raw.startswith(b'{"bundle":"mandamus-log/') or (beside is not None and (beside.tiles is not None or beside.stamp is not None)):
        return report  # bundles of periods, readers of stamps, and tiles that are no files are for the library only
    other = by_single(raw, None if trust is None else text_of(trust), beside)
    assert said(other) == said(report), f"library: {report.broken}\nsingle file: {other.get('broken')}"
    return report
