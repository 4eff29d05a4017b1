"""All problems of a file at once, each with its place, its cause and a remedy.

`syntax_tree` reads YAML and JSON with positions, pydantic finds the problems, and this module joins the two.
No problem shows the value of a secret's field, or the credentials of an address. Of wrong syntax only the
first problem is known.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import SkipJsonSchema

from app.config.syntax_tree import Node, Path_, UnreadableText, read_trees

MAX_FILE_BYTES = 4 * 1024 * 1024  # a larger configuration is a mistake
MAX_SHOWN_CHARS = 80
# Marks a field of an earlier version, which no remedy suggests. mypy takes it for a form of Annotated.
REMOVED_FIELD = SkipJsonSchema()  # type: ignore[type-arg]
SECRET_FIELDS = {"password", "username", "secret", "token", "key"}
YAML_1_1 = {"true": "on, yes and y", "false": "off, no and n"}  # keys that a tool may have written
_CREDENTIALS = re.compile(r"(.*)(?:@|%40)(.*)", re.DOTALL)  # %40: a URL may encode it
_SCHEME = re.compile(r"['\"]?[A-Za-z][\w+.-]{0,30}://")  # as in sasl://me:sec/ret@host

# For pydantic's common error types: the problem and the remedy.
_WORDS = {
    "string_type": ("must be text", "put it in quotes"),
    "bool_type": ("must be true or false", "write true or false"),
    "bool_parsing": ("must be true or false", "write true or false"),
    "int_type": ("must be a whole number", "write one like 3"),
    "int_parsing": ("must be a whole number", "write one like 3"),
    "int_from_float": ("must be a whole number", "write one like 3"),
    "float_type": ("must be a number", "write one like 2.5"),
    "float_parsing": ("must be a number", "write one like 2.5"),
    "finite_number": ("must be a finite number", "write one like 2.5"),
    "tuple_type": ("must be a list", "write [first, second], or each after a dash"),
    "greater_than": ("must be greater than {gt}", "choose a greater one"),
    "greater_than_equal": ("must be at least {ge}", "choose a greater one"),
    "less_than_equal": ("must be at most {le}", "choose a smaller one"),
    "string_too_short": ("must not be empty", "write it, or leave the field out"),
    "string_too_long": ("must have at most {max_length} characters", "shorten it"),
    "too_short": ("must have at least {min_length}", "add what is missing"),
    "too_long": ("must have at most {max_length}", "leave some out"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """An error, or a warning. Lines and columns count from 1."""

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
    """A file or definition that cannot be used, with all its `problems`."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.file, p.line, p.column, p.field))
        errors = sum(1 for p in self.problems if p.severity == "error")
        lines = [str(problem) for problem in self.problems]
        lines.append(f"{errors} error{'s' if errors != 1 else ''}; nothing was changed")
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Document:
    """A document as plain data; `node` has the positions of its parts, if it comes from a text."""

    file: str
    data: Any
    node: Node | None

    def position(self, path: Path_, *, key: bool = False) -> tuple[int, int]:
        """Line and column (from 1) of the value at `path`, of its key, or of its nearest parent.

        (0, 0) when the data does not come from a text.
        """
        if self.node is None:
            return 0, 0
        node = self.node
        for depth, part in enumerate(path):
            inner = node.children.get(part)
            if inner is None:
                break
            if key and depth == len(path) - 1 and part in node.keys:
                return node.keys[str(part)]
            node = inner
        return node.line, node.column


def read_text(path: Path, remedy: str) -> str:
    """The file's text.

    Raises:
        InvalidConfiguration: The file is missing, a directory, too large or not UTF-8.
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
    raise InvalidConfiguration([ConfigProblem(problem, remedy, file=str(path))])


def read_documents(text: str, file: str) -> list[Document]:
    """The YAML documents of `text`, or its one JSON document; empty ones are left out.

    Raises:
        InvalidConfiguration: Not YAML, a repeated key, an unknown tag, or too many levels or aliases.
    """
    try:
        return [Document(file, data, node) for data, node in read_trees(text)]
    except UnreadableText as error:
        field = ".".join(map(str, error.path))
        problem = ConfigProblem(
            f"not YAML: {error.message}", error.remedy, field, "", file, error.line, error.column
        )
        raise InvalidConfiguration([problem]) from None


def first_wrong(error: ValidationError) -> str:
    """Field, problem and value of the first error, in one line."""
    wrong = error.errors()[0]
    place = ".".join(map(str, wrong["loc"])) or "definition"
    return f"{place}: {wrong['msg']} (got {shown(str(wrong['input']))})"


def shown(text: str) -> str:
    """The beginning of a value. All before its last `@` may be credentials of an address, and is left out."""
    match = _CREDENTIALS.fullmatch(text)
    if match is None:
        return text[:MAX_SHOWN_CHARS]
    before, after = match.groups()
    scheme = _SCHEME.match(before)
    return f"{scheme.group() if scheme else ''}***@{after}"[:MAX_SHOWN_CHARS]


def not_readable(error: ValidationError) -> str:
    """The message for a definition in the control log that this version cannot read."""
    return f"this version cannot read it: {first_wrong(error)}; deploy it again"


def validate(model: type[BaseModel], document: Document, data: Any = None) -> Any:
    """The document's data as a `model`.

    Raises:
        InvalidConfiguration: The data has problems; the error has all of them.
    """
    try:
        return model.model_validate(document.data if data is None else data)
    except ValidationError as error:
        entries = [entry for entry in error.errors() if not _echo(entry)]
        raise InvalidConfiguration([_problem(model, document, entry) for entry in entries]) from None


def _echo(entry: Any) -> bool:
    """pydantic counts a list with invalid items as too short, too; the items have errors of their own."""
    return bool(entry["type"] == "too_short") and len(entry["input"]) >= entry["ctx"]["min_length"]


def _problem(model: type[BaseModel], document: Document, entry: Any) -> ConfigProblem:
    # No model has a union, whose branch pydantic would add; it does add this behind a mapping's wrong key.
    path: Path_ = tuple(part for part in entry["loc"] if part != "[key]")
    kind, context = entry["type"], entry.get("ctx", {})
    value: Any = entry.get("input")
    name = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        message, value = "unknown field", None
        close = difflib.get_close_matches(name, known, 1, 0.6)
        remedy = f"did you mean {close[0]}?" if close else f"known here: {', '.join(sorted(known))}"
        if name in YAML_1_1:
            remedy = f"YAML 1.1 reads {YAML_1_1[name]} as {name}: put that key in quotes; {remedy}"
    elif kind == "missing":
        message, value, remedy = "missing", None, "add it"
    elif kind in {"literal_error", "enum"}:
        choices = [choice.strip(" '") for choice in context["expected"].replace(" or ", ", ").split(",")]
        close = difflib.get_close_matches(str(value), choices, 1, 0.5)
        message = f"must be one of {', '.join(choices)}"
        remedy = f"did you mean {close[0]}?" if close else "use one of them"
    elif kind in _WORDS:
        message, remedy = (text.format(**context) for text in _WORDS[kind])
    elif kind in {"model_type", "model_attributes_type"}:
        message = f"must be a mapping, not {_kind(value)}"
        remedy = f"known here: {', '.join(sorted(_fields_at(model, path)))}"
    else:
        message, _, remedy = entry["msg"].removeprefix("Value error, ").partition("; ")
    line, column = document.position(path, key=kind == "extra_forbidden")
    field = ".".join(str(part) for part in path)
    got = "" if value is None or isinstance(value, dict | list) else shown(repr(value))
    if name == "security" or SECRET_FIELDS & {str(part) for part in path}:
        got = ""
    return ConfigProblem(message, remedy, field, got, document.file, line, column)


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    return "a list" if isinstance(value, list | tuple) else "text" if isinstance(value, str) else "a number"


def _fields_at(model: type[BaseModel], path: Path_) -> list[str]:
    current: object = model
    for part in path:
        if isinstance(part, int):
            continue
        fields = getattr(current, "model_fields", {})
        found = next((f for n, f in fields.items() if part in {n, f.alias}), None)
        current = _model_in(found.annotation) if found is not None else None
    fields = getattr(current, "model_fields", {})
    return [field.alias or name for name, field in fields.items() if REMOVED_FIELD not in field.metadata]


def _model_in(annotation: object) -> object:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)


def suggest(name: str, known: Sequence[str]) -> str:
    """A remedy for an unknown name."""
    close = difflib.get_close_matches(name, known, 1, 0.5)
    listed = ", ".join(sorted(known)) or "none"
    return f"did you mean {close[0]}?" if close else f"known: {listed}"
