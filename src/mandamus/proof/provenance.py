"""Where a release comes from: an in-toto Statement v1 with a SLSA v1 provenance, in a DSSE envelope. `statement(...)`, `check(...)`.

    made = check(envelope, [key], builder="urn:mandamus:builder:ci", artifacts={"mandamus-0.1.0-py3-none-any.whl": sha256})

The rule a newcomer would break: a provenance that is signed says nothing yet. Who signed (a key that is pinned), which builder it speaks
of, and that it names *these* files by name and digest, are all demanded by the caller and never read from the envelope.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from mandamus.core.canonical import accept, canon
from mandamus.errors import ProofError
from mandamus.proof import dsse
from mandamus.proof.keys import VKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:mandamus:build:release:1"
SUBJECTS_MAX = 256
_sha256 = re.compile(r"[0-9a-f]{64}").fullmatch
_commit = re.compile(r"[0-9a-f]{40}").fullmatch


class Provenance(Struct, frozen=True):
    """What was proved. `absent`: subjects of which no file was given; `keys` signed it."""

    builder: str
    commit: str
    subjects: dict[str, str]
    absent: tuple[str, ...]
    keys: tuple[VKey, ...]


def statement(
    subjects: Mapping[str, str], *, builder: str, version: Mapping[str, str], source: str, commit: str, parameters: Mapping[str, Any],
    materials: Sequence[Mapping[str, Any]], invocation: str, started: str, finished: str,
) -> bytes:  # fmt: skip
    """Canonical bytes, to be signed. `source`: where the code lies, as a URI; times are RFC 3339, to the second."""
    git = {"digest": {"gitCommit": commit}, "uri": source}
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {**parameters, "source": git},
            "internalParameters": {},
            "resolvedDependencies": [git, *materials],
        },
        "runDetails": {
            "builder": {"id": builder, "version": dict(version)},
            "metadata": {"finishedOn": finished, "invocationId": invocation, "startedOn": started},
        },
    }
    named = [{"digest": {"sha256": digest}, "name": name} for name, digest in sorted(subjects.items())]
    return canon({"_type": STATEMENT, "predicate": predicate, "predicateType": PREDICATE, "subject": named})


def check(
    envelope: bytes, keys: Sequence[VKey], *, builder: str, artifacts: Mapping[str, str], commit: str = "", threshold: int = 1
) -> Provenance:
    """`artifacts`: name → SHA-256 of the files at hand, each of which must be named so. Raises ProofError.

    `commit`: the one that was expected, where the caller knows it.
    """
    signed = dsse.check(envelope, PAYLOAD_TYPE, keys, threshold)
    try:
        said, made_by, subjects, found = _parts(accept(signed.payload))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProofError(f"this is no provenance of a release: {error}", code="MDM-0929") from None
    if made_by != builder:
        raise ProofError("another builder made this release", code="MDM-0929", expected=builder, found=ascii(made_by[:80]))
    if said != BUILD_TYPE:
        raise ProofError("it was built in another way", code="MDM-0929", expected=BUILD_TYPE, found=ascii(said[:80]))
    if commit and found != commit:
        raise ProofError("it was built from another commit", code="MDM-0929", expected=commit, found=found)
    if not artifacts:
        raise ProofError("there is no file to check", code="MDM-0929", expected="the files of the release beside their provenance")
    for name, digest in artifacts.items():
        if subjects.get(name) != digest:
            raise ProofError(
                "a file is not the one that was built", code="MDM-0929", where=name, expected=subjects.get(name, "a subject of this name"),
                found=digest, why="it was changed after the build, or is no part of this release",
            )  # fmt: skip
    return Provenance(made_by, found, subjects, tuple(sorted(subjects.keys() - artifacts.keys())), signed.keys)


def _parts(value: Any) -> tuple[str, str, dict[str, str], str]:
    """(build type, builder, subjects, commit). Raises ValueError, TypeError or KeyError for any other shape."""
    if value["_type"] != STATEMENT or value["predicateType"] != PREDICATE:
        raise ValueError("its type is another one")
    definition, details = value["predicate"]["buildDefinition"], value["predicate"]["runDetails"]
    subjects: dict[str, str] = {}
    for one in value["subject"]:
        name, digest = one["name"], one["digest"]["sha256"]
        if set(one) != {"name", "digest"} or type(name) is not str or not _sha256(digest) or name in subjects:
            raise ValueError("a subject is not one name and one digest, each name once")
        subjects[name] = digest
    commit = definition["externalParameters"]["source"]["digest"]["gitCommit"]
    if not 1 <= len(subjects) <= SUBJECTS_MAX or not _commit(commit):
        raise ValueError("it names no files, too many, or no commit")
    build_type, builder = definition["buildType"], details["builder"]["id"]
    if type(build_type) is not str or type(builder) is not str:
        raise ValueError("a field has another type")
    return build_type, builder, subjects, commit
