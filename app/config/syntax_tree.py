"""YAML and JSON as plain data, with the position of each part in the text.

ruamel.yaml composes YAML, and this module builds the data. So a document cannot create objects. It has text,
numbers, true and false, null, lists and mappings; any other tag is an error. orjson checks JSON; a text that
is not JSON is read as YAML.

A key is its text: `1` and `'1'` are the same key, and a repeated key is an error. Errors show no values,
because a value may be a secret.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from app.kernel.json_types import JsonObject

MAX_DEPTH = 32
MAX_OPEN_BRACKETS = 200  # far above MAX_DEPTH, because brackets in strings count, too
MAX_NODES = 200_000  # aliases can expand a few bytes to gigabytes

_BRACKETS = re.compile(r"[\[\]{}]")
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^\s\[\]{}:,"]+')
_LINE_END = re.compile(r"\r\n|\r|\n")
_YAML = "tag:yaml.org,2002:"
_TEXTS = {f"{_YAML}timestamp", f"{_YAML}merge", f"{_YAML}value"}  # a date, `<<` and `=`, unless tagged
_NULLS = {"", "~", "null", "Null", "NULL"}
_SYNTAX = "correct the syntax"
_TYPE, _QUOTE = "a value that cannot be read as its type", "remove its tag, or put it in quotes"
_DEPTH = f"at most {MAX_DEPTH} levels and {MAX_NODES} values are read"

Path_ = tuple[str | int, ...]


class UnreadableText(Exception):
    """Why a text cannot be read; lines and columns count from 1, 0 is unknown."""

    def __init__(
        self, message: str, remedy: str = _SYNTAX, line: int = 0, column: int = 0, path: Path_ = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.line = line
        self.column = column
        self.path = path


@dataclass(slots=True)
class Node:
    """The position of a value; for a mapping or list also of its items, and of a mapping's keys."""

    line: int
    column: int
    children: dict[str | int, Node] = field(default_factory=dict)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_trees(text: str) -> list[tuple[object, Node]]:
    """The documents of `text`, each with its positions; empty ones are left out.

    Raises:
        UnreadableText: Neither JSON nor YAML, a repeated key, an unknown tag, or too many levels or aliases.
    """
    text = text.removeprefix("\ufeff")
    _check_brackets(text)
    if text.lstrip()[:1] in {"{", "["}:
        try:
            orjson.loads(text)  # no NaN, no lone surrogates
        except orjson.JSONDecodeError:
            pass
        else:
            return [_JsonReader(text).read()]
    return [(data, node) for data, node in _read_yaml(text) if data is not None]


def _check_brackets(text: str) -> None:
    """Refuses deep nesting early: the parsers would take minutes."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_OPEN_BRACKETS:
            raise UnreadableText("nested too deeply", _DEPTH, *_Lines(text).place(bracket.start()))


class _Lines:
    """Maps an index of a text to line and column, from 1."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(end.end() for end in _LINE_END.finditer(text))]

    def place(self, index: int) -> tuple[int, int]:
        line = bisect_right(self._starts, index)
        return line, index - self._starts[line - 1] + 1


class _Measure:
    """Stops the reading of too many values or levels."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def count(self, path: Path_, line: int, column: int) -> None:
        self._left -= 1
        if len(path) > MAX_DEPTH or self._left < 0:
            raise UnreadableText("nested or aliased beyond all measure", _DEPTH, line, column)


def _twice(path: Path_, line: int, column: int) -> UnreadableText:
    return UnreadableText(f"the key {str(path[-1])[:80]!r} stands twice", "remove one", line, column, path)


# -- JSON ------------------------------------------------------------------------------------------


class _JsonReader:
    """Reads a text that orjson has accepted."""

    def __init__(self, text: str) -> None:
        self._tokens = _JSON_TOKEN.finditer(text)
        self._lines = _Lines(text)
        self._measure = _Measure()

    def read(self) -> tuple[Any, Node]:
        return self._value(next(self._tokens), ())

    def _value(self, token: re.Match[str], path: Path_) -> tuple[Any, Node]:
        node = Node(*self._lines.place(token.start()))
        self._measure.count(path, node.line, node.column)
        if token[0] == "{":
            data: JsonObject = {}
            while (name := next(self._tokens))[0] != "}":
                key = orjson.loads(name[0])
                node.keys[key] = self._lines.place(name.start())
                if key in data:
                    raise _twice((*path, key), *node.keys[key])
                data[key], node.children[key] = self._value(next(self._tokens), (*path, key))
            return data, node
        if token[0] == "[":
            items: list[Any] = []
            while (item := next(self._tokens))[0] != "]":
                value, node.children[len(items)] = self._value(item, (*path, len(items)))
                items.append(value)
            return items, node
        return orjson.loads(token[0]), node


# -- YAML ------------------------------------------------------------------------------------------


def _read_yaml(text: str) -> Iterator[tuple[object, Node]]:
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False  # YAML allows it
    try:
        yaml.get_constructor_parser(text)  # not `compose_all`, which loses the position
        while yaml.composer.check_node():
            yield _YamlReader(yaml).read(yaml.composer.get_node())
    except UnreadableText:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = (error.problem or error.context or "the syntax is wrong").split("\n")[0]
        if message.startswith(("found undefined", "found duplicate", "duplicate")):
            message = message.split(" '")[0].split(' "')[0]  # the rest may be a secret
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise UnreadableText(message, _SYNTAX, *place) from None
    except ReaderError as error:
        place = _Lines(text).place(error.position)
        raise UnreadableText("a character that YAML does not allow", "remove it", *place) from None
    except RecursionError:
        raise UnreadableText("nested too deeply", _DEPTH, *_reached(yaml)) from None
    except Exception:  # noqa: BLE001 - ruamel raises many types: ValueError, IndexError, …
        raise UnreadableText("the syntax is wrong", _SYNTAX, *_reached(yaml)) from None


def _reached(yaml: YAML) -> tuple[int, int]:
    return yaml.reader.line + 1, yaml.reader.column + 1


class _YamlReader:
    """Makes data of ruamel's nodes."""

    def __init__(self, yaml: YAML) -> None:
        self._scalars: dict[str, Callable[[ScalarNode], object]] = {
            f"{_YAML}null": _null,
            f"{_YAML}bool": yaml.constructor.construct_yaml_bool,
            f"{_YAML}int": yaml.constructor.construct_yaml_int,
            f"{_YAML}float": yaml.constructor.construct_yaml_float,
        }
        self._measure = _Measure()

    def read(self, root: Any) -> tuple[Any, Node]:
        return self._value(root, ())

    def _value(self, node: Any, path: Path_) -> tuple[Any, Node]:
        at = Node(node.start_mark.line + 1, node.start_mark.column + 1)
        self._measure.count(path, at.line, at.column)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path, at), at
        if isinstance(node, MappingNode) and node.tag == f"{_YAML}map":
            return self._mapping(node, path, at), at
        if isinstance(node, SequenceNode) and node.tag == f"{_YAML}seq":
            items: list[Any] = []
            for item in node.value:
                value, at.children[len(items)] = self._value(item, (*path, len(items)))
                items.append(value)
            return items, at
        raise _foreign_tag(path, at)

    def _mapping(self, node: MappingNode, path: Path_, at: Node) -> JsonObject:
        data: JsonObject = {}
        merged: list[object] = []
        for key_node, value_node in node.value:
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, ScalarNode):
                raise UnreadableText("a key that is no text", "write text before the colon", *place, path)
            self._scalar(key_node, path, Node(*place))  # only to refuse an unknown tag
            key = _text(key_node, path, Node(*place))
            if key in at.keys:
                raise _twice((*path, key), *place)
            at.keys[key] = place
            if key_node.tag == f"{_YAML}merge":
                many = isinstance(value_node, SequenceNode)
                merged += value_node.value if many else [value_node]
            else:
                data[key], at.children[key] = self._value(value_node, (*path, key))
        for base_node in merged:  # the mapping's own keys win, then those of an earlier base
            base, base_at = self._value(base_node, (*path, "<<"))
            if not isinstance(base, dict):
                raise UnreadableText(
                    "<< needs a mapping", "name one by its alias", base_at.line, base_at.column, path
                )
            for key in base.keys() - data.keys():
                data[key], at.children[key], at.keys[key] = (
                    base[key],
                    base_at.children[key],
                    base_at.keys[key],
                )
        return data

    def _scalar(self, node: ScalarNode, path: Path_, at: Node) -> Any:
        tag = str(node.tag)
        if tag in self._scalars:
            try:
                return self._scalars[tag](node)
            except Exception:  # noqa: BLE001 - ruamel raises KeyError, ValueError, IndexError, …
                raise UnreadableText(_TYPE, _QUOTE, at.line, at.column, path) from None
        if tag == f"{_YAML}str" or (tag in _TEXTS and node.ctag.handle is None):
            return _text(node, path, at)
        raise _foreign_tag(path, at)


def _null(node: ScalarNode) -> None:
    if node.value not in _NULLS:
        raise ValueError("not null")


def _foreign_tag(path: Path_, at: Node) -> UnreadableText:
    return UnreadableText("a tag that has no meaning here", "remove the tag", at.line, at.column, path)


def _text(node: ScalarNode, path: Path_, at: Node) -> str:
    """The text; two escaped surrogates, as JSON writes some characters, become one character."""
    try:
        return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        message, remedy = "half a character (a lone surrogate)", "write the whole character"
        raise UnreadableText(message, remedy, at.line, at.column, path) from None
