"""How fast a value's event time is found, on one core, against decoding the whole value.

JSON of 200 B to 1 MB, with the field near the head or near the end, is compared with `orjson.loads` and a
lookup, the obvious way. Further rows: nested fields, ISO 8601, a list of records that have the same key, one
large text, no such field. Avro is compared with fastavro and the whole schema, Protobuf with its own parser.
All values of a row differ; both sides must find the same times before they are timed.
"""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from google.protobuf import descriptor_pb2

from app.payload.descriptors import Schema
from app.payload.event_time.avro_field import AvroTime
from app.payload.event_time.avro_prefix import prefix_of
from app.payload.event_time.instant import Absent, Instant, TimeFormat
from app.payload.event_time.json_field import JsonTime
from app.payload.event_time.protobuf_field import ProtobufTime
from tests.bench.run import Pair, Progress, alternate

VALUES = 50  # of a row, all different
LARGEST_VALUES = 5  # of a megabyte each
BYTES_A_ROUND = 10_000_000
MOST_PASSES = 1_000
ROUNDS = 5
SEED = 8
FIRST_MS = 1_795_335_887_000
SIZES = {"200 B": 200, "2 KB": 2_000, "9 KB": 9_000, "50 KB": 50_000, "1 MB": 1_000_000}
WORDS = [
    "order",
    "paid",
    "sent",
    "city",
    "east",
    "west",
    "lorem",
    "10%",
    '"quoted"',
    "naïve",
    "path/to",
    "line\n",
]

Read = Callable[[bytes], int | Absent]


def per_s(read: Read, values: Sequence[bytes]) -> float:
    """Values a second of CPU time."""
    size = sum(map(len, values))
    passes = max(3, min(MOST_PASSES, BYTES_A_ROUND // size))
    began_s = time.thread_time()
    for _ in range(passes):
        for value in values:
            read(value)
    return passes * len(values) / (time.thread_time() - began_s)


def compared(ours: Read, peer: Read, values: Sequence[bytes]) -> Pair:
    """Both over the same values, by turns.

    Raises:
        AssertionError: They find different times.
    """
    for value in values:
        if ours(value) != peer(value):
            raise AssertionError(f"{ours(value)} and {peer(value)} of {value[:200]!r}")
    return alternate(lambda: per_s(ours, values), lambda: per_s(peer, values), ROUNDS)


# -- JSON --------------------------------------------------------------------------------------------


def members(source: random.Random, size: int, least: int) -> dict[str, Any]:
    """Members of about `size` bytes of JSON, as events have them: text, numbers, some objects and lists."""
    found: dict[str, Any] = {}
    written = 0
    while written < size or len(found) < least:
        name = f"{source.choice(WORDS[:6])}_{len(found)}"
        kind = source.randrange(10)
        value: Any
        if kind < 5:
            value = " ".join(source.choices(WORDS, k=source.randrange(1, 6)))
        elif kind < 7:
            value = source.randrange(10**9)
        elif kind == 7:
            value = source.random()
        elif kind == 8:
            value = {"lat": source.random(), "lon": source.random(), "ok": True}
        else:
            value = source.choices(WORDS, k=3)
        found[name] = value
        written += len(orjson.dumps(value)) + len(name) + 4
    return found


def texts(size: int, at_end: bool, field: Callable[[int], dict[str, Any]]) -> list[bytes]:
    """Values of about `size` bytes with the field's member second, or second to last."""
    source = random.Random(SEED)
    found = []
    for number in range(VALUES if size < SIZES["1 MB"] else LARGEST_VALUES):
        whole = list(members(source, size - 30, 3).items())
        whole[-1 if at_end else 1 : -1 if at_end else 1] = field(FIRST_MS + number).items()
        found.append(orjson.dumps(dict(whole)))
    return found


def decoded(path: Sequence[str], time_format: TimeFormat = TimeFormat.EPOCH_MS) -> Read:
    """The whole value by orjson, then the field."""
    instant = Instant(time_format)
    loads = orjson.loads

    def read(value: bytes) -> int | Absent:
        try:
            found = loads(value)
            for name in path:
                found = found[name]
        except (orjson.JSONDecodeError, LookupError, TypeError):
            return Absent.NO_FIELD
        return instant.of_int(found) if type(found) is int else instant.of_text(found)

    return read


def plain(time_ms: int) -> dict[str, Any]:
    return {"ts": time_ms}


def nested(time_ms: int) -> dict[str, Any]:
    return {"meta": {"id": "e-1", "origin": {"ts": time_ms, "zone": "a"}}}


def iso(time_ms: int) -> dict[str, Any]:
    return {"ts": datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")}


def listed(size: int) -> Callable[[int], dict[str, Any]]:
    def field(time_ms: int) -> dict[str, Any]:
        return {"items": [{"id": n, "ts": n, "name": "x"} for n in range(size // 33)], "ts": time_ms}

    return field


def json_rows() -> list[tuple[str, Pair, str]]:
    """(row, both, the peer)."""
    rows: list[tuple[str, Pair, str]] = []
    peer = "orjson.loads of the whole value"
    found = decoded(["ts"])
    ours = JsonTime(["ts"])
    for size, count in SIZES.items():
        for where, at_end in (("near the head", False), ("near the end", True)):
            values = texts(count, at_end, plain)
            rows.append((f"json, {size}, {where}", compared(ours.read, found, values), peer))
    for size, count in SIZES.items():
        path = ["meta", "origin", "ts"]
        values = texts(count, True, nested)
        rows.append(
            (f"json, {size}, nested near the end", compared(JsonTime(path).read, decoded(path), values), peer)
        )
        absent = JsonTime(["no_such"]).read
        rows.append((f"json, {size}, no such field", compared(absent, decoded(["no_such"]), values), peer))
    values = texts(200, False, iso)
    as_iso = JsonTime(["ts"], TimeFormat.ISO_8601).read
    pair = compared(as_iso, decoded(["ts"], TimeFormat.ISO_8601), values)
    rows.append(("json, 200 B, near the head, iso-8601", pair, peer))
    for size, count in (("2 KB", 2_000), ("100 KB", 100_000)):
        values = texts(100, True, listed(count))
        rows.append(
            (f"json, {size}, behind a list of records with the key", compared(ours.read, found, values), peer)
        )
    blob = [
        orjson.dumps({"id": n, "body": "lorem ipsum " * 8_000, "ts": FIRST_MS + n}) for n in range(VALUES)
    ]
    rows.append(("json, 100 KB, behind one text", compared(ours.read, found, blob), peer))
    escaped = [orjson.dumps({"id": n, "body": 'a "b"\n' * 12_000, "ts": FIRST_MS + n}) for n in range(VALUES)]
    rows.append(("json, 100 KB, behind one text with escapes", compared(ours.read, found, escaped), peer))
    ascii_only = [
        json.dumps({"id": n, "body": "é\u4e2d" * 1_000, "ts": FIRST_MS + n}).encode() for n in range(VALUES)
    ]
    rows.append(("json, 12 KB, behind one text of \\u00e9", compared(ours.read, found, ascii_only), peer))
    return rows


# -- schemas -----------------------------------------------------------------------------------------


def avro_row(size: int) -> Pair:
    """A record of an id, a text, the time and a body of `size` bytes."""
    kinds = [("id", "string"), ("kind", ["null", "string"]), ("ts", "long"), ("body", "string"), ("n", "int")]
    fields = [{"name": name, "type": kind} for name, kind in kinds]
    schema = {"type": "record", "name": "Event", "fields": fields}
    parsed = parse_schema(schema)
    values = []
    for number in range(VALUES):
        file = io.BytesIO()
        record = {"id": f"e-{number}", "kind": "paid", "ts": FIRST_MS + number, "body": "x" * size, "n": 1}
        schemaless_writer(file, parsed, record)
        values.append(file.getvalue())
    instant = Instant(TimeFormat.EPOCH_MS)

    def peer(value: bytes) -> int | Absent:
        whole: Any = schemaless_reader(io.BytesIO(value), parsed, None)
        return instant.of_int(whole["ts"])

    prefix = prefix_of(json.dumps(schema), ("ts",), None)
    return compared(AvroTime(lambda schema_id: prefix).read, peer, values)


def protobuf_row(size: int) -> Pair:
    """The same as a message."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Event")
    for number, (name, kind) in enumerate([("id", 9), ("kind", 9), ("ts", 3), ("body", 9), ("n", 5)], 1):
        message.field.add(name=name, number=number, label=1, type=kind)  # type: ignore[arg-type]
    event: Any = Schema(Path("event.binpb"), [file]).message_class("bench.Event")
    values = [
        event(id=f"e-{n}", kind="paid", ts=FIRST_MS + n, body="x" * size, n=1).SerializeToString()
        for n in range(VALUES)
    ]
    instant = Instant(TimeFormat.EPOCH_MS)

    def peer(value: bytes) -> int | Absent:
        return instant.of_int(event.FromString(value).ts)

    return compared(ProtobufTime(event, ("ts",)).read, peer, values)


def run(progress: Progress) -> dict[str, Any]:
    """Runs all rows."""
    rows = json_rows()
    for size, count in SIZES.items():
        rows.append((f"avro, {size}", avro_row(count), "fastavro of the whole value"))
        rows.append((f"protobuf, {size}", protobuf_row(count), "protobuf's parser of the whole value"))
    for name, pair, _ in rows:
        progress(f"{name}: ours {pair.ours:,.0f}, peer {pair.peer:,.0f}, ratio {pair.ratio:.2f}")
    figures = [
        {
            "bench": f"event-time: {name}",
            "value": round(pair.ours),
            "unit": "values/s of CPU time",
            "peer": peer,
            "peer_value": round(pair.peer),
            "ratio": round(pair.ratio, 2),
        }
        for name, pair, peer in rows
    ]
    headline = next(row for row in figures if row["bench"] == "event-time: json, 2 KB, near the end")
    setup = {"values": VALUES, "rounds": ROUNDS, "seed": SEED, "versions_of_peers": _versions()}
    return {**{key: headline[key] for key in ("value", "unit", "peer", "peer_value", "ratio")},
            "setup": setup, "rows": figures}  # fmt: skip


def _versions() -> dict[str, str]:
    from importlib import metadata

    return {name: metadata.version(name) for name in ("orjson", "msgspec", "fastavro", "protobuf")}
