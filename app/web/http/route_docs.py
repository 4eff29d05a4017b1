"""Descriptions of routes, beside their handlers. `openapi` makes the document from them, `guard` checks
every query string, and `read_body` every body.

A route answers only statuses, and takes only fields, that are described: tests/web/http/test_openapi.py
calls every route and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar

from app.kernel.json_types import JsonMapping, JsonObject

MAX_LIMIT, DEFAULT_LIMIT = 1000, 100
JSON = "application/json"

T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., Any])


class Page(TypedDict, Generic[T]):
    """A page of a list. `next` is the `cursor` of the next one, null at the end."""

    items: list[T]
    next: str | None


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of the query string, or a header. With an array as `schema` it may be given repeatedly."""

    name: str
    schema: JsonMapping
    about: str


@dataclass(frozen=True, slots=True)
class AnswerDoc:
    """An answer that is not a problem: its shape by content type (a type, a union of types, or a JSON
    Schema), and headers."""

    content: JsonMapping
    about: str = "done"
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteDoc:
    """A route's description. `body` is a type, `kinds` are its content types.

    `problems` are the statuses of this route alone; `openapi` adds those of all routes of its kind.
    """

    answers: Mapping[int, AnswerDoc]
    query: tuple[Param, ...] = ()
    headers: tuple[Param, ...] = ()
    body: Any = None
    kinds: tuple[str, ...] = (JSON,)
    problems: frozenset[int] = field(default_factory=frozenset)


def described(
    shape: object = None,
    *,
    answers: Mapping[int, AnswerDoc] | None = None,
    query: Iterable[Param] = (),
    headers: Iterable[Param] = (),
    body: Any = None,
    kinds: Iterable[str] = (JSON,),
    problems: Iterable[int] = (),
) -> Callable[[H], H]:
    """Describes a handler: it answers 200 with `shape` as JSON, and `answers`."""
    answered = {} if shape is None else {200: AnswerDoc({JSON: shape})}
    found = RouteDoc(
        {**answered, **(answers or {})}, tuple(query), tuple(headers), body, tuple(kinds), frozenset(problems)
    )

    def mark(handler: H) -> H:
        handler.__dict__["described"] = found  # functools.wraps copies it
        return handler

    return mark


def described_of(handler: Any) -> RouteDoc | None:
    """The handler's description, if it has one."""
    found = getattr(handler, "described", None)
    return found if isinstance(found, RouteDoc) else None


def whole(least: int, most: int, default: int | None = None) -> JsonObject:
    """The JSON Schema of a whole number within bounds."""
    found = {"type": "integer", "minimum": least, "maximum": most}
    return found if default is None else {**found, "default": default}


def repeated(items: JsonMapping, most: int) -> JsonObject:
    """The JSON Schema of a parameter that may be given `most` times."""
    return {"type": "array", "items": items, "maxItems": most}


TEXT = {"type": "string"}
PAGE = (
    Param("limit", whole(1, MAX_LIMIT, DEFAULT_LIMIT), "how many items at most"),
    Param("cursor", whole(0, 1 << 53, 0), "`next` of the page before"),
)
ACTOR = (Param("X-Switchyard-Actor", TEXT, "who asks, for the activity; else the address"),)
TIER = (Param("topic", TEXT, "one of the workload's retry topics instead of its main topic"),)
