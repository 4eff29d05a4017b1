"""Finished offsets: as half-open ranges [start, end), as a snapshot, as compact bytes.

Rules
1. A normal list of ranges is sorted; its ranges are not empty and do not touch. Each set of offsets has
   exactly one normal list.
2. `pack` writes the smaller of two forms, runs (sparse) or bitmap (scattered), and always the same bytes for
   the same set. So sets can be compared as bytes.
3. `unpack` does not trust its input: it returns a normal list or raises ValueError.
4. A snapshot is a set of facts "this offset is finished", and `merge` is their union: commutative,
   associative and idempotent. So replayed, reordered or lost snapshots never make an offset unfinished.

The forms are Confluent Parallel Consumer's RunLengthEncoder and BitSetEncoder. Its measurements hold here
too: the bitmap suits scattered acknowledgements, the runs suit stragglers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

Range = tuple[int, int]
Ranges = tuple[Range, ...]

SNAPSHOT_VERSION = 1
RUNS = 0
BITMAP = 1
MAX_OFFSET = 2**63 - 1  # int64 on Kafka's wire
_ONES = re.compile("1+")


class CorruptSnapshot(ValueError):
    """The bytes are not a snapshot, or they are damaged."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The finished offsets of a partition: all below `base`, and the ranges in `finished`.

    The constructor takes ranges in any order, overlapping or touching `base`, and makes them normal (`base`
    may move up). Equal snapshots have equal bytes.

    Raises:
        ValueError: An offset is negative or above int64.
    """

    base: int
    finished: Ranges = ()

    def __post_init__(self) -> None:
        below, *above = union(((-1, max(0, self.base)),), self.finished)
        top = above[-1][1] if above else below[1]
        if self.base < 0 or top > MAX_OFFSET:
            raise ValueError(f"snapshot from {self.base} to {top} is outside 0..{MAX_OFFSET}")
        object.__setattr__(self, "base", below[1])
        object.__setattr__(self, "finished", tuple(above))

    def merge(self, other: Snapshot) -> Snapshot:
        """The union of both snapshots (rule 4)."""
        return Snapshot(max(self.base, other.base), self.finished + other.finished)

    def to_bytes(self) -> bytes:
        """Version (1 byte), CRC-32 of the rest (4, big-endian), base (varint), ranges (`pack`)."""
        body = varint(self.base) + pack(self.base, self.finished)
        return bytes([SNAPSHOT_VERSION]) + crc32(body).to_bytes(4, "big") + body

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """The inverse of `to_bytes`.

        Raises:
            CorruptSnapshot: `data` is damaged, or of a version that this release does not read.
        """
        if len(data) < 7:
            raise CorruptSnapshot(f"snapshot of {len(data)} bytes; the shortest has 7")
        if data[0] != SNAPSHOT_VERSION:
            raise CorruptSnapshot(f"snapshot version {data[0]}; this release reads {SNAPSHOT_VERSION}")
        body = data[5:]
        if crc32(body) != int.from_bytes(data[1:5], "big"):
            raise CorruptSnapshot(f"snapshot of {len(data)} bytes does not match its checksum")
        try:
            base, at = read_varint(body, 0)
            return cls(base, unpack(base, body[at:]))
        except ValueError as error:
            raise CorruptSnapshot(f"snapshot of {len(data)} bytes: {error}") from error


def union(*many: Iterable[Range]) -> Ranges:
    """The normal form of all offsets from -1 on in any of `many`; their ranges may overlap, in any order."""
    merged: list[Range] = []
    last_start = last_end = -1
    for start, end in sorted(chain(*many)):  # timsort merges sorted inputs in linear time
        if start > last_end:
            if last_end > last_start:
                merged.append((last_start, last_end))
            last_start, last_end = start, end
        elif end > last_end:
            last_end = end
    if last_end > last_start:
        merged.append((last_start, last_end))
    return tuple(merged)


def outside(ranges: Iterable[Range], start: int, end: int) -> list[Range]:
    """The parts of [start, end) that no range of the normal `ranges` covers."""
    left: list[Range] = []
    for first, last in ranges:
        if first >= end:
            break
        if first > start:
            left.append((start, first))
        start = max(start, last)
    if start < end:
        left.append((start, end))
    return left


def pack(base: int, ranges: Sequence[Range]) -> bytes:
    """The normal `ranges`, all above `base`, as one byte for the form and its data.

    Runs: LEB128 varints, the lengths of hole and range in turn. Bitmap: a bit for each offset from `base`,
    the most significant bit of a byte first.
    """
    if not ranges:
        return bytes([RUNS])
    assert ranges[0][0] >= base
    bitmap_bytes = (ranges[-1][1] - base + 7) // 8
    if 2 * len(ranges) >= bitmap_bytes:  # runs take at least two bytes a range
        return _bitmap(base, ranges, bitmap_bytes)
    runs = _runs(base, ranges)
    return runs if len(runs) <= 1 + bitmap_bytes else _bitmap(base, ranges, bitmap_bytes)


def unpack(base: int, data: bytes) -> Ranges:
    """The inverse of `pack`.

    Raises:
        ValueError: `data` is not what `pack` gives.
    """
    if not data:
        raise ValueError("the byte that names the form is missing")
    if data[0] == RUNS:
        return _from_runs(base, data)
    if data[0] == BITMAP:
        bits = bin(int.from_bytes(data, "big"))[3:]  # without "0b" and the bit of the form
        return tuple((base + ones.start(), base + ones.end()) for ones in _ONES.finditer(bits))
    raise ValueError(f"unknown form {data[0]}")


def varint(value: int) -> bytes:
    """`value` >= 0 as LEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The LEB128 number at index `at`, and the index after it.

    Raises:
        ValueError: It is cut off or above `MAX_OFFSET`.
    """
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if value > MAX_OFFSET:
            raise ValueError("a number is above the largest offset")
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _runs(base: int, ranges: Sequence[Range]) -> bytes:
    lengths: list[int] = []
    at = base
    for start, end in ranges:
        lengths += (start - at, end - start)
        at = end
    if max(lengths) < 0x80:
        return bytes([RUNS, *lengths])
    return bytes([RUNS]) + b"".join(map(varint, lengths))


def _from_runs(base: int, data: bytes) -> Ranges:
    ranges: list[Range] = []
    offset, at = base, 1
    while at < len(data):
        hole, at = read_varint(data, at)
        length, at = read_varint(data, at)
        start, end = offset + hole, offset + hole + length
        if not length or (not hole and ranges) or end > MAX_OFFSET:
            raise ValueError(f"the run [{start}, {end}) is empty, touches the one before or is too high")
        ranges.append((start, end))
        offset = end
    return tuple(ranges)


def _bitmap(base: int, ranges: Sequence[Range], size_bytes: int) -> bytes:
    bits: list[str] = ["1"]  # the form, BITMAP; it also keeps the leading zeros of the number
    at = base
    for start, end in ranges:
        bits += ("0" * (start - at), "1" * (end - start))
        at = end
    bits.append("0" * (base + 8 * size_bytes - at))
    return int("".join(bits), 2).to_bytes(1 + size_bytes, "big")
