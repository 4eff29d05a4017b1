"""The way to a field of an Avro record, worked out once from the schema.

Avro writes the fields of a record one behind the other without their lengths: a field is found by passing
over those before it. Most types are passed over in a step, however large they are. Arrays and maps are not:
they are as long as the value says, in pieces. A schema in which one stands before the field, or a record that
holds itself, is refused: nothing would bound the time that a value takes.

Source: Apache Avro 1.12, "Binary encoding".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from app.payload.event_time.instant import Absent, Instant, TimeFormat, UnusableField

MAX_SCHEMA_BYTES = 1024 * 1024
MAX_STEPS = 1_000  # before the field, of all branches together
MAX_NESTED = 64  # records and unions in each other
VARINT, LENGTH = -1, -2  # steps: a number; a length and as many bytes. Others are a number of bytes.

_FIXED = {"null": 0, "boolean": 1, "int": VARINT, "long": VARINT, "float": 4, "double": 8,
          "bytes": LENGTH, "string": LENGTH}  # fmt: skip
_LOGICAL = {
    f"{local}timestamp-{unit}": time_format
    for local in ("", "local-")
    for unit, time_format in (
        ("millis", TimeFormat.EPOCH_MS),
        ("micros", TimeFormat.EPOCH_US),
        ("nanos", TimeFormat.EPOCH_NS),
    )
}
_ELSEWHERE = (
    "name a field before it, move the field to the front of its record, or take the time from a header"
)
_TIMES = "name a long (timestamp-millis), an int, a double or a string"

Skip = int | tuple["Skips", ...]  # a tuple: a union's branches
Skips = tuple[Skip, ...]


class FieldEncoding(Enum):
    """How the field is written."""

    NUMBER = "number"
    DOUBLE = "double"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class PlannedField:
    """The field itself."""

    kind: FieldEncoding
    instant: Instant


@dataclass(frozen=True, slots=True)
class UnionPlan:
    """A union on the way: what follows in each of its branches."""

    branches: tuple[AvroFieldPlan | Absent, ...]


@dataclass(frozen=True, slots=True)
class AvroFieldPlan:
    """What to pass over, then what stands there."""

    skips: Skips
    then: PlannedField | UnionPlan


def compiled(schema: bytes | str, path: tuple[str, ...], time_format: TimeFormat | None) -> AvroFieldPlan:
    """The plan for the field to which `path` leads, through records in records.

    Args:
        time_format: None: what the field's logical type says, else `EPOCH_MS`.

    Raises:
        UnusableField: no schema, no such field, none that can be a time, or none that can be reached in
            bounded time.
    """
    name = ".".join(path)
    if len(schema) > MAX_SCHEMA_BYTES:
        raise UnusableField(name, f"a schema of {len(schema)} bytes", f"at most {MAX_SCHEMA_BYTES} are read")
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError):
        raise UnusableField(name, "the schema is no JSON", "give an Avro schema (.avsc)") from None
    try:
        return _Compiler(name, time_format).plan(parsed, path)
    except RecursionError:
        raise UnusableField(name, "the schema is nested too deep", _ELSEWHERE) from None


class _Named:
    """A type with a name, and the namespace that its fields' names are in."""

    __slots__ = ("namespace", "schema")

    def __init__(self, schema: dict[str, Any], namespace: str) -> None:
        self.schema = schema
        self.namespace = namespace


class _Compiler:
    def __init__(self, name: str, time_format: TimeFormat | None) -> None:
        self._name = name
        self._format = time_format
        self._named: dict[str, _Named] = {}
        self._steps = 0

    def plan(self, schema: Any, path: tuple[str, ...]) -> AvroFieldPlan:
        self._learn(schema, "")
        return self._follow(schema, "", path, ())

    def _wrong(self, problem: str, remedy: str) -> UnusableField:
        return UnusableField(self._name, problem, remedy)

    # -- names -------------------------------------------------------------------------------------

    def _learn(self, schema: Any, namespace: str) -> None:
        """Notes every type that has a name."""
        if isinstance(schema, list):
            for branch in schema:
                self._learn(branch, namespace)
        if not isinstance(schema, dict):
            return
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            full, namespace = _full_name(schema, namespace)
            if full in self._named:
                raise self._wrong(f"the schema defines {full} twice", "correct the schema")
            self._named[full] = _Named(schema, namespace)
            for field in _fields(schema):
                self._learn(field.get("type"), namespace)
        else:
            for part in (kind, schema.get("items"), schema.get("values")):
                if isinstance(part, dict | list):
                    self._learn(part, namespace)

    def _resolved(self, schema: Any, namespace: str) -> tuple[Any, str]:
        """(a schema that is no name and no wrapper, its namespace); primitives as {"type": name, …}."""
        for _ in range(MAX_NESTED):
            if isinstance(schema, list):
                return schema, namespace
            if isinstance(schema, str):
                found = self._named.get(
                    f"{namespace}.{schema}" if namespace and "." not in schema else schema
                )
                found = found or self._named.get(schema)
                if schema in _FIXED and found is None:
                    return {"type": schema}, namespace
                if found is None:
                    raise self._wrong(f"the schema does not define {schema[:200]!r}", "put its definition in")
                return found.schema, found.namespace
            if not isinstance(schema, dict):
                break
            kind = schema.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                return schema, _full_name(schema, namespace)[1]
            if isinstance(kind, str) and (kind in _FIXED or kind in ("array", "map")):
                return schema, namespace
            schema = kind
        raise self._wrong(f"the schema holds {str(schema)[:100]!r}, which is no type", "correct the schema")

    # -- the way -----------------------------------------------------------------------------------

    def _follow(self, schema: Any, namespace: str, path: tuple[str, ...], skips: Skips) -> AvroFieldPlan:
        schema, namespace = self._resolved(schema, namespace)
        if isinstance(schema, list):
            return AvroFieldPlan(_joined(skips), self._choice(schema, namespace, path))
        if not path:
            return AvroFieldPlan(_joined(skips), self._field(schema))
        if schema.get("type") not in ("record", "error"):
            raise self._wrong(
                f"{path[0]!r} is looked for in a value of type {schema.get('type')!r}, which has no fields",
                "correct the path",
            )
        names = []
        for field in _fields(schema):
            if field.get("name") == path[0]:
                return self._follow(field.get("type"), namespace, path[1:], skips)
            names.append(str(field.get("name")))
            skips = (*skips, *self._skips(field.get("type"), namespace, str(field.get("name")), ()))
        known = ", ".join(names[:10])
        raise self._wrong(f"record {schema.get('name')!r} has no field {path[0]!r}", f"it has: {known}")

    def _choice(self, branches: list[Any], namespace: str, path: tuple[str, ...]) -> UnionPlan:
        """Null gives no time, as do branches that cannot; one of them must."""
        found: list[AvroFieldPlan | Absent] = []
        reasons: list[UnusableField] = []
        for branch in branches:
            resolved, inner = self._resolved(branch, namespace)
            if isinstance(resolved, list):
                raise self._wrong("a union in a union", "correct the schema")
            if resolved.get("type") == "null":
                found.append(Absent.NO_FIELD if path else Absent.NULL)
                continue
            try:
                found.append(self._follow(resolved, inner, path, ()))
            except UnusableField as reason:
                reasons.append(reason)
                found.append(Absent.NOT_A_TIME)
        if not any(isinstance(one, AvroFieldPlan) for one in found):
            raise reasons[0] if reasons else self._wrong("is always null", _TIMES)
        return UnionPlan(tuple(found))

    def _field(self, schema: dict[str, Any]) -> PlannedField:
        kind, logical = schema.get("type"), schema.get("logicalType")
        if kind == "string":
            return PlannedField(FieldEncoding.TEXT, Instant(self._format or TimeFormat.EPOCH_MS))
        told = _LOGICAL.get(str(logical)) if kind == "long" else None
        if told is not None and self._format not in (None, told):
            raise self._wrong(f"{self._format} is configured, and the schema says {logical}", f"say {told}")
        if kind not in ("int", "long", "double") or (logical is not None and told is None):
            word = f"{logical} ({kind})" if logical is not None else str(kind)
            why = ", which holds minutes at best" if kind == "float" else ""
            raise self._wrong(f"is of type {word}{why}, which is no time", _TIMES)
        time_format = told or self._format or TimeFormat.EPOCH_MS
        if time_format is TimeFormat.ISO_8601:
            raise self._wrong(
                f"iso-8601 is configured, and the field is of type {kind}", "say epoch-ms or -s"
            )
        return PlannedField(
            FieldEncoding.DOUBLE if kind == "double" else FieldEncoding.NUMBER, Instant(time_format)
        )

    # -- what is passed over -----------------------------------------------------------------------

    def _skips(self, schema: Any, namespace: str, before: str, around: tuple[int, ...]) -> Skips:
        """How to pass over a value.

        Args:
            before: the name of the field that holds it, for the words.
            around: the ids of the records and unions that it lies in.
        """
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise self._wrong(f"more than {MAX_STEPS} values stand before it", _ELSEWHERE)
        schema, namespace = self._resolved(schema, namespace)
        if id(schema) in around:
            raise self._wrong(f"{before!r} stands before it and holds itself", _ELSEWHERE)
        if len(around) > MAX_NESTED:
            raise self._wrong(f"{before!r} stands before it and is nested too deep", _ELSEWHERE)
        inner = (*around, id(schema))
        if isinstance(schema, list):
            return (tuple(self._skips(branch, namespace, before, inner) for branch in schema),)
        kind = schema.get("type")
        if kind in ("array", "map"):
            raise self._wrong(
                f"{before!r} stands before it, and {'an' if kind == 'array' else 'a'} {kind} has no bound",
                _ELSEWHERE,
            )
        if kind in ("record", "error"):
            found: list[Skip] = []
            for field in _fields(schema):
                found += self._skips(field.get("type"), namespace, f"{before}.{field.get('name')}", inner)
            return tuple(found)
        if kind == "enum":
            return (VARINT,)
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise self._wrong(f"{before!r} is fixed without a size", "correct the schema")
            return (size,)
        return (_FIXED[kind],)


def _full_name(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    """(full name, namespace of what is inside)."""
    name = str(schema.get("name"))
    if "." in name:
        return name, name.rpartition(".")[0]
    namespace = str(schema.get("namespace", namespace))
    return (f"{namespace}.{name}" if namespace else name), namespace


def _fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    fields = schema.get("fields")
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []


def _joined(skips: Skips) -> Skips:
    """The same with numbers of bytes side by side added up."""
    joined: list[Skip] = []
    for skip in skips:
        if isinstance(skip, tuple):
            joined.append(tuple(map(_joined, skip)))
        elif skip >= 0 and joined and isinstance(joined[-1], int) and joined[-1] >= 0:
            joined[-1] += skip
        elif skip != 0:
            joined.append(skip)
    return tuple(joined)
