"""A reader's trail through a copy: which producers' records it has finished, for who reads another copy.

    batches      |pid 7: 40..49|pid 9: 3..5|pid 7: 50..69|pid 9: 6..8|
    offsets      100           110         113           133         136
    finished     ──────────────────▶ base 112     [120 ... 130)
    progress     pid 7: all below 50, and 57..66       pid 9: all below 5

Every lane writes under a producer id and epoch of its own, and its sequence numbers count its records
(`app.kafka.records.producer_sequences`). So what was finished can be said without offsets of this copy, which
mean nothing in another; `app.offsets.model.source_frontier` makes offsets of the sources of it.

Rules
1. All that a trail says is certainly finished. What it forgot (more batches than `MOST_SEGMENTS` between base
   and position, more producers than `MOST_PRODUCERS`, more bytes than `MOST_BYTES`) costs re-reads only.
2. It sees every batch from where it begins on. What was not seen yet, or not remembered, is a hole: which
   numbers of a producer lie below the base is not concluded from a batch behind one.
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
MOST_RUNS = 1_024  # of finished offsets above the base: what one note looks at
MOST_BYTES = 2_048

_Offset = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class CorruptProgress(ValueError):
    """Bytes that no trail has written."""


class FinishedRecords(msgspec.Struct, frozen=True, array_like=True):
    """What is finished of one producer's records.

    Attributes:
        sequence: all below it is finished, if `all_below`. The runs count from it.
        runs: finished ones from there on, as `app.kernel.ranges.pack` does it.
    """

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
    """What is finished of one partition: below `base`, and of producers' records; all lies below `reach`.

    `carried`: the epoch of the region's role (`app.controllog.roles`) under which all that was finished in
    other regions is known here, or was left out on purpose; -1: of none. `audit`: the successor's who counts
    what is finished, and nobody else's (`app.audit.pump.consumer_tap`). `risks`: its successor's, too
    (`app.kafka.records.decode_risks`).
    """

    base: _Offset
    reach: _Offset = 0
    producers: list[FinishedRecords] = []
    carried: int = -1
    audit: bytes = b""
    risks: tuple[tuple[_Offset, int], ...] = ()

    def to_bytes(self) -> bytes:
        """For the tracker table."""
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
    """A note of progress, or none of who has finished all below `base`, with what the audit leaves."""
    return msgspec.structs.replace(_progress(note, base), audit=audit).to_bytes()


def audit_of(note: bytes) -> bytes:
    """The inverse; b"": there is none."""
    return _readable_progress(note, 0).audit


def with_risks(note: bytes, base: int, risks: tuple[tuple[int, int], ...]) -> bytes:
    """The same, with what may end its successor."""
    return msgspec.structs.replace(_progress(note, base), risks=risks).to_bytes()


def risks_of(note: bytes) -> tuple[tuple[int, int], ...]:
    """The inverse; (): there are none."""
    return _readable_progress(note, 0).risks


def _progress(note: bytes, base: int) -> FinishedOffsets:
    return FinishedOffsets.from_bytes(note) if note else FinishedOffsets(base)


def _readable_progress(note: bytes, base: int) -> FinishedOffsets:
    """The note's progress; that of no note where it cannot be read."""
    try:
        return _progress(note, base)
    except CorruptProgress:
        return FinishedOffsets(base)


class Segment(NamedTuple):
    """Offsets [start, end) that one producer wrote, the first with `sequence`."""

    start: int
    end: int
    producer: Producer
    sequence: int


class ProducerProgress:
    """See the module. `base`: where it begins; `note`: a former owner's, of the same log."""

    __slots__ = ("_below", "_lost", "_segments")

    def __init__(self, base: int, note: bytes = b"") -> None:
        self._segments: list[Segment] = []  # in the log's order
        self._below: dict[Producer, int] = {}  # whose numbers below it lie below the base; the last seen last
        self._lost: Range | None = None  # what was not remembered lies in it
        progress = _readable_progress(note, base)
        if progress.base <= base:
            self._below = {
                (one.producer_id, one.epoch): one.sequence
                for one in reversed(progress.producers)
                if one.all_below
            }

    def seen(self, start: int, end: int, producer_id: int, epoch: int, sequence: int, base: int) -> None:
        """A batch of offsets [start, end) was read, its first record numbered `sequence`."""
        if producer_id < 0 or sequence < 0 or end <= start:
            return
        segments, producer = self._segments, (producer_id, epoch)
        at = len(segments)
        if at and start < segments[-1].end:
            at = bisect_right(segments, start, key=_start)
            if (at and segments[at - 1].end > start) or (at < len(segments) and segments[at].start < end):
                return  # seen before
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
        """Who wrote offsets [start, end) is not known (any more)."""
        lost = self._lost or (start, end)
        self._lost = min(lost[0], start), max(lost[1], end)

    def note(self, snapshot: Snapshot, seen_to: int, carried: int = -1) -> bytes:
        """`FinishedOffsets`, in at most `MOST_BYTES`. `seen_to`: all from the base to there was seen."""
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
        """What lies below the base is a number a producer."""
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
    """Where segments and finished offsets overlap."""
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
    """As many of the producers, and of their runs, as there is room for; the first ones first."""
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
