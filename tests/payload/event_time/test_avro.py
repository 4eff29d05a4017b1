"""The event time in an Avro field is that of a full decode."""

from __future__ import annotations

import contextlib
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import SchemaParseException, UnknownType
from hypothesis import given
from hypothesis import strategies as st

from app.payload.codec import Framing
from app.payload.event_time import avro_prefix
from app.payload.event_time.avro_field import AvroTime
from app.payload.event_time.avro_prefix import MAX_FIELDS, prefix_of
from app.payload.event_time.avro_schemas import AvroSchemaFolder, open_avro
from app.payload.event_time.instant import MAX_MS, Absent, Instant, TimeFormat, UnusableField
from app.payload.schema_files import SchemaFiles

NOW_MS = 1_795_335_887_123


def _record(*fields: tuple[str, Any], name: str = "Event", **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": one, "type": kind} for one, kind in fields],
        **more,
    }


def _written(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    schemaless_writer(file, parse_schema(json.loads(json.dumps(schema))), value)
    return file.getvalue()


def _time_by(prefix: Any) -> AvroTime:
    return AvroTime(lambda _: prefix)


def _read(schema: Any, value: Any, *path: str, time_format: TimeFormat | None = None) -> int | Absent:
    prefix = prefix_of(json.dumps(schema), path, time_format)
    return _time_by(prefix).read(_written(schema, value))


def _refused(schema: Any, *path: str, time_format: TimeFormat | None = None) -> str:
    with pytest.raises(UnusableField) as caught:
        prefix_of(json.dumps(schema), path, time_format)
    assert caught.value.field == ".".join(path)
    assert caught.value.remedy
    return caught.value.problem


# -- any schema --------------------------------------------------------------------------------------

_LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=200)),
    ("string", st.text(max_size=80)),
    ({"type": "string", "avro.java.string": "String"}, st.text(max_size=5)),
    ({"type": "bytes", "logicalType": "unheard-of"}, st.binary(max_size=5)),
]
_TARGETS: list[tuple[Any, TimeFormat | None, st.SearchStrategy[Any]]] = [
    ({"type": "long", "logicalType": "timestamp-millis"}, None, st.integers(0, MAX_MS)),
    ({"type": "long", "logicalType": "timestamp-micros"}, TimeFormat.EPOCH_US, st.integers(0, MAX_MS * 1000)),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, None, st.integers(0, MAX_MS * 1000)),
    ("long", None, st.integers(-(2**63), 2**63 - 1)),
    ("long", TimeFormat.EPOCH_NS, st.integers(0, 2**63 - 1)),
    ("int", TimeFormat.EPOCH_S, st.integers(-(2**31), 2**31 - 1)),
    ("double", TimeFormat.EPOCH_S, st.floats(0, 1e12)),
    ("string", None, st.integers(0, MAX_MS).map(str) | st.text(max_size=70)),
    ("string", TimeFormat.ISO_8601, st.datetimes(datetime(1971, 1, 1)).map(str)),  # noqa: DTZ001
]  # fmt: skip


class _Names:
    """Names for types, each used once."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return f"T{self.count}"


def _any(draw: st.DrawFn, names: _Names, depth: int, *, bounded: bool) -> tuple[Any, Any]:
    """(a type, a value of it); `bounded`: without arrays and maps."""
    kind = draw(st.integers(0, (7 if bounded else 9) if depth else 3))
    if kind <= 3:
        schema, values = draw(st.sampled_from(_LEAVES))
        return schema, draw(values)
    if kind == 4:
        size = draw(st.integers(0, 9))
        return {"type": "fixed", "name": names.next(), "size": size}, draw(
            st.binary(min_size=size, max_size=size)
        )
    if kind == 5:
        symbols = ["A", "B", "C"]
        return {"type": "enum", "name": names.next(), "symbols": symbols}, draw(st.sampled_from(symbols))
    if kind == 6:
        schema, value = _any(draw, names, depth - 1, bounded=bounded)
        if schema == "null" or isinstance(schema, list):
            return schema, value
        return (["null", schema], draw(st.sampled_from([None, value])))
    if kind == 7:
        fields, values = _members(draw, names, depth - 1, draw(st.integers(0, 3)), bounded=bounded)
        return _record(*fields, name=names.next()), values
    schema, value = _any(draw, names, depth - 1, bounded=False)
    count = draw(st.integers(0, 3))
    if kind == 8:
        return {"type": "array", "items": schema}, [value] * count
    return {"type": "map", "values": schema}, {str(number): value for number in range(count)}


def _members(
    draw: st.DrawFn, names: _Names, depth: int, count: int, *, bounded: bool
) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    fields, values = [], {}
    for _ in range(count):
        name = f"f{names.next()}"
        schema, values[name] = _any(draw, names, depth, bounded=bounded)
        fields.append((name, schema))
    return fields, values


@given(st.data(), st.integers(0, 2), st.booleans(), st.binary(max_size=9))
def test_the_time_in_any_schema_is_that_of_a_full_decode(
    data: st.DataObject, outer: int, nullable: bool, garbage: bytes
) -> None:
    names = _Names()
    schema, time_format, values = data.draw(st.sampled_from(_TARGETS))
    value = expected = data.draw(values)
    scale = schema.get("logicalType", "")[-6:] if isinstance(schema, dict) else ""
    configured = time_format or {"millis": TimeFormat.EPOCH_MS, "micros": TimeFormat.EPOCH_US}.get(scale)
    instant = Instant(configured or TimeFormat.EPOCH_MS)
    if isinstance(value, str):
        time: int | Absent = instant.of_text(value)
    else:
        time = instant.of_float(value) if isinstance(value, float) else instant.of_int(value)
    if nullable:
        schema = data.draw(st.sampled_from([[schema, "null"], ["null", schema]]))
        if data.draw(st.booleans()):
            value, time = None, Absent.NULL
    path = []
    for level in range(outer + 1):
        before, first = _members(data.draw, names, 2, data.draw(st.integers(0, 3)), bounded=True)
        after, last = _members(data.draw, names, 2, data.draw(st.integers(0, 2)), bounded=False)
        schema = _record(*before, (f"at{level}", schema), *after, name=names.next(), namespace="a.b")
        value = {**first, f"at{level}": value, **last}
        path.insert(0, f"at{level}")
    packed = _written(schema, value)
    found: Any = schemaless_reader(io.BytesIO(packed), parse_schema(json.loads(json.dumps(schema))), None)
    for name in path:
        found = found[name]
    source = _time_by(prefix_of(json.dumps(schema), tuple(path), time_format))
    assert source.read(packed) == source.read(packed + garbage) == time
    if isinstance(found, datetime):
        moment = found if found.tzinfo else found.replace(tzinfo=UTC)
        assert (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) == time
    else:
        assert found is None if time is Absent.NULL else found == expected
    for end in range(len(packed)):
        cut = source.read(packed[:end])
        assert cut in (time, Absent.MALFORMED)  # cut off behind the field, or before it


@given(st.binary(max_size=60))
def test_any_bytes_give_a_time_or_a_reason(value: bytes) -> None:
    schema = _record(
        ("a", "string"), ("b", ["null", "bytes"]), ("c", {"type": "fixed", "name": "F", "size": 3}),
        ("d", ["null", _record(("x", ["null", "double", "string"]), name="D")]),
    )  # fmt: skip
    for path in (("a",), ("d", "x")):
        found = _time_by(prefix_of(json.dumps(schema), path, None)).read(value)
        assert isinstance(found, Absent) or 0 <= found <= MAX_MS


_FIXED = {"type": "fixed", "name": "F", "size": 3}
_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
_META = _record(("zone", "string"), ("ts", "long"), name="Meta")


@pytest.mark.parametrize(
    ("fields", "path", "value", "expected"),
    [  # the bytes are written by hand, from the specification
        ([("ts", "long")], "ts", "0a", 5),
        ([("ts", "long")], "ts", "96f0dca5c068", 1_795_335_887_883),
        ([("ts", "long")], "ts", "09", Absent.OUT_OF_RANGE),  # -5
        ([("ts", "long")], "ts", "feffffffffffffffff01", Absent.OUT_OF_RANGE),  # 2**63 - 1
        ([("ts", "long")], "ts", "", Absent.MALFORMED),
        ([("ts", "long")], "ts", "96f0dc", Absent.MALFORMED),
        ([("ts", "double")], "ts", "0000000000001440", 5),
        ([("ts", "double")], "ts", "00000000000014", Absent.MALFORMED),
        ([("ts", "double")], "ts", "000000000000f87f", Absent.NOT_A_TIME),  # NaN
        ([("ts", "string")], "ts", "0235", 5),
        ([("ts", "string")], "ts", "0435", Absent.MALFORMED),  # a byte too few
        ([("ts", "string")], "ts", "0135", Absent.MALFORMED),  # of length -1
        ([("ts", "string")], "ts", "02ff", Absent.NOT_A_TIME),
        ([("ts", "string")], "ts", "00", Absent.NOT_A_TIME),
        ([("ts", "string")], "ts", "feffffffffffffffff01", Absent.MALFORMED),  # of length 2**63 - 1
        ([("ts", ["null", "long"])], "ts", "00", Absent.NULL),
        ([("ts", ["null", "long"])], "ts", "020a", 5),
        ([("ts", ["null", "long"])], "ts", "040a", Absent.MALFORMED),  # a third branch
        ([("ts", ["string", "boolean", "double"])], "ts", "0201", Absent.NOT_A_TIME),
        ([("a", "bytes"), ("ts", "long")], "ts", "02ff0a", 5),
        ([("a", "string"), ("ts", "long")], "ts", "02ff0a", 5),  # UTF-8 before the field is not looked at
        ([("a", "bytes"), ("ts", "long")], "ts", "010a", Absent.MALFORMED),
        ([("a", "bytes"), ("ts", "long")], "ts", "c7010a", Absent.MALFORMED),
        ([("a", "float"), ("b", "boolean"), ("c", "null"), ("ts", "long")], "ts", "00000000010a", 5),
        ([("a", "float"), ("ts", "long")], "ts", "000000", Absent.MALFORMED),
        ([("a", _FIXED), ("b", "F"), ("c", _ENUM), ("ts", "long")], "ts", "112233445566020a", 5),
        (
            [("a", {"type": "fixed", "name": "F", "size": 2**70}), ("ts", "long")],
            "ts",
            "0a",
            Absent.MALFORMED,
        ),
        ([("a", ["null", "int"]), ("ts", "long")], "ts", "02020a", 5),
        ([("a", ["null", "int"]), ("ts", "long")], "ts", "0602", Absent.MALFORMED),
        ([("meta", _META)], "meta.ts", "027a0a", 5),
        ([("meta", ["null", _META, "string"])], "meta.ts", "02027a0a", 5),
        ([("meta", ["null", _META, "string"])], "meta.ts", "00", Absent.NO_FIELD),
        ([("meta", ["null", _META, "string"])], "meta.ts", "0400", Absent.NOT_A_TIME),
        ([("a", _META), ("meta", "Meta")], "meta.ts", "027a0a027a0c", 6),
    ],
)
def test_times_of_handwritten_records(
    fields: list[tuple[str, Any]], path: str, value: str, expected: int | Absent
) -> None:
    prefix = prefix_of(json.dumps(_record(*fields)), tuple(path.split(".")), None)
    assert _time_by(prefix).read(bytes.fromhex(value)) == expected


def test_each_branch_of_a_union_has_its_own_unit() -> None:
    def event(name: str, logical: str) -> dict[str, Any]:
        return _record(("id", "string"), ("at", {"type": "long", "logicalType": logical}), name=name)

    schema = [event("Old", "timestamp-millis"), event("New", "timestamp-micros"), _record(name="Other")]
    source = _time_by(prefix_of(json.dumps(schema), ("at",), None))
    assert source.read(bytes.fromhex("0000d00f")) == 1000
    assert source.read(bytes.fromhex("0200d00f")) == 1
    assert source.read(bytes.fromhex("04")) is Absent.NOT_A_TIME
    leaf = _record(("ts", ["int", {"type": "long", "logicalType": "timestamp-micros"}]))
    source = _time_by(prefix_of(json.dumps(leaf), ("ts",), None))
    assert source.read(bytes.fromhex("00d00f")) == 1000
    assert source.read(bytes.fromhex("02d00f")) == 1


@pytest.mark.parametrize(
    ("kind", "logical"),
    [("long", "unheard-of"), ("long", "date"), ("long", 5), ("long", None), ("int", "timestamp-micros")],
)
def test_a_logical_type_that_avro_does_not_define_for_the_type_is_ignored(kind: str, logical: Any) -> None:
    schema = _record(("ts", {"type": kind, "logicalType": logical}))
    assert _time_by(prefix_of(json.dumps(schema), ("ts",), None)).read(bytes.fromhex("d00f")) == 1000
    assert _time_by(prefix_of(json.dumps(schema), ("ts",), TimeFormat.EPOCH_S)).read(b"\x02") == 1000


@pytest.mark.parametrize("reference", ["Meta", "acme.Meta"])
def test_a_namespace_of_null_is_the_enclosing_one(reference: str) -> None:
    meta = {**_record(("zone", "string"), name="Meta"), "namespace": None}
    schema = _record(("first", meta), ("second", reference), ("ts", "long"), namespace="acme")
    source = _time_by(prefix_of(json.dumps(schema), ("ts",), None))
    assert source.read(bytes.fromhex("024102420a")) == 5
    whole = {**_record(("me", ["null", "Event"]), ("ts", "long")), "namespace": None}
    assert prefix_of(json.dumps(_record(("ts", "long"), ("e", whole), name="Top")), ("ts",), None)
    with pytest.raises(UnusableField, match="defines Event twice"):
        prefix_of(json.dumps([whole, _record(name="Event")]), ("ts",), None)


def test_an_endless_number_takes_linear_time() -> None:
    """In quadratic time, the test would time out."""
    source = _time_by(prefix_of(json.dumps(_record(("a", "long"), ("ts", "long"))), ("ts",), None))
    assert source.read(b"\x80" * 10**6) is Absent.MALFORMED
    assert source.read(b"\x80" * 10**6 + b"\x01\x0a") == 5


@pytest.mark.parametrize(
    ("kinds", "value", "time_ms"),
    [
        (["long"], "80" * 10 + "02", 64),
        (["long"], "8280" + "80" * 11 + "00", 1),
        (["long", "long"], "80" * 12 + "010a", 5),
        ([["null", "long"]], "010a", 5),  # branch -1
        ([["long", "null"]], "030a", 5),  # branch -2
        ([["null", "string"], "long"], "030a", 5),  # before the field
        ([["null", "long"]], "03", Absent.NULL),
        ([["null", "long"]], "050a", Absent.MALFORMED),  # branch -3
    ],
)
def test_a_damaged_number_or_branch_is_read_as_fastavro_reads_it(
    kinds: list[Any], value: str, time_ms: int | Absent
) -> None:
    """Rule 5 of `avro_prefix`. If fastavro begins to refuse them, correct rule, limits and decision."""
    schema = _record(*[(f"f{number}", kind) for number, kind in enumerate(kinds)])
    source = _time_by(prefix_of(json.dumps(schema), (f"f{len(kinds) - 1}",), None))
    assert source.read(bytes.fromhex(value)) == time_ms


# -- the way to the field ----------------------------------------------------------------------------


def test_large_values_before_the_field_are_skipped() -> None:
    schema = _record(("a", "bytes"), ("b", ["null", "string"]), ("ts", "long"))
    assert _read(schema, {"a": b"x" * 10**7, "b": "y" * 10**7, "ts": NOW_MS}, "ts") == NOW_MS


def test_types_are_found_by_their_names() -> None:
    money = {"type": "fixed", "name": "Money", "size": 8}
    origin = _record(("zone", "string"), ("at", "long"), name="other.Origin")
    schema = _record(
        ("a", money), ("b", "Money"), ("c", "acme.Money"), ("d", origin), ("e", "other.Origin"),
        name="acme.Event",
    )  # fmt: skip
    there = {"zone": "z", "at": NOW_MS}
    value = {"a": b"1" * 8, "b": b"2" * 8, "c": b"3" * 8, "d": {"zone": "", "at": 1}, "e": there}
    assert _read(schema, value, "e", "at") == NOW_MS


def test_a_field_in_a_branch_is_found_there_and_absent_in_others() -> None:
    meta = _record(("id", "string"), ("at", "long"), name="Meta")
    schema = _record(("meta", ["null", meta, "string"]))
    assert _read(schema, {"meta": {"id": "i", "at": NOW_MS}}, "meta", "at") == NOW_MS
    assert _read(schema, {"meta": None}, "meta", "at") is Absent.NO_FIELD
    assert _read(schema, {"meta": "text"}, "meta", "at") is Absent.NOT_A_TIME


@pytest.mark.parametrize("before", [{"type": "array", "items": "int"}, {"type": "map", "values": "int"}])
def test_an_array_or_map_before_the_field_is_refused_with_its_name(before: Any) -> None:
    words = "its type (array) has no bound" if before["type"] == "array" else "its type (map) has no bound"
    assert (
        _refused(_record(("tags", before), ("ts", "long")), "ts")
        == f"'tags' comes before the field, but {words}"
    )
    assert _refused(_record(("tags", ["null", before]), ("ts", "long")), "ts").startswith("'tags' comes")
    inner = _record(("x", before), name="Inner")
    assert _refused(_record(("o", ["null", inner]), ("ts", "long")), "ts").startswith("'o.x' comes before")
    assert "has no bound" in _refused(
        _record(("o", _record(("x", before), ("ts", "long"), name="I"))), "o", "ts"
    )
    prefix_of(json.dumps(_record(("ts", "long"), ("tags", before))), ("ts",), None)


def test_a_recursive_record_before_the_field_is_refused() -> None:
    chain = _record(("next", ["null", "Chain"]), name="Chain")
    assert (
        _refused(_record(("c", chain), ("ts", "long")), "ts")
        == "'c.next' comes before the field and is recursive"
    )
    schema = _record(("ts", "long"), ("c", chain))
    assert _read(schema, {"ts": NOW_MS, "c": {"next": {"next": None}}}, "ts") == NOW_MS


def test_a_schema_that_doubles_at_each_level_is_refused_in_time() -> None:
    inner: Any = _record(("x", "int"), ("y", "int"), name="R0")
    for level in range(1, 40):  # 2**40 numbers
        inner = _record(("x", inner), ("y", f"R{level - 1}"), name=f"R{level}")
    assert f"more than {MAX_FIELDS} fields" in _refused(_record(("r", inner), ("ts", "long")), "ts")


def test_branches_that_multiply_along_the_path_are_refused() -> None:
    """Two branches at each of 60 steps would make 2**60 records."""
    fields = ("ts", "long"), ("u", ["A", "B"])
    left, right = (_record(*fields, name=name) for name in "AB")
    schema = _record(("u", [left, right]))
    assert "more than 1000 fields and union branches" in _refused(schema, *["u"] * 60, "ts")
    assert "the path has 65 names" in _refused(schema, *["u"] * 64, "ts")
    assert prefix_of(json.dumps(schema), ("u", "u", "ts"), None)


def test_fields_on_the_path_and_their_branches_count_too() -> None:
    plain = [(f"f{number}", "int") for number in range(MAX_FIELDS - 2)]
    prefix_of(json.dumps(_record(*plain, ("ts", "long"))), ("ts",), None)
    assert "lead to the field or come before it" in _refused(
        _record(*plain, ("g", "int"), ("ts", "long")), "ts"
    )
    assert "lead to the field or come before it" in _refused(_record(*plain, ("ts", ["null", "long"])), "ts")
    small = _record(("ts", "long"), name="Small")
    large = _record(*plain, ("ts", "long"), name="Large")
    assert "lead to the field or come before it" in _refused([small, large], "ts")


@pytest.mark.parametrize(
    "unions",
    [
        [("a", ["int", "long"])],  # both are read as long
        [("a", ["string", "bytes", {"type": "enum", "name": "E", "symbols": ["A"]}])],
        [("a", ["int", ["null", "long"]])],
        [("a", [])],
        [("ts", ["long", "long"])],
        [("a", "null"), ("b", {"type": "fixed", "name": "F", "size": 0})],
    ],
)
def test_fastavro_accepts_prefixes_with_unions_that_avro_forbids(unions: list[tuple[str, Any]]) -> None:
    """If a release of fastavro refused them, stored plans would lose their event time."""
    assert prefix_of(
        json.dumps(_record(*unions, *([] if unions[0][0] == "ts" else [("ts", "long")]))), ("ts",), None
    )


def test_a_prefix_that_fastavro_refuses_is_an_unusable_field(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (SchemaParseException("duplicate branch"), UnknownType("long")):

        def refuses(_: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(avro_prefix, "parse_schema", refuses)
        assert "fastavro refuses the schema: " in _refused(_record(("ts", "long")), "ts")


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        (_record(("ts", "long")), ("at",), "record 'Event' has no field 'at'"),
        (_record(("ts", "long")), ("ts", "at"), "'at' is looked for in a value of type 'long'"),
        (_record(("ts", "float")), ("ts",), "is of type float, which is exact to minutes at best"),
        (_record(("ts", {"type": "int", "logicalType": "date"})), ("ts",), "is of type date (int)"),
        (_record(("ts", {"type": "long", "logicalType": "time-micros"})), ("ts",), "time-micros (long)"),
        (_record(("ts", "boolean")), ("ts",), "is of type boolean, which cannot be a time"),
        (_record(("ts", ["null", "bytes"])), ("ts",), "is of type bytes, which cannot be a time"),
        (_record(("ts", ["null"])), ("ts",), "is always null"),
        (_record(("ts", _record(("a", "int"), name="B"))), ("ts",), "is of type record"),
        (_record(("x", "Nowhere"), ("ts", "long")), ("ts",), "does not define 'Nowhere'"),
        (_record(("x", {"type": "fixed", "name": "F"}), ("ts", "long")), ("ts",), "a fixed without a size"),
        (_record(("x", 5), ("ts", "long")), ("ts",), "holds '5', which is not a type"),
        (_record(("x", [["null"]]), ("ts", "long")), ("at",), "has no field"),
        (_record(("ts", [["null"]])), ("ts",), "a union contains a union"),
        ("long", ("ts",), "'ts' is looked for in a value of type 'long'"),
        ({"type": {"type": {"type": None}}}, ("ts",), "which is not a type"),
        ([], ("ts",), "is always null"),
        (None, ("ts",), "which is not a type"),
        (_record(("a", _record(name="Event"))), ("ts",), "defines Event twice"),
    ],
)
def test_a_schema_without_the_field_is_refused_with_a_reason(
    schema: Any, path: tuple[str, ...], words: str
) -> None:
    assert words in _refused(schema, *path)


def test_a_format_that_the_schema_contradicts_is_refused() -> None:
    schema = _record(("ts", {"type": "long", "logicalType": "timestamp-micros"}))
    problem = _refused(schema, "ts", time_format=TimeFormat.EPOCH_MS)
    assert problem == "epoch-ms is configured, but the schema says timestamp-micros"
    assert "iso-8601 is configured" in _refused(
        _record(("ts", "long")), "ts", time_format=TimeFormat.ISO_8601
    )


@given(st.recursive(
    st.none() | st.integers() | st.sampled_from(["record", "array", "long", "union", "ts", "Event", "null"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "name", "fields", "items", "size", "namespace"]), inner, max_size=4
    ),
    max_leaves=12,
))  # fmt: skip
def test_any_json_is_accepted_as_a_schema_or_refused(schema: Any) -> None:
    for text in (schema, _record(("x", schema), ("ts", "long"))):
        with contextlib.suppress(UnusableField):
            prefix_of(json.dumps(text), ("ts",), None)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"[" * 100_000, b'{"type":' * 900 + b'"int"' + b"}" * 900]
)
def test_bytes_that_are_not_a_schema_are_refused(text: bytes) -> None:
    with pytest.raises(UnusableField, match="ts: "):
        prefix_of(text, ("ts",), None)


# -- framing and folders -----------------------------------------------------------------------------


def _framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def test_a_framed_value_is_read_by_the_schema_that_it_names(tmp_path: Path) -> None:
    older, newer = _record(("ts", "long")), _record(("id", "string"), ("ts", ["null", "long"]))
    (tmp_path / "7.avsc").write_text(json.dumps(older))
    (tmp_path / "8.avsc").write_text(json.dumps(newer))
    (tmp_path / "9.avsc").write_text(json.dumps(_record(("other", "int"))))
    (tmp_path / "README.avsc").write_text("passed over")
    source = open_avro(tmp_path, ("ts",), None, Framing.CONFLUENT)
    assert source.read(_framed(7, _written(older, {"ts": NOW_MS}))) == NOW_MS
    assert source.read(_framed(8, _written(newer, {"id": "x", "ts": NOW_MS}))) == NOW_MS
    assert source.read(_framed(9, b"\2")) is Absent.UNKNOWN_SCHEMA
    assert source.read(_framed(10, b"\2")) is Absent.UNKNOWN_SCHEMA
    assert source.read(b"\1\0\0\0\7\2") is Absent.MALFORMED
    assert source.read(b"\0\0\0\0") is Absent.MALFORMED
    assert source.read(b"") is Absent.MALFORMED


def test_a_schema_that_is_added_later_is_found_and_unknown_ids_read_no_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "1.avsc").write_text(json.dumps(_record(("ts", "long"))))
    files = SchemaFiles(tmp_path)
    folder = AvroSchemaFolder(tmp_path, ("ts",), None, files)
    assert folder.prefix(2) is None
    (tmp_path / "2.avsc").write_text(json.dumps(_record(("ts", "double"))))
    assert folder.prefix(2) is None, "a value asks memory only"
    files.refresh()
    assert folder.prefix(2) is not None
    (tmp_path / "3.avsc").write_text(json.dumps(_record(("at", "long"))))
    files.refresh()
    assert folder.prefix(3) is None
    assert "has no field 'ts'" in folder.unusable[3].problem


def test_one_file_counts_for_every_id(tmp_path: Path) -> None:
    schema = _record(("ts", "long"))
    (tmp_path / "event.avsc").write_text(json.dumps(schema))
    body = _written(schema, {"ts": NOW_MS})
    assert (
        open_avro(tmp_path / "event.avsc", ("ts",), None, Framing.CONFLUENT).read(_framed(99, body)) == NOW_MS
    )
    assert open_avro(tmp_path / "event.avsc", ("ts",), None, Framing.NONE).read(body) == NOW_MS


def test_files_that_cannot_be_used_are_refused_with_their_names(tmp_path: Path) -> None:
    def refused(source: Path, framing: Framing = Framing.CONFLUENT) -> str:
        with pytest.raises(UnusableField) as caught:
            open_avro(source, ("ts",), None, framing)
        return str(caught.value)

    assert f"{tmp_path} holds no schema" in refused(tmp_path)
    assert "is a folder, but values without framing name no schema" in refused(tmp_path, Framing.NONE)
    assert "cannot be read: No such file" in refused(tmp_path / "gone.avsc")
    (tmp_path / "1.avsc").write_text(json.dumps(_record(("at", "long"))))
    assert f"ts: {tmp_path / '1.avsc'}: record 'Event' has no field 'ts'; it has: at" in refused(tmp_path)
    (tmp_path / "2.avsc").write_text(json.dumps(_record(("ts", "long"))))
    open_avro(tmp_path, ("ts",), None, Framing.CONFLUENT)
