"""The event time in a field of an Avro record, read at the value's head by a plan (`avro_plan`).

Framing as in `app.payload.codec`: `none`, or `confluent`: a byte 0, the schema's id (4 bytes, big-endian),
the record. The id says which schema the value was written with; `SchemaPlans` has their plans.
"""

from __future__ import annotations

import struct
from typing import Protocol

from app.payload.codec import HEADER_BYTES, MAGIC, Framing
from app.payload.event_time.avro_plan import VARINT, AvroFieldPlan, FieldEncoding, Skips, UnionPlan
from app.payload.event_time.instant import MAX_TEXT_CHARS, Absent
from app.payload.event_time.source import ValueTime
from app.payload.event_time.varints import CUT_OFF, skipped, varint, zigzag

_DOUBLE = struct.Struct("<d")


class SchemaPlans(Protocol):
    """The plans of the schemas that framing confluent names."""

    def plan(self, schema_id: int) -> AvroFieldPlan | None:
        """None: there is no such schema, or the field cannot be read in it."""


class OneSchema:
    """A plan that stands for every id."""

    __slots__ = ("_plan",)

    def __init__(self, plan: AvroFieldPlan) -> None:
        self._plan = plan

    def plan(self, schema_id: int) -> AvroFieldPlan | None:
        return self._plan


class AvroTime(ValueTime):
    """A field of an Avro record."""

    __slots__ = ("_framing", "_schemas")

    def __init__(self, schemas: SchemaPlans, framing: Framing = Framing.NONE) -> None:
        """Without framing, `schemas` is asked for the schema 0."""
        self._schemas = schemas
        self._framing = framing

    def read(self, value: bytes) -> int | Absent:
        at = schema_id = 0
        if self._framing is Framing.CONFLUENT:
            if len(value) < HEADER_BYTES or value[0] != MAGIC:
                return Absent.MALFORMED
            schema_id = int.from_bytes(value[1:HEADER_BYTES], "big")
            at = HEADER_BYTES
        plan = self._schemas.plan(schema_id)
        return Absent.UNKNOWN_SCHEMA if plan is None else _read(plan, value, at)


def _read(plan: AvroFieldPlan, value: bytes, at: int) -> int | Absent:
    while True:
        if plan.skips:
            at = _behind(plan.skips, value, at)
            if at == CUT_OFF:
                return Absent.MALFORMED
        then = plan.then
        if not isinstance(then, UnionPlan):
            break
        number, at = varint(value, at)
        branch = zigzag(number)
        if at == CUT_OFF or not 0 <= branch < len(then.branches):
            return Absent.MALFORMED
        following = then.branches[branch]
        if isinstance(following, Absent):
            return following
        plan = following
    if then.kind is FieldEncoding.DOUBLE:
        if at + _DOUBLE.size > len(value):
            return Absent.MALFORMED
        return then.instant.of_float(_DOUBLE.unpack_from(value, at)[0])
    number, at = varint(value, at)
    if at == CUT_OFF:
        return Absent.MALFORMED
    if then.kind is FieldEncoding.NUMBER:
        return then.instant.of_int(zigzag(number))
    length = zigzag(number)
    if length < 0 or at + length > len(value):
        return Absent.MALFORMED
    return then.instant.of_bytes(value[at : at + length]) if length <= MAX_TEXT_CHARS else Absent.NOT_A_TIME


def _behind(skips: Skips, value: bytes, at: int) -> int:
    """The position behind what is passed over; `CUT_OFF` where the value ends before."""
    size = len(value)
    for skip in skips:
        if isinstance(skip, tuple):
            number, at = varint(value, at)
            branch = zigzag(number)
            if at == CUT_OFF or not 0 <= branch < len(skip):
                return CUT_OFF
            at = _behind(skip[branch], value, at)
        elif skip >= 0:
            at += skip
        elif skip == VARINT:
            at = skipped(value, at)
        else:
            number, at = varint(value, at)
            length = zigzag(number)
            if length < 0:
                return CUT_OFF
            at = at + length if at != CUT_OFF else CUT_OFF
        if at == CUT_OFF or at > size:
            return CUT_OFF
    return at
