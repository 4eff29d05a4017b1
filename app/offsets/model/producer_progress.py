"""A reader's progress in a copy as sequence numbers of producers, for readers of other copies.

    batches      |pid 7: 40..49|pid 9: 3..5|pid 7: 50..69|pid 9: 6..8|
    offsets      100           110         113           133         136
    finished     ──────────────────▶ base 112     [120 ... 130)
    progress     pid 7: all below 50, and 57..66       pid 9: all below 5

Every lane writes under its own producer id and epoch, and its sequence numbers count its records
(`app.kafka.records.producer_sequences`). They identify finished records in any copy, unlike offsets.
`app.offsets.model.source_frontier` turns them into offsets of the sources.

Rules
1. Progress contains finished records only. Records beyond a limit (`MOST_SEGMENTS` batches between base
   and position, `MOST_PRODUCERS`, `MOST_BYTES`) are left out and cost re-reads only.
2. Progress sees every batch from its beginning on. A batch that was not seen, or not kept, is a hole. A
   batch behind a hole does not say which of its producer's numbers lie below the base.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Annotated, NamedTuple

import msgspec

from app.kafka.records.producer_sequences import NEAR, SEQUENCES, Producer
from app.kernel.ranges import Range, Snapshot, pack, union, unpack

MOST_SEGMENTS = 8_192
MOST_PRODUCERS = 64
MOST_RUNS = 1_024  # finished ranges above the base in a note, at most
MOST_BYTES = 2_048

_Offset = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class CorruptProgress(ValueError):
    """The bytes are not a note of progress."""


class FinishedRecords(msgspec.Struct, frozen=True, array_like=True):
    """The finished records of one producer: all numbers below `sequence`, if `all_below`, and `runs`. The
    runs count from `sequence` and are encoded by `app.kernel.ranges.pack`."""

    producer_id: int
    epoch: int
    sequence: Annotated[int, msgspec.Meta(ge=0, lt=SEQUENCES)]
    all_below: bool
    runs: bytes = b""

    @property
    def finished(self) -> tuple[Range, ...]:
        """The runs, as distances from `sequence`."""
        return unpack(0, self.runs) if self.runs else ()


class FinishedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """The finished records of one partition: below offset `base`, and in `producers`, all below `reach`.

    Attributes:
        carried: The epoch of the region's role (`app.controllog.roles`) under which progress of other
            regions was imported, or left out on purpose; -1: none.
        audit, risks: For the successor of the audit (`app.audit.pump.consumer_tap`), and of the decoder
            (`app.kafka.records.decode_risks`).
    """

    base: _Offset
    reach: _Offset = 0
    producers: list[FinishedRecords] = []
    carried: int = -1
    audit: bytes = b""
    risks: tuple[tuple[_Offset, int], ...] = ()

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> FinishedOffsets:
        """Raises `CorruptProgress`."""
        try:
            progress = _decoder.decode(data)
            spans = [found for produced in progress.producers for found in produced.finished]
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise CorruptProgress(f"not a reader's progress: {error}; {len(data)} bytes") from error
        if progress.reach - progress.base > NEAR or any(end > NEAR for _, end in spans):
            raise CorruptProgress(f"a reader's progress from {progress.base} to {progress.reach} is too wide")
        return progress


_decoder = msgspec.msgpack.Decoder(FinishedOffsets)
_start = attrgetter("start")


def with_audit(note: bytes, base: int, audit: bytes) -> bytes:
    """The note with the audit's bytes. Without a note, all below `base` is finished. Raises
    `CorruptProgress`."""
    return msgspec.structs.replace(_progress(note, base), audit=audit).to_bytes()


def audit_of(note: bytes) -> bytes:
    """The audit's bytes in a note; b"": none, or the note cannot be read."""
    return _readable_progress(note, 0).audit


def with_risks(note: bytes, base: int, risks: tuple[tuple[int, int], ...]) -> bytes:
    """The note with decoding risks; otherwise as `with_audit`."""
    return msgspec.structs.replace(_progress(note, base), risks=risks).to_bytes()


def risks_of(note: bytes) -> tuple[tuple[int, int], ...]:
    """The decoding risks in a note; (): none, or the note cannot be read."""
    return _readable_progress(note, 0).risks


def _progress(note: bytes, base: int) -> FinishedOffsets:
    return FinishedOffsets.from_bytes(note) if note else FinishedOffsets(base)


def _readable_progress(note: bytes, base: int) -> FinishedOffsets:
    """The note's progress. A note that cannot be read counts as none."""
    try:
        return _progress(note, base)
    except CorruptProgress:
        return FinishedOffsets(base)


class Segment(NamedTuple):
    """Offsets [start, end) from one producer; the first record has number `sequence`."""

    start: int
    end: int
    producer: Producer
    sequence: int


class ProducerProgress:
    """Collects a partition's progress from `base` on; `note` is a former owner's, ignored if unreadable."""

    __slots__ = ("_below", "_lost", "_segments")

    def __init__(self, base: int, note: bytes = b"") -> None:
        self._segments: list[Segment] = []  # in offset order
        self._below: dict[Producer, int] = {}  # lower numbers lie below the base; newest last
        self._lost: Range | None = None  # all holes lie in it
        progress = _readable_progress(note, base)
        if progress.base <= base:
            self._below = {
                (one.producer_id, one.epoch): one.sequence
                for one in reversed(progress.producers)
                if one.all_below
            }

    def seen(self, start: int, end: int, producer_id: int, epoch: int, sequence: int, base: int) -> None:
        """Takes a batch of offsets [start, end) whose first record has number `sequence`."""
        if producer_id < 0 or sequence < 0 or end <= start:
            return
        segments, producer = self._segments, (producer_id, epoch)
        at = len(segments)
        if at and start < segments[-1].end:
            at = bisect_right(segments, start, key=_start)
            if (at and segments[at - 1].end > start) or (at < len(segments) and segments[at].start < end):
                return  # a repetition
        if at:
            last = segments[at - 1]
            joins = last.producer == producer and last.end == start
            if joins and (last.sequence + start - last.start) % SEQUENCES == sequence:
                segments[at - 1] = last._replace(end=end)
                return
        if len(segments) >= MOST_SEGMENTS:
            self._forget(base)
            if len(segments) >= MOST_SEGMENTS:
                self.lose(start, end)
                return
            at = bisect_right(segments, start, key=_start)
        segments.insert(at, Segment(start, end, producer, sequence))

    def lose(self, start: int, end: int) -> None:
        """Marks offsets [start, end) as a hole: their producers are not known, or not kept."""
        lost = self._lost or (start, end)
        self._lost = min(lost[0], start), max(lost[1], end)

    def note(self, snapshot: Snapshot, seen_to: int, carried: int = -1) -> bytes:
        """`FinishedOffsets` as bytes, at most `MOST_BYTES`. `seen_to`: all batches between the base and this
        offset were seen."""
        base = snapshot.base
        self._forget(base)
        if self._lost is not None:
            seen_to = min(seen_to, self._lost[0])
        begins: dict[Producer, tuple[int, bool]] = {}
        for segment in self._segments:
            if segment.producer not in begins:
                below = self._below.get(segment.producer)
                if segment.start < seen_to:
                    passed = max(0, base - segment.start)
                    begins[segment.producer] = (segment.sequence + passed) % SEQUENCES, True
                else:
                    begins[segment.producer] = (segment.sequence, False) if below is None else (below, True)
        runs: dict[Producer, list[Range]] = {producer: [] for producer in begins}
        reach = base
        for segment, start, end in _both(self._segments, snapshot.finished):
            first = (segment.sequence + start - segment.start - begins[segment.producer][0]) % SEQUENCES
            if end - base < NEAR and first + end - start < NEAR:
                runs[segment.producer].append((first, first + end - start))
                reach = end
        found = [
            FinishedRecords(*producer, sequence, all_below, _packed(runs[producer]))
            for producer, (sequence, all_below) in begins.items()
        ]
        found += [
            FinishedRecords(*producer, sequence, all_below=True)
            for producer, sequence in reversed(self._below.items())
            if producer not in begins
        ]
        return _limited(base, reach, found[:MOST_PRODUCERS], carried)

    def _forget(self, base: int) -> None:
        """Replaces the segments below the base by one sequence number per producer."""
        segments, below = self._segments, self._below
        passed = 0
        for segment in segments:
            if segment.end > base:
                break
            passed += 1
            below.pop(segment.producer, None)
            below[segment.producer] = (segment.sequence + segment.end - segment.start) % SEQUENCES
        del segments[:passed]
        while len(below) > MOST_PRODUCERS:
            del below[next(iter(below))]
        if self._lost is not None and self._lost[1] <= base:
            self._lost = None


def _both(segments: Sequence[Segment], finished: Sequence[Range]) -> Iterator[tuple[Segment, int, int]]:
    """The overlaps of segments and finished offsets."""
    at = 0
    for start, end in islice(finished, MOST_RUNS):
        while at < len(segments) and segments[at].end <= start:
            at += 1
        index = at
        while index < len(segments) and segments[index].start < end:
            segment = segments[index]
            yield segment, max(start, segment.start), min(end, segment.end)
            index += 1


def _packed(runs: list[Range]) -> bytes:
    return pack(0, union(runs)) if runs else b""


def _limited(base: int, reach: int, found: Sequence[FinishedRecords], carried: int) -> bytes:
    """Keeps as many producers, and of their runs, as fit into `MOST_BYTES`, the first ones first."""
    kept: list[FinishedRecords] = []
    room = MOST_BYTES - 33
    for produced in found:
        one = produced
        while (size := len(msgspec.msgpack.encode(one))) > room and one.runs:
            runs = one.finished
            one = msgspec.structs.replace(one, runs=_packed(list(runs[: len(runs) // 2])))
        if size > room:
            break
        room -= size
        kept.append(one)
    return FinishedOffsets(base, reach, kept, carried).to_bytes()
