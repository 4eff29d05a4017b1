"""What is wrong with a file, all of it at once: where, what, and what to do.

YAML is read by ruamel.yaml, which keeps positions; pydantic says what is wrong; this module brings both
together. Values of secrets are never shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

MAX_FILE_BYTES = 4 * 1024 * 1024  # a configuration larger than this is a mistake
MAX_DEPTH = 32
MAX_OPEN_BRACKETS = 200  # far above MAX_DEPTH: brackets in strings are counted, too
MAX_NODES = 200_000  # aliases can blow a few bytes up to gigabytes
MAX_SHOWN_CHARS = 80
SECRET_FIELDS = {"password", "username", "secret", "token", "key"}
_CREDENTIALS = re.compile(r"[^\s'\"/]+@")  # as in sasl://me:secret@host

Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong (error) or not as expected (warning). Lines and columns count from 1."""

    message: str
    remedy: str = ""
    field: str = ""
    value: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    severity: str = "error"

    def __str__(self) -> str:
        place = self.file or "definition"
        if self.line:
            place += f":{self.line}:{self.column}"
        what = f"{self.field}: " if self.field else ""
        shown = f" (got {self.value})" if self.value else ""
        remedy = f"\n    -> {self.remedy}" if self.remedy else ""
        return f"{place}: {self.severity}: {what}{self.message}{shown}{remedy}"


class InvalidConfiguration(Exception):
    """A file or definition that cannot be used; `problems` says everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.file, p.line, p.column, p.field))
        errors = sum(1 for p in self.problems if p.severity == "error")
        lines = [str(problem) for problem in self.problems]
        lines.append(f"{errors} error{'s' if errors != 1 else ''}; nothing was changed")
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document with positions; `data` is plain Python."""

    file: str
    data: Any
    node: Any

    def position(self, path: Path_, *, key: bool = False) -> tuple[int, int]:
        """Line and column (from 1) of the value at `path`, or of its key, or of what is nearest above it."""
        node, at = self.node, (1, 1)
        if isinstance(node, CommentedMap | CommentedSeq):
            at = (node.lc.line + 1, node.lc.col + 1)
        for depth, part in enumerate(path):
            try:
                if isinstance(node, CommentedMap) and part in node:
                    want_key = key and depth == len(path) - 1
                    line, column = node.lc.key(part) if want_key else node.lc.value(part)
                elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
                    line, column = node.lc.item(part)
                else:
                    return at
            except (KeyError, TypeError, AttributeError):
                return at
            at = (line + 1, column + 1)
            node = node[part]
        return at


def read_text(path: Path, remedy: str) -> str:
    """The file's text.

    Raises:
        InvalidConfiguration: it is missing, a directory, too large or not UTF-8.
    """
    problem: str
    try:
        if path.is_dir():
            problem = "is a directory, not a file"
        elif path.stat().st_size > MAX_FILE_BYTES:
            problem = f"is larger than {MAX_FILE_BYTES // 1024 // 1024} MiB"
        else:
            return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        problem = "does not exist"
    except UnicodeDecodeError as error:
        problem, remedy = f"is not UTF-8 (byte {error.start})", "save it as UTF-8"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        problem = f"cannot be read: {getattr(error, 'strerror', error)}"
    raise InvalidConfiguration([Problem(problem, remedy, file=str(path))])


_BRACKETS = re.compile(r"[\[\]{}]")


def read_documents(text: str, file: str) -> list[Document]:
    """The YAML documents of `text`; empty ones are left out.

    Raises:
        InvalidConfiguration: not YAML, a key twice, nested or aliased beyond all measure.
    """
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_OPEN_BRACKETS:  # the parser would take minutes to say the same
            raise InvalidConfiguration(
                [Problem("not YAML: nested too deeply", f"at most {MAX_DEPTH} levels are read", file=file)]
            )
    yaml = YAML(typ="rt", pure=True)
    yaml.allow_duplicate_keys = False
    yaml.composer.warn_double_anchors = False  # YAML allows it
    try:
        nodes = [node for node in yaml.load_all(text) if node is not None]
        return [Document(file, plain(node), node) for node in nodes]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = (error.problem or error.context or "not YAML").split("\n")[0]
        if message.startswith(("found duplicate key", "found undefined alias")):
            message = " ".join(message.split()[:3])  # what follows may be a secret
        raise InvalidConfiguration([
            Problem(f"not YAML: {message}", "correct the syntax", file=file,
                    line=mark.line + 1 if mark else 0, column=mark.column + 1 if mark else 0)
        ]) from error  # fmt: skip
    except (YAMLError, RecursionError, ValueError) as error:
        message = str(error).split("\n")[0] or "nested too deeply"
        raise InvalidConfiguration(
            [Problem(f"not YAML: {message}", "correct the syntax", file=file)]
        ) from error


def plain(node: Any) -> Any:
    """ruamel's objects as dicts, lists and scalars.

    Raises:
        ValueError: deeper than `MAX_DEPTH` or more than `MAX_NODES` nodes (aliases counted each time).
    """
    left = [MAX_NODES]

    def convert(value: Any, depth: int) -> Any:
        left[0] -= 1
        if depth > MAX_DEPTH or left[0] < 0:
            raise ValueError("nested or aliased beyond all measure")
        if isinstance(value, dict):
            return {str(name): convert(inner, depth + 1) for name, inner in value.items()}
        if isinstance(value, list):
            return [convert(inner, depth + 1) for inner in value]
        if isinstance(value, bool) or value is None:
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind(value)
        return str(value)

    return convert(node, 0)


def validate(model: type[BaseModel], document: Document, data: Any = None, at: Path_ = ()) -> Any:
    """`model` of the document's data.

    Raises:
        InvalidConfiguration: with a problem for each thing that is wrong.
    """
    try:
        return model.model_validate(document.data if data is None else data)
    except ValidationError as error:
        entries = [entry for entry in error.errors() if not _echo(entry)]
        raise InvalidConfiguration([_problem(model, document, entry, at) for entry in entries]) from None


def _echo(entry: Any) -> bool:
    """pydantic counts a list as too short when its items are invalid; the items are told by themselves."""
    return bool(entry["type"] == "too_short") and len(entry["input"]) >= entry["ctx"]["min_length"]


def _problem(model: type[BaseModel], document: Document, entry: Any, at: Path_) -> Problem:
    path: Path_ = tuple(entry["loc"])  # no model has a union whose branches pydantic would name in it
    kind, message, remedy = entry["type"], entry["msg"], ""
    full = at + path
    value: Any = entry.get("input")
    name = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        message, value = "unknown field", None
        close = difflib.get_close_matches(name, known, 1, 0.6)
        remedy = f"did you mean {close[0]}?" if close else f"known here: {', '.join(sorted(known))}"
    elif kind == "missing":
        message, value, remedy = "missing", None, "add it"
    elif kind in {"literal_error", "enum"}:
        expected = entry.get("ctx", {}).get("expected", "")
        choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
        close = difflib.get_close_matches(str(value), choices, 1, 0.5)
        message = f"must be one of {', '.join(choices)}"
        remedy = f"did you mean {close[0]}?" if close else "use one of them"
    else:
        message = message.removeprefix("Value error, ")
        message, _, remedy = message.partition("; ")
    line, column = document.position(full, key=kind in {"extra_forbidden"})
    field = ".".join(str(part) for part in full)
    shown = "" if value is None or isinstance(value, dict | list) else repr(value)[:MAX_SHOWN_CHARS]
    shown = _CREDENTIALS.sub("***@", shown)
    if name in SECRET_FIELDS | {"security"} or SECRET_FIELDS & {str(part) for part in full}:
        shown = ""
    return Problem(message, remedy, field, shown, document.file, line if document.file else 0, column)


def _fields_at(model: type[BaseModel], path: Path_) -> list[str]:
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        fields = getattr(current, "model_fields", {})
        found = next((f for n, f in fields.items() if part in {n, f.alias}), None)
        current = _model_in(found.annotation) if found is not None else None
    fields = getattr(current, "model_fields", {})
    return [field.alias or name for name, field in fields.items()]


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)


def suggest(name: str, known: Sequence[str]) -> str:
    """A remedy for a name that does not exist."""
    close = difflib.get_close_matches(name, known, 1, 0.5)
    listed = ", ".join(sorted(known)) or "none"
    return f"did you mean {close[0]}?" if close else f"known: {listed}"


Check = Callable[[Any], list[tuple[Path_, str, str]]]
