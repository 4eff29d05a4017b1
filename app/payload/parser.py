"""Bytes to messages within bounds that hostile bytes cannot move.

protobuf's parser itself bounds depth (100 levels). Memory it does not bound: two bytes make an empty
submessage, which takes the room of all the fields its type has, kilobytes for a wide one. So

Rules
1. A value larger than `MAX_VALUE_BYTES` is not parsed.
2. When a value of this size could take more than `MAX_PARSE_BYTES`, its submessages are counted first, by
   a walk over the wire format that allocates nothing; the walk itself is bounded.
3. Whatever is wrong with the bytes is an `InvalidPayload`, in words that hold nothing of the value.

Source of the wire format: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from typing import cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from app.payload.varints import CUT_OFF, varint

MAX_VALUE_BYTES = 8 * 1024 * 1024
MAX_PARSE_BYTES = 256 * 1024 * 1024
MAX_WALKED_FIELDS = 200_000  # about a quarter of a second, in which a worker does nothing else
MAX_DEPTH = 100  # protobuf's own
ELEMENT_BYTES = 32  # at most, of a one-byte element while its array grows
HEADER_BYTES = 64  # of a message without fields
FIELD_BYTES = 16  # at most, of a field without value
VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)


class InvalidPayload(ValueError):
    """A value that is not what its definition says."""


class Parser:
    """Parses messages of the types of one pool."""

    def __init__(self) -> None:
        self._growth: dict[str, float] = {}
        self._children: dict[str, dict[int, Descriptor]] = {}

    def parse(self, kind: type[Message], value: bytes) -> Message:
        """The message.

        Raises:
            InvalidPayload: see the module.
        """
        descriptor = cast(Descriptor, kind.DESCRIPTOR)
        size = len(value)
        if size > MAX_VALUE_BYTES:
            limit = MAX_VALUE_BYTES // 1024 // 1024
            raise InvalidPayload(f"{size} bytes are more than the {limit} MiB that are decoded")
        growth = self._growth.get(descriptor.full_name) or self._grown(descriptor)
        if size * growth > MAX_PARSE_BYTES:
            self._walk(descriptor, value)
        message = kind()
        try:
            message.ParseFromString(value)
        except (DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
            words = str(error).rpartition(": ")[2] or type(error).__name__
            raise InvalidPayload(f"not {descriptor.full_name}: {words.lower()}{_guess(value)}") from None
        return message

    def _grown(self, descriptor: Descriptor) -> float:
        """Bytes of memory that one byte may become, at most, in a message of this type."""
        seen: dict[str, Descriptor] = {}
        stack = [descriptor]
        widest = 0
        while stack:
            for child in self._submessages(stack.pop()).values():
                if child.full_name not in seen:
                    seen[child.full_name] = child
                    widest = max(widest, _room(child))
                    stack.append(child)
        growth = max(float(ELEMENT_BYTES), widest / 2)
        self._growth[descriptor.full_name] = growth
        return growth

    def _submessages(self, descriptor: Descriptor) -> dict[int, Descriptor]:
        found = self._children.get(descriptor.full_name)
        if found is None:
            fields = list(descriptor.fields)
            if descriptor.is_extendable:
                fields += descriptor.file.pool.FindAllExtensions(descriptor)
            found = {field.number: field.message_type for field in fields if field.message_type is not None}
            self._children[descriptor.full_name] = found
        return found

    def _walk(self, descriptor: Descriptor, value: bytes) -> None:
        """Counts what the submessages would take; stops where the parser would stop.

        Raises:
            InvalidPayload: too much.
        """
        budget = MAX_PARSE_BYTES - len(value)
        at, end = 0, len(value)
        # (end, type or None) of each message around; a group's end is only known by its end tag.
        around: list[tuple[int, Descriptor | None]] = []
        inside: Descriptor | None = descriptor
        for _ in range(MAX_WALKED_FIELDS):
            while at >= end:
                if not around:
                    return
                end, inside = around.pop()
            tag, at = varint(value, at)
            if not 0 <= at <= end:
                return
            wire = tag & 7
            child = None
            if inside is not None and wire in (BYTES, GROUP):
                child = self._submessages(inside).get(tag >> 3)
            if wire == VARINT:
                _, at = varint(value, at)
            elif wire == FIXED64:
                at += 8
            elif wire == FIXED32:
                at += 4
            elif wire == BYTES:
                length, at = varint(value, at)
                if at == CUT_OFF or at + length > end:
                    return
                if child is None:
                    at += length
                else:
                    around.append((end, inside))
                    end, inside = at + length, child
            elif wire == GROUP:
                around.append((end, inside))
                inside = child
            elif wire == END_GROUP and around:
                end, inside = around.pop()
            else:
                return
            if not 0 <= at <= end or len(around) > MAX_DEPTH:
                return
            budget -= _room(child) if child is not None else 0
            if budget < 0:
                limit = MAX_PARSE_BYTES // 1024 // 1024
                raise InvalidPayload(f"would take more than {limit} MiB when decoded: a bomb of submessages")
        raise InvalidPayload(f"more than {MAX_WALKED_FIELDS} fields in a value of {len(value)} bytes")


def _room(descriptor: Descriptor) -> int:
    return HEADER_BYTES + FIELD_BYTES * len(descriptor.fields)


def _guess(value: bytes) -> str:
    """What the value may be instead."""
    if value[:1] == b"\x00" and len(value) > 5:
        return " (it begins like Confluent's wire format: framing confluent?)"
    if value.lstrip()[:1] in (b"{", b"["):
        return " (it begins like JSON)"
    return ""
