"""What is known of the records of a window at a tier: sums that are added, and compared."""

from __future__ import annotations

import msgspec

from app.core.audit.fingerprint import NOTHING, Fingerprint
from app.core.audit.latencies import Latencies

NEVER_MS = -1


class Totals(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over records.

    Attributes:
        nbytes: as in the log, compressed and with batch headers; of a batch in two windows each gets its
            records' share. Tiers that encode differently have different ones.
        duplicates: that the tier itself knows to have been there before (redelivered, written again).
        ids, identified: the fingerprint of message ids, and of how many records.
        offsets, sourced: the fingerprint of source offsets, and of how many records.
        offsets_of: the clusters whose offsets they are; those of a copy are others than its source's.
        latencies: `Latencies.to_bytes`; may be of fewer records than `count`.
        first_ms, last_ms: the lowest and the highest timestamp, -1 of none. Taking out leaves them.
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
        )

    def beyond(self, other: Totals) -> Totals:
        """What this, of the same records and more, has beyond `other`: that and `other` together are this.

        Latencies may have been measured of fewer records than by `other`, since who reads a backlog has none
        of its own: nothing is taken away then. Raises CorruptLatencies.
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
        )

    def percentiles_ms(self, *ranks: float) -> list[float]:
        """Of the latencies; -1 where none are known. Raises CorruptLatencies."""
        return Latencies.from_bytes(self.latencies).quantiles_ms(ranks)


NO_TOTALS = Totals()


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
