"""Read YAML 1.2 that a person wrote: `load(path) -> Tree`; `tree.shaped(Kind)` is it as a Struct.

Every value keeps its line and column. Refused, with the place: a key that is there twice, anchors and aliases, tags, several
documents, a key that is no text. Only JSON's types come out; a date stays the text it was. The rule a newcomer would break: nothing
is ignored, and no text of the file is quoted beyond a key.
"""

from __future__ import annotations

import re
from math import isfinite
from pathlib import Path as File
from typing import Any, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mandamus.core.strict import Path, shaped
from mandamus.errors import Misuse

SIZE_MAX = 1024 * 1024
DEPTH_MAX = 64
T = TypeVar("T")
_ints = re.compile(r"[-+]?(0|[1-9][0-9]*)").fullmatch
_point = r"(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)"
_floats = re.compile(rf"[-+]?(?:{_point}(?:[eE][-+]?[0-9]{{1,3}})?|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]{{1,3}})").fullmatch
_words: dict[str, bool | None] = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_words |= {"null": None, "Null": None, "NULL": None, "~": None, "": None}


class Tree:
    """Plain data and where each part stands. `where(path)` is file:line:column, of the nearest part that is there."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.value: Any = None
        self._values: dict[Path, tuple[int, int]] = {}
        self._keys: dict[Path, tuple[int, int]] = {}

    def where(self, path: Path = (), *, key: bool = False) -> str:
        if key and path in self._keys:
            return self._at(self._keys[path])
        while path and path not in self._values:
            path = path[:-1]
        return self._at(self._values.get(path, (0, 0)))

    def _at(self, place: tuple[int, int]) -> str:
        return f"{self.file}:{place[0] + 1}:{place[1] + 1}"

    def shaped(self, kind: type[T], *, what: str = "this") -> T:
        """The tree as a Struct: unknown keys are refused with the nearest known one. Raises Misuse with the place."""
        return shaped(self.value, kind, self, what=what)


def load(path: str | File) -> Tree:
    """The tree of a file. Raises Misuse when it cannot be read or is no strict YAML."""
    try:
        raw = File(path).read_bytes()
    except OSError as error:
        raise Misuse(f"the file cannot be read: {error.strerror}", code="MDM-0730", where=str(path)) from None
    if len(raw) > SIZE_MAX:
        raise Misuse("the file is too large", code="MDM-0730", where=str(path), expected=f"at most {SIZE_MAX} bytes", found=str(len(raw)))
    try:
        return parse(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise Misuse("the file is not UTF-8", code="MDM-0730", where=str(path), found=f"byte {error.start}") from None


def parse(text: str, file: str = "<text>") -> Tree:
    tree = Tree(file)
    yaml = YAML(typ="safe", pure=True)
    try:
        nodes = list(yaml.compose_all(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise Misuse(f"not YAML: {error.problem or 'it cannot be parsed'}", code="MDM-0731", where=place) from None
    except (YAMLError, RecursionError, ValueError):
        raise Misuse("not YAML", code="MDM-0731", where=file) from None
    if len(nodes) > 1:
        raise Misuse("several documents in one file", code="MDM-0731", where=_place(tree, nodes[1]))
    if nodes and nodes[0] is not None:
        tree.value = _value(nodes[0], (), tree)
    return tree


def _value(node: Node, path: Path, tree: Tree) -> Any:
    tree._values[path] = (node.start_mark.line, node.start_mark.column)
    if node.anchor is not None:
        raise Misuse("anchors and aliases are not read", code="MDM-0732", where=_place(tree, node), fix="write the value out")
    if len(path) > DEPTH_MAX:
        raise Misuse(f"more than {DEPTH_MAX} levels", code="MDM-0732", where=_place(tree, node))
    if isinstance(node, MappingNode):
        _plain_tag(node, "map", tree)
        return _mapping(node, path, tree)
    if isinstance(node, SequenceNode):
        _plain_tag(node, "seq", tree)
        return [_value(inner, (*path, i), tree) for i, inner in enumerate(node.value)]
    return _scalar(node, tree) if isinstance(node, ScalarNode) else None


def _mapping(node: MappingNode, path: Path, tree: Tree) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key_node, inner in node.value:
        key = _scalar(key_node, tree) if isinstance(key_node, ScalarNode) else None
        if not isinstance(key, str):
            raise Misuse("a key that is no text", code="MDM-0732", where=_place(tree, key_node), fix='put it in quotes: "on"')
        if key == "<<":
            raise Misuse("merge keys are not read", code="MDM-0732", where=_place(tree, key_node), fix="write the values out")
        if key in out:
            raise Misuse(
                f"the key {key[:60]!r} is there twice", code="MDM-0733", where=_place(tree, key_node), why="one of the two would be lost"
            )
        tree._keys[(*path, key)] = (key_node.start_mark.line, key_node.start_mark.column)
        out[key] = _value(inner, (*path, key), tree)
    return out


def _scalar(node: ScalarNode, tree: Tree) -> Any:
    """YAML 1.2's core schema, without octal, hexadecimal, infinities and dates: those stay text."""
    if node.anchor is not None:
        raise Misuse("anchors and aliases are not read", code="MDM-0732", where=_place(tree, node), fix="write the value out")
    text: str = node.value
    if node.style is not None:  # quoted or a block
        _plain_tag(node, "str", tree)
        return text
    _plain_tag(node, "", tree)
    if text in _words:
        return _words[text]
    if _ints(text):
        return int(text) if len(text) < 400 else text
    return float(text) if _floats(text) and isfinite(float(text)) else text


def _plain_tag(node: Node, word: str, tree: Tree) -> None:
    """Explicit tags change what a reader sees; the resolver's own guesses do not matter here."""
    tag = str(node.tag or "")
    given = getattr(node, "ctag", None)
    explicit = given is not None and getattr(given, "handle", None) is not None
    if explicit or not tag.startswith("tag:yaml.org,2002:") or (word and tag != f"tag:yaml.org,2002:{word}"):
        raise Misuse("tags are not read", code="MDM-0732", where=_place(tree, node), fix="leave the tag out")


def _place(tree: Tree, node: Node) -> str:
    return f"{tree.file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
