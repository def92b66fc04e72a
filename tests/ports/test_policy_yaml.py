"""YAML that a person wrote: read strictly, with the place of every mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from mandamus.drivers.yaml_strict import SIZE_MAX, load, parse
from mandamus.errors import Diagnosis, Misuse


class Tool(msgspec.Struct, kw_only=True):
    name: str
    safety: Literal["read", "write"] = "read"


class Manifest(msgspec.Struct, kw_only=True):
    name: str
    tools: list[Tool] = []
    limits: dict[str, Tool] = {}
    model: str | Tool = ""


def refused(text: str, kind: Any = None) -> Diagnosis:
    with pytest.raises(Misuse) as caught:
        _read(text, kind)
    return caught.value.diagnosis


def _read(text: str, kind: Any) -> None:
    tree = parse(text, "agent.yaml")
    if kind:
        tree.shaped(kind, what="agent")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 5", {"a": 5}),
        ("a: '5'", {"a": "5"}),
        ("a: -5\nb: 0\nc: 1.50\nd: 1e3", {"a": -5, "b": 0, "c": 1.5, "d": 1000.0}),
        ("a: 007\nb: 0x1f\nc: 0o17\nd: 1_000", {"a": "007", "b": "0x1f", "c": "0o17", "d": "1_000"}),
        ("a: yes\nb: off\nc: true\nd: null\ne: ~\nf:", {"a": "yes", "b": "off", "c": True, "d": None, "e": None, "f": None}),
        ("a: 2026-12-25\nb: 08:30\nc: 1:30", {"a": "2026-12-25", "b": "08:30", "c": "1:30"}),
        ("a: .inf\nb: .nan\nc: 1e999", {"a": ".inf", "b": ".nan", "c": "1e999"}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("- [1, {a: b}]\n- ü", [[1, {"a": "b"}], "ü"]),
        ("", None),
        ("# only a comment", None),
    ],
)
def test_only_json_types_come_out(text: str, value: Any) -> None:
    assert parse(text).value == value


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("a: 1\nb: 2\na: 3", "MDM-0733", "agent.yaml:3:1"),
        ("x:\n  - {a: 1, a: 2}", "MDM-0733", "agent.yaml:2:12"),
        ("a: &x 5\nb: *x", "MDM-0732", "agent.yaml:1:4"),
        ("a: &x [1]\nb: [*x, *x]", "MDM-0732", "agent.yaml:1:4"),
        ("&k a: 1", "MDM-0732", "agent.yaml:1:1"),
        ("a: {<<: {b: 1}}", "MDM-0732", "agent.yaml:1:5"),
        ("a: !!str 5", "MDM-0732", "agent.yaml:1:4"),
        ("a: !!python/object:os.system {}", "MDM-0732", "agent.yaml:1:4"),
        ("a: !local 5", "MDM-0732", "agent.yaml:1:4"),
        ("!!set {a}", "MDM-0732", "agent.yaml:1:1"),
        ("1: a", "MDM-0732", "agent.yaml:1:1"),
        ("true: a", "MDM-0732", "agent.yaml:1:1"),
        ("? [a]\n: 1", "MDM-0732", "agent.yaml:1:3"),
        ("--- 1\n--- 2", "MDM-0731", "agent.yaml:2:5"),
        ("a: [1", "MDM-0731", "agent.yaml:1:6"),
        ("a:\n\t- b", "MDM-0731", "agent.yaml:2:1"),
        ("a: *nowhere", "MDM-0731", "agent.yaml:1:4"),
        ("a: \x00", "MDM-0731", "agent.yaml"),
        ("[" * 70 + "]" * 70, "MDM-0732", "agent.yaml:1:66"),
        ("[" * 5000, "MDM-0731", "agent.yaml"),
    ],
    ids=lambda x: x[:20],
)
def test_what_is_refused(text: str, code: str, where: str) -> None:
    told = refused(text)
    assert told.code == code
    assert told.where == where


@pytest.mark.parametrize(
    ("text", "what", "where", "fix"),
    [
        ("name: a\ntols: []", "unknown key 'tols'", "agent.yaml:2:1", "did you mean tools?"),
        ("name: a\ntools:\n  - {name: x}\n  - {name: y, saftey: read}", "unknown key 'saftey'", "agent.yaml:4:15", "did you mean safety?"),
        ("name: a\ntools:\n  - name: x\n    safety: reed", "agent.tools[0].safety: Invalid enum value", "agent.yaml:4:13", ""),
        ("name: a\nlimits:\n  x: {name: x}\n  y: {name: 1}", "agent.limits.y.name: Expected `str`, got `int`", "agent.yaml:4:13", ""),
        ("name: a\nlimits: {x: {name: x, saftey: read}}", "unknown key 'saftey'", "agent.yaml:2:23", "did you mean safety?"),
        ("name: a\nmodel: {nam: x}", "unknown key 'nam'", "agent.yaml:2:9", "did you mean name?"),
        ("tools: []", "missing required field `name`", "agent.yaml:1:1", ""),
        ("[]", "Expected `object`", "agent.yaml:1:1", ""),
        ("", "Expected `object`", "agent.yaml:1:1", ""),
    ],
)
def test_as_a_struct(text: str, what: str, where: str, fix: str) -> None:
    told = refused(text, Manifest)
    assert what in told.what
    assert told.where == where
    assert fix in told.fix


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: a\r\ntools:\r\n  - name: x\r\n")
    assert load(file).shaped(Manifest) == Manifest(name="a", tools=[Tool(name="x")])
    assert load(file).where(("tools", 0, "name", "deeper")) == f"{file}:3:11"
    assert load(file).where(("tools", 0, "name"), key=True) == f"{file}:3:5"


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a" * (SIZE_MAX + 1)], ids=["bytes", "size"])
def test_a_file_that_cannot_be_read(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(raw)
    for path in (tmp_path / "x.yaml", tmp_path / "nowhere.yaml", tmp_path):
        with pytest.raises(Misuse) as caught:
            load(path)
        assert caught.value.diagnosis.code == "MDM-0730"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcxyz", min_size=2, max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
@settings(max_examples=60, deadline=None)
def test_what_is_dumped_is_read(value: Any) -> None:
    """JSON is YAML: every JSON text means the same here."""
    assert parse(msgspec.json.encode(value).decode()).value == value


@given(st.text("ab:-[]{}&*!|>'\"#%@`,? \n\t01.~", max_size=25))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_like_yaml_or_refused_with_a_place(text: str) -> None:
    try:
        value = parse(text, "f").value
    except Misuse as refusal:
        told = refusal.diagnosis
        assert told.where.split(":")[0] == "f" and told.code in ("MDM-0731", "MDM-0732", "MDM-0733")  # noqa: PT018
        return
    expected = YAML(typ="safe", pure=True).load(text)
    assert _loose(value) == _loose(expected)


def _loose(value: Any) -> Any:
    """The form, without the scalars: those are read by stricter rules than the library's."""
    if isinstance(value, dict):
        return {str(k): _loose(v) for k, v in value.items()}
    return [_loose(v) for v in value] if isinstance(value, list) else "scalar"
