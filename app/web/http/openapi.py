"""The API's OpenAPI document, from its routes and the descriptions beside their handlers (`route_docs`).

This module adds the answers common to all routes of a kind. These are problems for a foreign Host, an
unknown parameter, another site's page, a worker that starts, and bodies that are too large or of another
type.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web
from pydantic import BaseModel

from app.kernel.json_types import JsonObject
from app.web.http import schemas as http_schemas
from app.web.http.route_docs import TEXT, AnswerDoc, Param, RouteDoc, described_of, whole

API = "/api/v1/"
REFERENCE = "#/components/schemas/{}"
ABOUT = """Errors are problems (RFC 9457). Any worker of a region answers.
A request line has at most 8190 bytes, a body 65536."""
NO_RUNTIME = {"get_schema", "get_openapi"}  # these answer while the worker starts, too
READING = {"GET", "HEAD"}
WORDS = {
    400: "a parameter or the body is wrong; `detail` says which, and what to write",
    403: "a page of another site asks for it",
    404: "there is no such thing",
    409: "not as things stand",
    412: "it changed meanwhile: read it again, then decide",
    413: "the body is too large",
    415: "a body of another kind",
    421: "a Host that this server does not answer for",
    422: "the definition is invalid; `errors` says all that is wrong with it",
    502: "a cluster, or the worker that was to be asked, cannot be reached",
    503: "the worker starts or stops, or Kafka does not answer: ask again",
}
PATH = {
    param.name: param
    for param in (
        Param("group", TEXT, "the workload's consumer group"),
        Param("topic", TEXT, "the workload's topic, or one of a route's"),
        Param("name", TEXT, "the route's name"),
        Param("partition", whole(0, 2**31 - 1), "a partition's number"),
        Param("offset", whole(0, 10**18 - 1), "an offset"),
        Param("worker", TEXT, "a worker's name"),
        Param("id", TEXT, "an operation's or failover's id"),
    )
}
HEADERS = {
    "ETag": "the definition's version, for If-Match",
    "Location": "where to watch the operation",
    "X-Switchyard-Offsets": "how many offsets are looked at",
}


def openapi(routes: Iterable[web.RouteDef]) -> JsonObject:
    """OpenAPI 3.1 of `routes`; summaries are the first lines of the handlers' docstrings."""
    listed = [(route, described_of(route.handler) or RouteDoc({})) for route in routes]
    schemas = _Schemas()
    for _, said in listed:
        schemas.add(said.body, *(s for answer in said.answers.values() for s in answer.content.values()))
    components = schemas.components()
    paths: JsonObject = {}
    for route, said in listed:
        paths.setdefault(_path(route), {})[route.method.lower()] = _operation(route, said, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Switchyard",
            "version": version("switchyard-kafka"),
            "description": ABOUT,
        },
        "paths": paths,
        "components": {"schemas": _tidy(components)},
    }


class _Schemas:
    """The schemas of types, as references to components.

    Answers and plain bodies are msgspec's types, definitions are pydantic's. The latter's names begin with
    "Definition", because some names occur in both.
    """

    def __init__(self) -> None:
        self._types: list[object] = [http_schemas.Problem]
        self._made: list[object] = []
        self._definitions: list[type[BaseModel]] = []

    def add(self, *given: Any) -> None:
        """Adds types; schemas and None are ignored."""
        for shape in given:
            if isinstance(shape, tuple):
                self.add(*shape)
            elif _is_definition(shape):
                self._definitions.append(shape)
            elif shape is not None and not isinstance(shape, Mapping) and shape not in self._types:
                self._types.append(shape)

    def components(self) -> JsonObject:
        """All schemas by name."""
        made, found = msgspec.json.schema_components(self._types, ref_template=REFERENCE.format("{name}"))
        self._made = list(made)
        for definition in self._definitions:
            schema = definition.model_json_schema(ref_template=REFERENCE.format("Definition.{model}"))
            parts = schema.pop("$defs", {})
            found |= {f"Definition.{name}": part for name, part in parts.items()}
            found[f"Definition.{definition.__name__}"] = schema
        return found

    def of(self, shape: Any) -> Any:
        """The schema of an added type, of a union of them, or `shape` itself if it is a schema."""
        if isinstance(shape, tuple):
            return {"anyOf": [self.of(one) for one in shape]}
        if _is_definition(shape):
            return {"$ref": REFERENCE.format(f"Definition.{shape.__name__}")}
        return shape if isinstance(shape, Mapping) else self._made[self._types.index(shape)]


def _is_definition(shape: Any) -> bool:
    return isinstance(shape, type) and issubclass(shape, BaseModel)


def _path(route: web.RouteDef) -> str:
    """The path without the expressions that parameters may have."""
    return re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.path)


def _operation(route: web.RouteDef, said: RouteDoc, schemas: _Schemas) -> JsonObject:
    summary, _, rest = inspect.cleandoc(route.handler.__doc__ or "").partition("\n")
    inside = [PATH[part[1:-1]] for part in _path(route).split("/") if part[:1] == "{"]
    given = (("path", inside), ("query", said.query), ("header", said.headers))
    found: JsonObject = {
        "summary": summary,
        "operationId": getattr(route.handler, "__name__", ""),
        "tags": [route.path.removeprefix(API).split("/")[0] if route.path.startswith(API) else "outside"],
        "parameters": [_parameter(param, place) for place, params in given for param in params],
        "responses": _responses(route, said, schemas),
    }
    if rest.strip():
        found["description"] = rest.strip()
    if said.body is not None:
        content = {kind: {"schema": schemas.of(said.body)} for kind in said.kinds}
        found["requestBody"] = {"content": content, "required": _is_definition(said.body)}
    return found


def _parameter(param: Param, place: str) -> JsonObject:
    found = {"name": param.name, "in": place, "schema": dict(param.schema), "description": param.about}
    return found | ({"required": True} if place == "path" else {})


def _responses(route: web.RouteDef, said: RouteDoc, schemas: _Schemas) -> JsonObject:
    found = {str(status): _answer(answer, schemas) for status, answer in said.answers.items()}
    for status in _problems(route, said) - said.answers.keys():
        content = {"application/problem+json": {"schema": {"$ref": REFERENCE.format("Problem")}}}
        found[str(status)] = {"description": WORDS[status], "content": content}
    return dict(sorted(found.items()))


def _problems(route: web.RouteDef, said: RouteDoc) -> set[int]:
    found = {421, *said.problems}
    if route.path.startswith(API):
        found |= {400, 403}
        if getattr(route.handler, "__name__", "") not in NO_RUNTIME:
            found.add(503)
    if route.method not in READING:
        found.add(403)
    if said.body is not None:
        found |= {413, 415}
    return found


def _answer(answer: AnswerDoc, schemas: _Schemas) -> JsonObject:
    found: JsonObject = {
        "description": answer.about,
        "content": {kind: {"schema": schemas.of(shape)} for kind, shape in answer.content.items()},
    }
    if answer.headers:
        found["headers"] = {
            name: {"required": True, "schema": {"type": "string"}, "description": HEADERS[name]}
            for name in answer.headers
        }
    return found


def _tidy(schema: Any) -> Any:
    """The schema with docstrings whose lines are not indented."""
    if isinstance(schema, dict):
        return {
            name: inspect.cleandoc(value)
            if name == "description" and isinstance(value, str)
            else _tidy(value)
            for name, value in schema.items()
        }
    return [_tidy(part) for part in schema] if isinstance(schema, list) else schema
