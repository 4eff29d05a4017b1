"""Cuts an Avro schema off behind a field. fastavro reads values by such a prefix, a schema of its own.

Avro writes the fields of a record one after the other, without their lengths. So a reader has to read all
fields before the one that it wants, but none behind it.

    record Event                          record T3
      id: string                            f0: bytes
      meta: union                           NO_FIELD: union
        null                                  null
        record Meta                           record T1
          zone: string               ->         f0: bytes
          at: long, timestamp-micros            EPOCH_US: long
          tags: array
        string                                record T2, without fields
      body: string

Rules
1. No array, no map and no recursive record may come before the field, because fastavro does not bound them. A
   value of 10 bytes can announce 2**62 nulls, and a megabyte of nested records overflows the stack.
2. All other values take time and memory in proportion to their size. A megabyte takes at most 33 ms, if it is
   one endless number. A null has no bytes, so a prefix has at most `MAX_FIELDS` fields and union branches.
3. Text before the field is read as bytes, so its UTF-8 does not matter.
4. The last field of each record on the path leads to the wanted field. Its name is the `TimeFormat` of its
   value, or the `Absent` that a null means. A branch of a union that cannot hold a time is a record without
   fields.
5. A logical type that Avro does not define, or not for the field's type, is ignored.
6. A damaged value may have a wrong time, because fastavro checks less than the specification demands. It
   reads a number of 11 or more bytes as another number. It takes the branches -1 to -n of a union for its n
   branches, beginning with the last.

Source: Apache Avro 1.12, "Binary encoding". `tests/payload/event_time/test_avro.py` compares with a full
decode.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.types import Schema

from app.kernel.json_types import JsonObject
from app.payload.event_time.instant import Absent, TimeFormat, UnusableField

MAX_SCHEMA_BYTES = 1024 * 1024
MAX_FIELDS = 1_000  # fields and union branches up to the field, those on its path included
MAX_NESTED = 64  # levels of records and unions; names in a path

# Primitive types, as a prefix has them.
_PLAIN = {
    "null": "null",
    "boolean": "boolean",
    "int": "long",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "bytes",
}
_LOGICAL = {
    f"{local}timestamp-{unit}": time_format
    for local in ("", "local-")
    for unit, time_format in (
        ("millis", TimeFormat.EPOCH_MS),
        ("micros", TimeFormat.EPOCH_US),
        ("nanos", TimeFormat.EPOCH_NS),
    )
}
_OTHER_TIMES = {("int", "date"), ("int", "time-millis"), ("long", "time-micros")}  # not points in time
_OTHER_PLACES = (
    "name a field before it, move the field to the front of its record, or take the time from a header"
)
_TIMES = "name a long (timestamp-millis), an int, a double or a string"


class _Field(NamedTuple):
    name: str
    type: Any


def prefix_of(schema: bytes | str, path: tuple[str, ...], time_format: TimeFormat | None) -> Schema:
    """The prefix of a schema (.avsc) up to the field at `path`, which leads through nested records.

    Args:
        time_format: The configured format; None: the unit of the field's logical type, else `EPOCH_MS`.

    Raises:
        UnusableField: The schema lacks the field, it cannot be a time, or fastavro cannot reach it safely.
    """
    name = ".".join(path)
    if len(schema) > MAX_SCHEMA_BYTES:
        raise UnusableField(
            name, f"the schema has {len(schema)} bytes", f"give one of at most {MAX_SCHEMA_BYTES}"
        )
    if len(path) > MAX_NESTED:
        raise UnusableField(name, f"the path has {len(path)} names", f"write at most {MAX_NESTED}")
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError):
        raise UnusableField(name, "the schema is not JSON", "give an Avro schema (.avsc)") from None
    try:
        return _PrefixBuilder(name, time_format).prefix(parsed, path)
    except RecursionError:
        raise UnusableField(name, "the schema is nested too deep", _OTHER_PLACES) from None


class _Named(NamedTuple):
    """A type with a name, and the namespace of the names in it."""

    schema: JsonObject
    namespace: str


class _PrefixBuilder:
    def __init__(self, name: str, time_format: TimeFormat | None) -> None:
        self._name = name
        self._format = time_format
        self._named: dict[str, _Named] = {}
        self._fields = 0
        self._types_with_names = 0

    def prefix(self, schema: Any, path: tuple[str, ...]) -> Schema:
        self._collect_names(schema, "")
        prefix = self._record_of(self._to_field(schema, "", path))
        self._count_field(0)  # again, because `_union_branches` takes a refused branch for one without a time
        try:
            return parse_schema(prefix)
        except (SchemaParseException, UnknownType) as error:  # unions that Avro forbids
            raise self._wrong(f"fastavro refuses the schema: {error}", "correct the schema") from None

    def _count_field(self, fields: int = 1) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise self._wrong(
                f"more than {MAX_FIELDS} fields and union branches lead to the field or come before it",
                _OTHER_PLACES,
            )

    def _wrong(self, problem: str, remedy: str) -> UnusableField:
        return UnusableField(self._name, problem, remedy)

    # -- names -------------------------------------------------------------------------------------

    def _collect_names(self, schema: Any, namespace: str) -> None:
        """Collects all types that have a name."""
        if isinstance(schema, list):
            for branch in schema:
                self._collect_names(branch, namespace)
        if not isinstance(schema, dict):
            return
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            full, namespace = _full_name(schema, namespace)
            if full in self._named:
                raise self._wrong(f"the schema defines {full} twice", "correct the schema")
            self._named[full] = _Named(schema, namespace)
            for field in _fields(schema):
                self._collect_names(field.get("type"), namespace)
        else:
            for part in (kind, schema.get("items"), schema.get("values")):
                if isinstance(part, dict | list):
                    self._collect_names(part, namespace)

    def _resolved(self, schema: Any, namespace: str) -> tuple[Any, str]:
        """(the schema without names and wrappers, its namespace); primitives as {"type": name, …}."""
        for _ in range(MAX_NESTED):
            if isinstance(schema, list):
                return schema, namespace
            if isinstance(schema, str):
                found = self._named.get(
                    f"{namespace}.{schema}" if namespace and "." not in schema else schema
                )
                found = found or self._named.get(schema)
                if schema in _PLAIN and found is None:
                    return {"type": schema}, namespace
                if found is None:
                    raise self._wrong(
                        f"the schema does not define {schema[:200]!r}", "add its definition to the schema"
                    )
                return found.schema, found.namespace
            if not isinstance(schema, dict):
                break
            kind = schema.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                return schema, _full_name(schema, namespace)[1]
            if isinstance(kind, str) and (kind in _PLAIN or kind in ("array", "map")):
                return schema, namespace
            schema = kind
        raise self._wrong(
            f"the schema holds {str(schema)[:100]!r}, which is not a type", "correct the schema"
        )

    # -- up to the field ---------------------------------------------------------------------------

    def _to_field(self, schema: Any, namespace: str, path: tuple[str, ...]) -> _Field:
        """The last field of a prefix for a value of this schema, which leads along `path`."""
        self._count_field()
        schema, namespace = self._resolved(schema, namespace)
        if isinstance(schema, list):
            why_null = Absent.NO_FIELD if path else Absent.NULL
            return _Field(why_null.name, self._union_branches(schema, namespace, path))
        if not path:
            return self._time_field(schema)
        if schema.get("type") not in ("record", "error"):
            raise self._wrong(
                f"{path[0]!r} is looked for in a value of type {schema.get('type')!r}, which has no fields",
                "correct the path",
            )
        names: list[str] = []
        found: list[_Field] = []
        for field in _fields(schema):
            kind, name = field.get("type"), str(field.get("name"))
            if field.get("name") == path[0]:
                found.append(self._to_field(kind, namespace, path[1:]))
                return _Field(Absent.NO_FIELD.name, self._record(found))
            names.append(name)
            found.append(_Field(f"f{len(found)}", self._type_before(kind, namespace, name, ())))
        known = ", ".join(names[:10])
        raise self._wrong(f"record {schema.get('name')!r} has no field {path[0]!r}", f"it has: {known}")

    def _union_branches(self, branches: list[Any], namespace: str, path: tuple[str, ...]) -> list[Any]:
        """The branches of a union. At least one can hold a time; the others are records without fields."""
        found: list[Any] = []
        reasons: list[UnusableField] = []
        for branch in branches:
            resolved, inner = self._resolved(branch, namespace)
            if isinstance(resolved, list):
                raise self._wrong("a union contains a union", "correct the schema")
            if resolved.get("type") == "null":
                found.append("null")
                continue
            try:
                found.append(self._record_of(self._to_field(resolved, inner, path)))
            except UnusableField as reason:
                reasons.append(reason)
                found.append(self._record([]))
        if all(branch == "null" or not branch["fields"] for branch in found):
            raise reasons[0] if reasons else self._wrong("is always null", _TIMES)
        return found

    def _time_field(self, schema: JsonObject) -> _Field:
        kind, logical = schema.get("type"), schema.get("logicalType")
        if kind == "string":
            return _Field((self._format or TimeFormat.EPOCH_MS).name, _PLAIN[kind])
        unit = _LOGICAL.get(str(logical)) if kind == "long" else None
        if unit is not None and self._format not in (None, unit):
            raise self._wrong(f"{self._format} is configured, but the schema says {logical}", f"use {unit}")
        if kind not in ("int", "long", "double") or (kind, str(logical)) in _OTHER_TIMES:
            word = f"{logical} ({kind})" if logical is not None else str(kind)
            why = ", which is exact to minutes at best" if kind == "float" else ""
            raise self._wrong(f"is of type {word}{why}, which cannot be a time", _TIMES)
        time_format = unit or self._format or TimeFormat.EPOCH_MS
        if time_format is TimeFormat.ISO_8601:
            raise self._wrong(
                f"iso-8601 is configured, but the field is of type {kind}", "use epoch-ms or epoch-s"
            )
        return _Field(time_format.name, _PLAIN[kind])

    def _record(self, fields: list[_Field]) -> JsonObject:
        return {**self._type_with_name("record"), "fields": [field._asdict() for field in fields]}

    def _record_of(self, field: _Field) -> JsonObject:
        """A record of this field alone, or the field's own type if that is a record."""
        return field.type if isinstance(field.type, dict) else self._record([field])

    def _type_with_name(self, kind: str) -> JsonObject:
        self._types_with_names += 1
        return {"type": kind, "name": f"T{self._types_with_names}"}

    # -- before the field --------------------------------------------------------------------------

    def _type_before(self, schema: Any, namespace: str, field_name: str, enclosing: tuple[int, ...]) -> Any:
        """The type of a value that comes before the field.

        `field_name` holds the value, for errors; `enclosing` has the ids of the records and unions around it.
        """
        self._count_field()
        schema, namespace = self._resolved(schema, namespace)
        if id(schema) in enclosing:
            raise self._wrong(f"{field_name!r} comes before the field and is recursive", _OTHER_PLACES)
        if len(enclosing) > MAX_NESTED:
            raise self._wrong(f"{field_name!r} comes before the field and is nested too deep", _OTHER_PLACES)
        inner = (*enclosing, id(schema))
        if isinstance(schema, list):
            return [self._type_before(branch, namespace, field_name, inner) for branch in schema]
        kind = schema.get("type")
        if kind in ("array", "map"):
            raise self._wrong(
                f"{field_name!r} comes before the field, but its type ({kind}) has no bound",
                _OTHER_PLACES,
            )
        if kind in ("record", "error"):
            found: list[_Field] = []
            for field in _fields(schema):
                name = f"{field_name}.{field.get('name')}"
                found.append(
                    _Field(f"f{len(found)}", self._type_before(field.get("type"), namespace, name, inner))
                )
            return self._record(found)
        if kind == "enum":
            return "long"
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise self._wrong(f"{field_name!r} is a fixed without a size", "correct the schema")
            return {**self._type_with_name("fixed"), "size": size}
        return _PLAIN[kind]


def _full_name(schema: JsonObject, namespace: str) -> tuple[str, str]:
    """(full name, namespace of the names inside)."""
    name = str(schema.get("name"))
    if "." in name:
        return name, name.rpartition(".")[0]
    given = schema.get("namespace")
    namespace = namespace if given is None else str(given)  # null is as good as none
    return (f"{namespace}.{name}" if namespace else name), namespace


def _fields(schema: JsonObject) -> list[JsonObject]:
    fields = schema.get("fields")
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
