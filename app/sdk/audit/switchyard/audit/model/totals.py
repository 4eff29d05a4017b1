"""The sums over the records of a window at a tier, which can be added and compared."""

from __future__ import annotations

import msgspec

from switchyard.audit.model.fingerprint import NOTHING, Fingerprint
from switchyard.audit.model.latencies import Latencies
from switchyard.audit.model.spans import NO_SPAN, Range, hull

NEVER_MS = -1
LAST_MS = 253_402_300_799_999  # the end of the year 9999; a later timestamp is no time


class Totals(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over records.

    Attributes:
        nbytes: As in the log, compressed and with batch headers. If a batch belongs to two windows, each gets
            its records' share. Tiers that encode differently have different bytes.
        duplicates: Records that the tier itself recognised (redelivered, written again).
        ids, identified: The fingerprint of message ids, and the number of records in it.
        contents, contained: The fingerprint of ids with their values, and the number of records in it.
        offsets, sourced: The fingerprint of source offsets, and the number of records in it.
        offsets_of: The clusters of these offsets; a copy's offsets are not its source's.
        latencies: `Latencies.to_bytes`; may cover fewer records than `count`.
        first_ms, last_ms: The lowest and highest timestamp; -1: none. `beyond` leaves them as they are.
    """

    count: int = 0
    nbytes: int = 0
    duplicates: int = 0
    ids: Fingerprint = NOTHING
    identified: int = 0
    offsets: Fingerprint = NOTHING
    sourced: int = 0
    offsets_of: tuple[str, ...] = ()
    latencies: bytes = b""
    first_ms: int = NEVER_MS
    last_ms: int = NEVER_MS
    contents: Fingerprint = NOTHING
    contained: int = 0

    def plus(self, other: Totals) -> Totals:
        """Both together. Raises CorruptLatencies."""
        return Totals(
            count=self.count + other.count,
            nbytes=self.nbytes + other.nbytes,
            duplicates=self.duplicates + other.duplicates,
            ids=self.ids.plus(other.ids),
            identified=self.identified + other.identified,
            offsets=self.offsets.plus(other.offsets),
            sourced=self.sourced + other.sourced,
            offsets_of=_joined(self.offsets_of, other.offsets_of),
            latencies=_merged(self.latencies, other.latencies),
            first_ms=_earlier(self.first_ms, other.first_ms),
            last_ms=max(self.last_ms, other.last_ms),
            contents=self.contents.plus(other.contents),
            contained=self.contained + other.contained,
        )

    def beyond(self, other: Totals) -> Totals:
        """The part of these totals that `other` lacks; `other` must be of a subset of the records.

        `other` may have latencies of records for which this has none, because a tier that reads a backlog
        measures none. Then no bin falls below 0. Raises CorruptLatencies.
        """
        latencies = self.latencies
        if latencies and other.latencies:
            left = Latencies.from_bytes(latencies)
            left.subtract(Latencies.from_bytes(other.latencies))
            latencies = left.to_bytes()
        return Totals(
            count=self.count - other.count,
            nbytes=self.nbytes - other.nbytes,
            duplicates=self.duplicates - other.duplicates,
            ids=self.ids.minus(other.ids),
            identified=self.identified - other.identified,
            offsets=self.offsets.minus(other.offsets),
            sourced=self.sourced - other.sourced,
            offsets_of=self.offsets_of,
            latencies=latencies,
            first_ms=self.first_ms,
            last_ms=self.last_ms,
            contents=self.contents.minus(other.contents),
            contained=self.contained - other.contained,
        )

    def percentiles_ms(self, *ranks: float) -> list[float]:
        """The latencies at these ranks; -1: no latency is known. Raises CorruptLatencies."""
        return Latencies.quantiles_of(self.latencies, ranks)


NO_TOTALS = Totals()


class Sums:
    """`Totals` that grow."""

    __slots__ = ("_latencies", "contained", "contents", "count", "duplicates", "first_ms", "identified",
                 "ids", "last_ms", "nbytes", "offsets", "offsets_of", "sourced", "span")  # fmt: skip

    def __init__(self, totals: Totals = NO_TOTALS, span: Range = NO_SPAN) -> None:
        self.count, self.nbytes, self.duplicates = totals.count, totals.nbytes, totals.duplicates
        self.identified, self.sourced = totals.identified, totals.sourced
        self.contained = totals.contained
        self.ids: Fingerprint = totals.ids
        self.contents: Fingerprint = totals.contents
        self.offsets: Fingerprint = totals.offsets
        self.offsets_of: set[str] = set(totals.offsets_of)
        self._latencies: Latencies | bytes = totals.latencies
        self.first_ms, self.last_ms = totals.first_ms, totals.last_ms
        self.span = span  # of offsets, if a log was counted

    def at(self, start: int, end: int) -> None:
        """Widens the span of offsets to [start, end)."""
        self.span = hull(self.span, (start, end))

    @property
    def latencies(self) -> Latencies:
        """The histogram: 11 kB, until `pack`."""
        if isinstance(self._latencies, bytes):
            self._latencies = Latencies.from_bytes(self._latencies)
        return self._latencies

    def pack(self) -> None:
        """Packs the latencies until some are added, because most windows of a part get none."""
        self._latencies = self._packed()

    def _packed(self) -> bytes:
        return self._latencies if isinstance(self._latencies, bytes) else self._latencies.to_bytes()

    def add(self, other: Sums) -> None:
        """Adds the sums of other records."""
        self.count += other.count
        self.nbytes += other.nbytes
        self.duplicates += other.duplicates
        self.identified += other.identified
        self.sourced += other.sourced
        self.ids = self.ids.plus(other.ids)
        self.contents, self.contained = self.contents.plus(other.contents), self.contained + other.contained
        self.offsets = self.offsets.plus(other.offsets)
        self.offsets_of |= other.offsets_of
        if isinstance(other._latencies, bytes) and not self._latencies:
            self._latencies = other._latencies
        elif other._latencies:
            self.latencies.merge(other.latencies)
        self.seen(other.first_ms, other.last_ms)
        self.span = hull(self.span, other.span)

    def seen(self, first_ms: int, last_ms: int) -> None:
        """Widens the timestamps to these; -1: none."""
        if first_ms >= 0 and (self.first_ms < 0 or first_ms < self.first_ms):
            self.first_ms = first_ms
        self.last_ms = max(self.last_ms, last_ms)

    def totals(self) -> Totals:
        return Totals(
            self.count, self.nbytes, self.duplicates, self.ids, self.identified, self.offsets, self.sourced,
            tuple(sorted(self.offsets_of)), self._packed(), self.first_ms, self.last_ms,
            self.contents, self.contained,
        )  # fmt: skip


def _merged(one: bytes, other: bytes) -> bytes:
    if not one or not other:
        return one or other
    both = Latencies.from_bytes(one)
    both.merge(Latencies.from_bytes(other))
    return both.to_bytes()


def _joined(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return some if some == others or not others else tuple(sorted({*some, *others}))


def _earlier(one: int, other: int) -> int:
    if NEVER_MS in (one, other):
        return max(one, other)
    return min(one, other)
