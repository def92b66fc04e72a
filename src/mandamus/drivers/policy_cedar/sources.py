"""Where Cedar policies come from: folders, files and thin rules, read into text with places, and what each policy says of itself.

Every refusal here names file:line:column. The rule a newcomer would break: an annotation that nobody enforces is a promise that
does not hold, so one that is unknown, or known and not built, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import cedarpy
from msgspec import Struct

from mandamus.core.asks import WITHIN_MAX_MS, WITHIN_MS, level
from mandamus.core.cedartext import Reads, read_by
from mandamus.core.facts import DEFAULT_CHAIN, Chain
from mandamus.core.records import Ask
from mandamus.core.rulebook import Source
from mandamus.core.strict import NoFile, Places, did_you_mean
from mandamus.errors import Misuse

KNOWN = ("id", "name", "verdict", "approvals", "chain", "evidence", "reason", "obligation", "on_deny")
_NOT_BUILT = ("obligation",)
_evidence = re.compile(r"(sealed|witnessed)(?: within ([1-9][0-9]{0,5})([smhd]))?").fullmatch
_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}").fullmatch
_rest = re.compile(r'//[^\n]*|"(?:[^"\\]|\\.)*"|;|[^\s";/]+|/|\s+|"', re.DOTALL)


class Note(Struct, frozen=True):
    """What one policy says of itself, and the conditions it reads facts by."""

    id: str
    place: str
    verdict: Literal["allow", "deny", "escalate"]
    name: str
    reason: str
    approvals: int
    chain: str
    evidence: Ask | None
    on_deny: str
    conditions: Any


class Tree(Places, Protocol):
    """What a reader of YAML gives: plain data, and where each part stands."""

    @property
    def value(self) -> Any: ...


ReadYaml = Callable[[Path], Tree]


class Texts(Struct, frozen=True):
    """Cedar files (name, text) in order, and documents of thin rules."""

    cedar: list[tuple[str, str]]
    rules: list[Source]
    read_yaml: ReadYaml | None


def read_sources(sources: Sequence[str | Path | Mapping[str, Any]], read_yaml: ReadYaml | None) -> Texts:
    """Raises Misuse for a path that is not there, a folder without policies, a file of another kind."""
    texts, thin = Texts([], [], read_yaml), []
    for place, source in enumerate(sources):
        if isinstance(source, Mapping):
            if source.keys() & {"rules", "chains", "on_deny"} and not source.keys() & {"id", "rule"}:
                texts.rules.append(Source(dict(source), NoFile(f"policies[{place}]")))  # a whole document, as rules.yaml holds it
            else:
                thin.append(dict(source))
        else:
            _read_path(Path(source), texts)
    if thin:
        texts.rules.append(Source({"rules": thin}, NoFile("policies")))
    return texts


def _read_path(path: Path, texts: Texts) -> None:
    if path.is_dir():
        files = sorted(path.iterdir())
        _refuse_strays(files)
        wanted = [f for f in files if f.suffix == ".cedar" or f.name == "rules.yaml"]
        if not wanted:
            raise Misuse("a folder without policies", code="MDM-0740", where=str(path), expected="*.cedar or rules.yaml")
        for file in wanted:
            _read_file(file, texts)
    elif path.is_file():
        _read_file(path, texts)
    else:
        raise Misuse(
            "no such folder or file", code="MDM-0740", where=str(path), fix="policies are named by path, or written as {rule, params}"
        )


def _refuse_strays(files: list[Path]) -> None:
    """A rules file under another name would be forgotten in silence."""
    for file in files:
        if file.name != "rules.yaml" and re.fullmatch(r"rules?\.(ya?ml|json)|.*\.cedar\.\w+|rules?", file.name, re.IGNORECASE):
            raise Misuse("this file would not be read", code="MDM-0740", where=str(file), fix="call it rules.yaml, or NAME.cedar")


def _read_file(file: Path, texts: Texts) -> None:
    if file.suffix == ".cedar":
        try:
            texts.cedar.append((str(file), file.read_text("utf-8")))
        except (OSError, UnicodeDecodeError):
            raise Misuse("the file cannot be read as UTF-8", code="MDM-0740", where=str(file)) from None
    elif file.suffix in (".yaml", ".yml"):
        if texts.read_yaml is None:
            fix = "CedarEngine.load(..., read_yaml=mandamus.drivers.yaml_strict.load)"
            raise Misuse("rules in YAML need a reader", code="MDM-0747", where=str(file), why="drivers do not know each other", fix=fix)
        tree = texts.read_yaml(file)
        texts.rules.append(Source({} if tree.value is None else tree.value, tree))
    else:
        raise Misuse("not a policy file", code="MDM-0740", where=str(file), expected=".cedar or .yaml")


def noted(files: Sequence[tuple[str, str]], chains: dict[str, Chain]) -> list[Note]:
    """One note per policy, in the order in which Cedar numbers them. Adds the default chain where a policy asks it."""
    notes: list[Note] = []
    places = [starts(text) for _, text in files]
    for (file, _), found, bodies in zip(files, places, _bodies(files, [len(p) for p in places]), strict=True):
        for i, body in enumerate(bodies):
            line, column = found[i] if i < len(found) else (1, 1)
            notes.append(_note(body, f"{file}:{line}:{column}", chains))
    seen: dict[str, str] = {}
    for note in notes:
        if note.id in seen:
            raise Misuse(
                f"the id {note.id!r} is there twice", code="MDM-0744", where=note.place, found=f"also {seen[note.id]}", fix="rename one"
            )
        seen[note.id] = note.place
    return notes


def starts(text: str) -> list[tuple[int, int]]:
    """Line and column of each policy: Cedar ends one by the only semicolon outside of texts and comments."""
    out, fresh = [], True
    for match in _rest.finditer(text):
        token = match[0]
        if token.isspace() or token.startswith("//"):
            continue
        if fresh:
            out.append((text.count("\n", 0, match.start()) + 1, match.start() - text.rfind("\n", 0, match.start())))
        fresh = token == ";"
    return out


def _bodies(files: Sequence[tuple[str, str]], counts: Sequence[int]) -> list[list[dict[str, Any]]]:
    """The policies of each file. All files are parsed in one go, as the engine does; what that cannot tell apart is parsed file by file."""
    if len(files) > 1:
        try:
            together = iter(_parsed("", "\n".join(text for _, text in files)))
            bodies = [list(islice(together, n)) for n in counts]
            if [len(b) for b in bodies] == list(counts) and next(together, None) is None:
                return bodies
        except Misuse:
            pass  # said below, of the file that it is about
    return [_parsed(file, text) for file, text in files]


def _parsed(file: str, text: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(cedarpy.policies_to_json_str(text))
    except ValueError as error:
        raise Misuse("not Cedar", code="MDM-0743", where=_broken_at(file, text), found=str(error)[:200]) from None
    if document["templates"]:
        raise Misuse(
            "a template (?principal, ?resource) permits nothing by itself", code="MDM-0743", where=file, fix="write the policy out"
        )
    policies: dict[str, Any] = document["staticPolicies"]
    return [policies[name] for name in sorted(policies, key=lambda n: int(n.removeprefix("policy")))]


def _broken_at(file: str, text: str) -> str:
    """The first policy that does not parse alone."""
    places = starts(text)
    lines = text.splitlines(keepends=True)
    offsets = [sum(len(x) for x in lines[: line - 1]) + column - 1 for line, column in places] + [len(text)]
    for (line, column), begin, end in zip(places, offsets, offsets[1:], strict=False):
        try:
            cedarpy.policies_to_json_str(text[begin:end])
        except ValueError:
            return f"{file}:{line}:{column}"
    return file


def _note(body: dict[str, Any], place: str, chains: dict[str, Chain]) -> Note:
    said: dict[str, str] = {k: v or "" for k, v in body.get("annotations", {}).items()}
    for word in said:
        _known_word(word, place)
    if not _id(said.get("id", "")):
        why = "records name the rules that decided, in letters, digits, . _ -"
        raise Misuse("a policy without a usable @id", code="MDM-0744", where=place, why=why, fix='@id("pay.small")')
    verdict = _verdict(body["effect"], said, place)
    note = Note(
        id=said["id"],
        place=place,
        verdict=verdict,
        name=said.get("name", ""),
        reason=said.get("reason", ""),
        approvals=_approvals(said, verdict, place),
        chain=said.get("chain", DEFAULT_CHAIN.id) if verdict == "escalate" and "evidence" not in said else "",
        evidence=_level(said, verdict, place),
        on_deny=_on_deny(said, verdict, place),
        conditions=body["conditions"],
    )
    if verdict == "escalate":
        _can_be_met(note, chains)
    return note


def _known_word(word: str, place: str) -> None:
    if word not in KNOWN:
        raise Misuse(f"unknown annotation @{word}", code="MDM-0745", where=place, fix=did_you_mean(word, KNOWN))
    if word in _NOT_BUILT:
        raise Misuse(f"@{word} is not enforced by this version", code="MDM-0745", where=place, why="it would promise what does not hold")


def _verdict(effect: str, said: dict[str, str], place: str) -> Literal["allow", "deny", "escalate"]:
    own: Literal["allow", "deny"] = "allow" if effect == "permit" else "deny"
    word = said.get("verdict", own)
    if word == own:
        return own
    if word != "escalate" or effect != "forbid":
        fits = "allow" if effect == "permit" else "deny or escalate"
        raise Misuse(f"@verdict({word[:20]!r}) on a {effect}", code="MDM-0745", where=place, expected=fits)
    return "escalate"


def _approvals(said: dict[str, str], verdict: str, place: str) -> int:
    for word in ("approvals", "chain"):
        if word in said and verdict != "escalate":
            raise Misuse(f'@{word} without @verdict("escalate")', code="MDM-0745", where=place, why="nobody would be asked")
    text = said.get("approvals", "1")
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= 100:
        raise Misuse("@approvals is no number of people", code="MDM-0745", where=place, expected='"1" to "100"')
    return int(text)


def _level(said: dict[str, str], verdict: str, place: str) -> Ask | None:
    """What is asked of the log. Whoever asks people too writes a second policy: each of them says when it is answered."""
    if "evidence" not in said:
        return None
    match = _evidence(said["evidence"])
    if match is None or verdict != "escalate" or "chain" in said or "approvals" in said:
        why = 'it stands beside @verdict("escalate"), without @chain and @approvals'
        expected = '"sealed", "witnessed" or "witnessed within 2h"'
        raise Misuse("@evidence", code="MDM-0745", where=place, expected=expected, found=said["evidence"][:40], why=why)
    within = int(match[2]) * _MS[match[3]] if match[2] else WITHIN_MS
    if within > WITHIN_MAX_MS:
        raise Misuse("@evidence: longer than a year", code="MDM-0745", where=place, found=said["evidence"][:40])
    return level(match[1], within)


def _on_deny(said: dict[str, str], verdict: str, place: str) -> str:
    word = said.get("on_deny", "")
    if word not in ("", "feedback", "halt") or (word and verdict != "deny"):
        raise Misuse("@on_deny", code="MDM-0745", where=place, expected='"feedback" or "halt", on a forbid that denies')
    return word


def _can_be_met(note: Note, chains: dict[str, Chain]) -> None:
    """An escalation that never looks at people would be asked for ever."""
    if note.chain:
        if note.chain not in chains and note.chain != DEFAULT_CHAIN.id:
            raise Misuse(f"no chain {note.chain[:60]!r}", code="MDM-0724", where=note.place, fix=did_you_mean(note.chain, chains))
        chains.setdefault(note.chain, DEFAULT_CHAIN)
    reads: Reads = set()
    read_by(note.conditions, reads)
    if not any(not path or path[0] == "people" for path, _ in reads):
        raise Misuse(
            f"policy {note.id!r} escalates and never looks at the answer",
            code="MDM-0746",
            where=note.place,
            why="judged again with every vote, it would escalate again",
            fix=f'unless {{ context.people.met.contains("{note.chain or note.evidence.chain}") }}',  # type: ignore[union-attr]
        )
