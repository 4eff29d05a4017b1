"""The batches that stop a replica: the destination refuses them, or they cannot be decoded.

Rules
1. A replica passes over no batch by itself, because a copy is complete or it is none. It encodes a refused
   batch again once, because the producer may have used a format that this broker does not accept. If the
   compression is refused, it sends the batch uncompressed. A batch that is too large, or has some refused
   record, is divided until it fits or is a single record. A batch that is too large stays whole if the route
   says `sync.onSmallerLimits: copy`. If the broker names the refused records (KIP-467), the batch is divided
   around them at once.
2. The replica reports a batch that is left, with its offsets. It tries a refused batch again every
   `BLOCKED_RETRY_INTERVAL_S`, because the limit may have been raised, until an operator skips it. A batch
   that cannot be decoded waits for the operator.
3. Two batches may wait at once: a refused one, and behind it one that cannot be decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Iterator, Sequence

from app.kafka.append.errors import (
    FOR_A_RECORD,
    OTHER_REMEDY,
    REMEDIES,
    TOO_LARGE,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_COMPRESSION,
    BatchRefused,
)
from app.kafka.append.lane import AppendLane
from app.kafka.fetch.decoder import UndecodableBatch
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.incidents import ReportOwnIncident
from app.kernel.ranges import Range
from app.replicate.destination.ledger import CopyLedger, SentBatch
from app.replicate.destination.predecessor import divided, drop_first, halves, is_compressed, places_of

BLOCKED_RETRY_INTERVAL_S = 5.0
CUTS_AT_ONCE = 128
UNCOMPRESSED = 0


class _Waiting:
    """Offsets that wait; `is_skipped` is set once an operator skips them."""

    __slots__ = ("is_skipped", "why")

    def __init__(self) -> None:
        self.why = ""
        self.is_skipped = asyncio.Event()


class BlockedBatch:
    def __init__(self, report_incident: ReportOwnIncident, where: str) -> None:
        self._report_incident = report_incident
        self._where = where
        self._waiting: dict[Range, _Waiting] = {}

    @property
    def why(self) -> str:
        """The first waiting offsets and the reason; "": none wait."""
        return self._waiting[min(self._waiting)].why if self._waiting else ""

    @property
    def waiting_ranges(self) -> tuple[Range, ...]:
        """Offsets [start, end) that wait, in order; each is skipped as a whole."""
        return tuple(sorted(self._waiting))

    def skip(self, start: int, end: int) -> bool:
        """Skips exactly these offsets for an operator; returns whether they waited."""
        waiting = self._waiting.get((start, end))
        if waiting is None or waiting.is_skipped.is_set():
            return False
        waiting.is_skipped.set()
        return True

    def drop_below(self, base: int) -> None:
        """Drops waiting offsets below `base`, because they are copied."""
        for start, end in list(self._waiting):
            if end <= base:
                del self._waiting[start, end]

    async def wait(
        self, start: int, end: int, message: str, remedy: str, timeout_s: float | None = None
    ) -> bool:
        """Waits until an operator skips these offsets, or for `timeout_s`; returns whether to skip them."""
        offsets = start, end
        place = f"{self._where}, offsets [{start}, {end})"
        waiting = self._waiting.get(offsets)
        if waiting is None:
            waiting = self._waiting[offsets] = _Waiting()
            self._report_incident(
                "replica-stuck", f"{place}: {message}", remedy,
                lambda: self._waiting.get(offsets) is not waiting,
            )  # fmt: skip
        waiting.why = f"offsets [{start}, {end}) wait: {message}; {remedy}"
        try:
            async with asyncio.timeout(timeout_s):
                await waiting.is_skipped.wait()
        except TimeoutError:
            return False
        self._waiting.pop(offsets, None)
        self._report_incident(
            "replica-skipped",
            f"{place} were skipped by an operator",
            "nothing to do: the copy lacks these records",
        )
        return True

    async def mend(
        self,
        sent: SentBatch,
        error: BatchRefused,
        lane: AppendLane,
        ledger: CopyLedger,
        max_batch_bytes: Callable[[], Awaitable[int]],
        *,
        divides: bool = True,
    ) -> None:
        """Replaces a refused batch by one that may be accepted, or waits. `divides`: a batch that is too
        large may be divided; one with refused records always is.

        Raises: AppendError, ValueError: The lane has ended meanwhile."""
        copy = sent.copy
        assert copy is not None, "only a copy is refused"
        pieces: list[VerbatimCopy] = []
        divides = divides or error.code in FOR_A_RECORD
        cuts = _cuts_around(error.records, copy.record_count) if error.code in FOR_A_RECORD else []
        are_all_named = len(error.records) >= copy.record_count
        may_help_encoded = error.code != UNKNOWN_SERVER_ERROR  # it may be the broker's own fault
        with contextlib.suppress(UndecodableBatch):
            if error.code == UNSUPPORTED_COMPRESSION and is_compressed(copy):
                pieces = await _collect(drop_first(copy, 0, await max_batch_bytes(), UNCOMPRESSED))
            elif divides and cuts:
                pieces = await _collect(divided(copy, cuts))
            elif not sent.is_mended and may_help_encoded and (divides or error.code not in TOO_LARGE):
                pieces = await _collect(drop_first(copy, 0, await max_batch_bytes()))
            must_shrink = error.code in TOO_LARGE or (
                error.code in FOR_A_RECORD and sent.is_mended and not are_all_named
            )
            if divides and must_shrink and len(pieces) <= 1 and copy.record_count > 1:
                pieces = await _collect(halves(copy))
        if not pieces:
            start, end = await asyncio.to_thread(places_of, copy)
            may_help = not divides and copy.record_count > 1 and error.code in TOO_LARGE
            or_divide = ", or write sync.onSmallerLimits: divide" if may_help else ""
            skipped = await self.wait(
                start,
                end,
                f"the destination refuses them with error {error.code}: {error}",
                REMEDIES.get(error.code, OTHER_REMEDY) + or_divide,
                BLOCKED_RETRY_INTERVAL_S,
            )
            pieces = [] if skipped else [copy]
        futures = lane.replace_refused([(piece.data, piece.record_count) for piece in pieces])
        ledger.replace_failed(pieces, futures)


def _cuts_around(refused: Sequence[int], count: int) -> list[int]:
    """Where to divide a batch of `count` records so that the refused ones are apart; a row of them stays
    together. Records behind the first `CUTS_AT_ONCE` cuts are divided when their piece is refused."""
    cuts = {index + 1 for index in refused}.symmetric_difference(refused)
    return [cut for cut in heapq.nsmallest(CUTS_AT_ONCE, cuts) if 0 < cut < count]


async def _collect(pieces: Iterator[VerbatimCopy]) -> list[VerbatimCopy]:
    """All pieces; other tasks run between them, because encoding takes long."""
    found: list[VerbatimCopy] = []
    for piece in pieces:
        found.append(piece)
        await asyncio.sleep(0)
    return found
