"""A software bill of materials in CycloneDX 1.6: `of("mandamus", version, lock, epoch)` → bytes, the same for the same lock.

What a wheel needs comes from the lock (exact versions, and the SHA-256 of every file that an installer may take); which of them needs
which, and their licences, from the metadata of the packages as they are installed from that lock.

The rule a newcomer would break: nothing is guessed. A package that is not installed in the version of the lock is an error, not a gap.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement

_SPACE = uuid.UUID("6f7a4f0a-31d5-5c9e-9d5a-6d2a5b1c0e4d")  # of our serial numbers
_line = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$")
_hash = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Locked:
    """One line of the lock."""

    def __init__(self, name: str, version: str, marker: str) -> None:
        self.name, self.version, self.marker = _plain(name), version, marker
        self.hashes: list[str] = []

    @property
    def ref(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def locked(text: str) -> dict[str, Locked]:
    """The packages of a lock, by name. Raises ValueError for a line that is neither a package nor one of its hashes."""
    out: dict[str, Locked] = {}
    last: Locked | None = None
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if found := _line.match(line):
            last = Locked(found[1], found[2], (found[3] or "").strip())
            out[last.name] = last
        elif last is not None and (digests := _hash.findall(line)):
            last.hashes += digests
        else:
            raise ValueError(f"the lock has a line that is not understood: {line!r}")
    return out


def of(name: str, version: str, direct: Iterable[str], lock: dict[str, Locked], epoch: int, digest: str) -> bytes:
    """`direct`: what the wheel itself asks for; `digest`: the wheel's SHA-256."""
    root = f"pkg:pypi/{name}@{version}"
    edges: dict[str, list[str]] = {root: []}
    needed: dict[str, Locked] = {}
    todo = [(root, requirement) for requirement in direct]
    while todo:
        parent, wanted = todo.pop()
        requirement = Requirement(wanted)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        one = lock[_plain(requirement.name)]
        edges.setdefault(parent, []).append(one.ref)
        if one.ref not in edges:
            edges[one.ref] = []
            needed[one.name] = one
            todo += [(one.ref, text) for text in _installed(one).requires or ()]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "library", "bom-ref": root, "name": name, "version": version, "purl": root,
                "licenses": [{"license": {"id": "Apache-2.0"}}], "hashes": [{"alg": "SHA-256", "content": digest}],
            },
        },
        "components": [_component(one) for _, one in sorted(needed.items())],
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(below))} for ref, below in sorted(edges.items())],
    }  # fmt: skip
    serial = uuid.uuid5(_SPACE, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": f"urn:uuid:{serial}"}, indent=1, sort_keys=True).encode() + b"\n"


def _component(one: Locked) -> dict[str, Any]:
    files = [{"name": "lock:sha256", "value": digest} for digest in sorted(one.hashes)]
    said = _installed(one).metadata.json.get("license_expression")
    licence: dict[str, Any] = {"licenses": [{"expression": said}]} if said else {}
    marker = [{"name": "lock:marker", "value": one.marker}] if one.marker else []
    return {
        "type": "library", "bom-ref": one.ref, "name": one.name, "version": one.version, "purl": one.ref,
        "properties": marker + files, **licence,
    }  # fmt: skip


def _installed(one: Locked) -> Distribution:
    try:
        found = distribution(one.name)
    except PackageNotFoundError:
        raise ValueError(f"{one.name} stands in the lock and is not installed: make the environment from the lock first") from None
    if found.version != one.version:
        raise ValueError(f"{one.name} {found.version} is installed, the lock says {one.version}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
