"""What lies in a bundle beside its records: policies, manifest, key hints, views, and the digests that were signed. One claim each.

The rule a newcomer would break: a text counts only under the digest that a record names; what no record names is a hint for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mandamus.core.canonical import accept
from mandamus.core.digests import manifest_digest, policy_digest
from mandamus.core.records import ActionJudged, AnyRecord
from mandamus.errors import Misuse
from mandamus.proof import bundle, views
from mandamus.proof.keys import parse_vkey
from mandamus.proof.report import Broken, Claim, Finding, some
from mandamus.proof.shown import Key


def policies(box: bundle.Container, records: Sequence[AnyRecord]) -> Claim:
    """Each source has the digest that it stands under, and each digest that judged the run is there."""
    digests = set()
    for number, raw in enumerate(box.sections["policy"], box.first["policy"]):
        value = fields_of(raw, {"digest", "source"}, number)
        found = policy_digest(value["source"]) if type(value["source"]) is dict else "no object"
        if found != value["digest"]:
            raise Broken(
                Finding("this policy has another digest", code="MDM-0646", line=number, expected=str(value["digest"])[:80], found=found)
            )
        digests.add(value["digest"])
    opened: Any = records[0].fact
    judged = {record.fact.bundle for record in records if isinstance(record.fact, ActionJudged)}
    absent = sorted({opened.policy, *judged} - digests - {""})
    if absent:
        return Claim("policies", "not in this bundle", f"the source of policy {absent[0][:12]} are not shown", 3)
    return Claim("policies", "proven", f"{some(len(digests), 'policy', 'policies')} with the digests that judged the run")


def sources(box: bundle.Container) -> dict[str, dict[str, Any]]:
    """Sources of policies that have the digest they stand under; what else is there, `policies` names."""
    out: dict[str, dict[str, Any]] = {}
    for number, raw in enumerate(box.sections["policy"], box.first["policy"]):
        value = fields_of(raw, {"digest", "source"}, number)
        if type(value["source"]) is dict and policy_digest(value["source"]) == value["digest"]:
            out[value["digest"]] = value["source"]
    return out


def manifest(box: bundle.Container, named: str) -> Claim:
    number = box.first["manifest"]
    text = fields_of(box.sections["manifest"][0], {"text"}, number)["text"]
    if type(text) is not str:
        raise Broken(Finding("the manifest is no text", code="MDM-0646", line=number))
    if not named and not text:
        return Claim("manifest", "proven", "the genesis names none: the agent is defined in code (see `definition`)")
    if manifest_digest(text) != named:
        what = "this is not the manifest that the genesis names"
        raise Broken(Finding(what, code="MDM-0646", line=number, expected=named, found=manifest_digest(text)))
    return Claim("manifest", "proven", "the manifest is the one that the genesis names")


def key_hints(box: bundle.Container) -> Claim:
    """Hints for people: well-formed, never used."""
    for number, raw in enumerate(box.sections["key"], box.first["key"]):
        value = fields_of(raw, {"key", "role"}, number)
        try:
            parse_vkey(str(value["key"]))
        except Misuse as error:
            raise Broken(Finding(error.diagnosis.what, code="MDM-0646", line=number)) from None
    count = len(box.sections["key"])
    return Claim("key hints", "proven", f"{count} keys named in the bundle; none of them is a reason to trust it")


def compared(given: Mapping[str, bytes], records: Sequence[AnyRecord], values: Mapping[Key, Any]) -> Claim:
    """The views that came with the bundle, against those that the records make."""
    if not given:
        return Claim("views", "not in this bundle", "no views were given to compare", 0)
    made = views.render(records, values)
    for name, raw in sorted(given.items()):
        if made.get(name) != raw:
            what = f"view {name[:80]} is not what the records say"
            raise Broken(Finding(what, code="MDM-0660", fix="mandamus bundle RUN --views DIR writes it anew"))
    return Claim("views", "proven", f"{some(len(given), 'view')}, as the records say")


def section_digests(box: bundle.Container, said: Sequence[bundle.Section]) -> Claim:
    """The net under everything: no byte of any section is another one than was signed."""
    for section in said:
        found = bundle.section_digest(section.name, box.sections[section.name])
        if found != section.digest:
            first = box.first[section.name]
            what = f"section {section.name} (lines {first} to {first + section.count - 1}) is not the one that was signed"
            raise Broken(Finding(what, code="MDM-0645", line=first, expected=section.digest, found=found))
    return Claim("sections", "proven", "every section has the digest that was signed")


def fields_of(raw: bytes, fields: set[str], number: int) -> dict[str, Any]:
    """The object of a line, with exactly these fields. Raises Broken."""
    try:
        value = accept(raw)
    except ValueError as error:
        raise Broken(Finding(f"this line is not canonical JSON: {str(error)[:80]}", code="MDM-0646", line=number)) from None
    if type(value) is not dict or value.keys() != fields:
        raise Broken(
            Finding("this line has other fields than its section", code="MDM-0646", line=number, expected=", ".join(sorted(fields)))
        )
    return value
