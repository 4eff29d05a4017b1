"""Parses bytes into messages, within bounds that hostile bytes cannot exceed.

protobuf's own parser bounds the depth (100 levels), but not the memory. Two bytes make an empty submessage,
which takes room for all fields of its type: kilobytes for a wide one.

Rules
1. A value larger than `MAX_VALUE_BYTES` is not parsed.
2. If a value of its size could take more than `MAX_PARSE_BYTES`, a walk over the wire format counts its
   submessages first. The walk allocates nothing and visits at most `MAX_WALKED_FIELDS` fields.
3. Every fault of the bytes raises `InvalidPayload`, whose text holds nothing of the value.

Source of the wire format: protobuf.dev, "Encoding". Tests: `tests/payload/test_codec.py`, "hostile bytes".
"""

from __future__ import annotations

from typing import cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from app.payload.varints import CUT_OFF, varint

MAX_VALUE_BYTES = 8 * 1024 * 1024
MAX_PARSE_BYTES = 256 * 1024 * 1024
MAX_WALKED_FIELDS = 200_000  # about a quarter of a second, in which a worker does nothing else
MAX_DEPTH = 100  # the bound of protobuf's parser
ELEMENT_BYTES = 32  # the most that a one-byte element takes while its array grows
HEADER_BYTES = 64  # a message without fields takes these
FIELD_BYTES = 16  # the most that a field without a value takes
VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)


class InvalidPayload(ValueError):
    """A value that does not have the form that its definition names."""


class Parser:
    """Parses messages of the types of one pool."""

    def __init__(self) -> None:
        self._growth: dict[str, float] = {}
        self._children: dict[str, dict[int, Descriptor]] = {}

    def parse(self, kind: type[Message], value: bytes) -> Message:
        """The message, or InvalidPayload: the value is not of this type, or exceeds a bound."""
        descriptor = cast(Descriptor, kind.DESCRIPTOR)
        size = len(value)
        if size > MAX_VALUE_BYTES:
            limit = MAX_VALUE_BYTES // 1024 // 1024
            raise InvalidPayload(f"{size} bytes are more than the {limit} MiB that are decoded")
        growth = self._growth.get(descriptor.full_name) or self._growth_of(descriptor)
        if size * growth > MAX_PARSE_BYTES:
            self._walk(descriptor, value)
        message = kind()
        try:
            message.ParseFromString(value)
        except (DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
            words = str(error).rpartition(": ")[2] or type(error).__name__
            raise InvalidPayload(f"not {descriptor.full_name}: {words.lower()}{_guess(value)}") from None
        return message

    def _growth_of(self, descriptor: Descriptor) -> float:
        """The most memory, in bytes, that a byte of a value of this type may take."""
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
        """Counts the memory of submessages up to a fault, or raises InvalidPayload: they take too much."""
        budget = MAX_PARSE_BYTES - len(value)
        at, end = 0, len(value)
        # (end, type or None) of each enclosing message. Only its end tag shows where a group ends.
        enclosing: list[tuple[int, Descriptor | None]] = []
        current_type: Descriptor | None = descriptor
        for _ in range(MAX_WALKED_FIELDS):
            while at >= end:
                if not enclosing:
                    return
                end, current_type = enclosing.pop()
            tag, at = varint(value, at)
            if not 0 <= at <= end:
                return
            wire = tag & 7
            child = None
            if current_type is not None and wire in (BYTES, GROUP):
                child = self._submessages(current_type).get(tag >> 3)
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
                    enclosing.append((end, current_type))
                    end, current_type = at + length, child
            elif wire == GROUP:
                enclosing.append((end, current_type))
                current_type = child
            elif wire == END_GROUP and enclosing:
                end, current_type = enclosing.pop()
            else:
                return
            if not 0 <= at <= end or len(enclosing) > MAX_DEPTH:
                return
            budget -= _room(child) if child is not None else 0
            if budget < 0:
                limit = MAX_PARSE_BYTES // 1024 // 1024
                raise InvalidPayload(f"would take more than {limit} MiB when decoded: a bomb of submessages")
        raise InvalidPayload(f"more than {MAX_WALKED_FIELDS} fields in a value of {len(value)} bytes")


def _room(descriptor: Descriptor) -> int:
    return HEADER_BYTES + FIELD_BYTES * len(descriptor.fields)


def _guess(value: bytes) -> str:
    """A hint what the value may be instead, or ""."""
    if value[:1] == b"\x00" and len(value) > 5:
        return " (it begins like Confluent's wire format: framing confluent?)"
    if value.lstrip()[:1] in (b"{", b"["):
        return " (it begins like JSON)"
    return ""
