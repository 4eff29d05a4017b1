"""What a replica cannot get past: batches that the destination refuses, or that nobody can decode.

Rules
1. Nothing is passed over by itself, since a copy is complete or it is none. What is refused is encoded anew
   once: it may be written by what this broker does not take. It goes uncompressed where the compression is
   refused. What is too large, or has some record that is refused, is divided until it fits, or is a single
   record. What is too large is not where the route says `sync.onSmallerLimits: copy`. Where the broker names
   the refused records (KIP-467), it is divided around them at once.
2. What is left is told, with its offsets, and waits: tried again every `BLOCKED_RETRY_INTERVAL_S` (somebody
   may have raised the limit), until an operator skips it.
3. Two may wait at once: what the destination refuses, and behind it what cannot be decoded.
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
    UNSUPPORTED_COMPRESSION,
    BatchRefused,
)
from app.kafka.append.lane import AppendLane
from app.kafka.fetch.decoder import UndecodableBatch
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.ranges import Range
from app.replicate.destination.ledger import CopyLedger, SentBatch
from app.replicate.destination.predecessor import divided, halves, is_compressed, places_of, without

BLOCKED_RETRY_INTERVAL_S = 5.0
CUTS_AT_ONCE = 128
UNCOMPRESSED = 0


class _Waiting:
    """`given_up`: an operator has skipped it."""

    __slots__ = ("given_up", "why")

    def __init__(self) -> None:
        self.why = ""
        self.given_up = asyncio.Event()


class BlockedBatch:
    """See the module; of one replica."""

    def __init__(self, report_incident: Callable[[str, str, str], None], where: str) -> None:
        self._report_incident = report_incident
        self._where = where
        self._waiting: dict[Range, _Waiting] = {}

    @property
    def why(self) -> str:
        """What waits first, and why; "" for nothing."""
        return self._waiting[min(self._waiting)].why if self._waiting else ""

    @property
    def at(self) -> tuple[Range, ...]:
        """Offsets [start, end) that wait, each all of it together, in order."""
        return tuple(sorted(self._waiting))

    def skip(self, start: int, end: int) -> bool:
        """An operator gives up what waits at exactly these offsets; whether it waits."""
        waiting = self._waiting.get((start, end))
        if waiting is None or waiting.given_up.is_set():
            return False
        waiting.given_up.set()
        return True

    def passed(self, base: int) -> None:
        """All below `base` is copied."""
        for start, end in list(self._waiting):
            if end <= base:
                del self._waiting[start, end]

    async def wait(
        self, start: int, end: int, message: str, remedy: str, timeout_s: float | None = None
    ) -> bool:
        """Waits until these offsets are skipped, or for so long; whether they are to be skipped."""
        at = start, end
        told = f"{self._where}, offsets [{start}, {end})"
        waiting = self._waiting.get(at)
        if waiting is None:
            waiting = self._waiting[at] = _Waiting()
            self._report_incident("replica-stuck", f"{told}: {message}", remedy)
        waiting.why = f"offsets [{start}, {end}) wait: {message}; {remedy}"
        try:
            async with asyncio.timeout(timeout_s):
                await waiting.given_up.wait()
        except TimeoutError:
            return False
        self._waiting.pop(at, None)
        self._report_incident("replica-skipped", f"{told} were skipped", "they are not in the copy")
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
        """Puts something in the place of a refused batch. `divides`: what is too large may be taken apart.

        Raises: AppendError, ValueError: the lane has ended meanwhile.
        """
        copy = sent.copy
        assert copy is not None, "only a copy is refused"
        pieces: list[VerbatimCopy] = []
        divides = divides or error.code in FOR_A_RECORD
        cuts = _around(error.records, copy.record_count) if error.code in FOR_A_RECORD else []
        are_all_named = len(error.records) >= copy.record_count
        with contextlib.suppress(UndecodableBatch):
            if error.code == UNSUPPORTED_COMPRESSION and is_compressed(copy):
                pieces = await _made(without(copy, 0, await max_batch_bytes(), UNCOMPRESSED))
            elif divides and cuts:
                pieces = await _made(divided(copy, cuts))
            elif not sent.is_mended and (divides or error.code not in TOO_LARGE):
                pieces = await _made(without(copy, 0, await max_batch_bytes()))
            fits_not = error.code in TOO_LARGE or (
                error.code in FOR_A_RECORD and sent.is_mended and not are_all_named
            )
            if divides and fits_not and len(pieces) <= 1 and copy.record_count > 1:
                pieces = await _made(halves(copy))
        if not pieces:
            start, end = await asyncio.to_thread(places_of, copy)
            may_help = not divides and copy.record_count > 1 and error.code in TOO_LARGE
            or_divide = ", or write sync.onSmallerLimits: divide" if may_help else ""
            skipped = await self.wait(
                start,
                end,
                f"refused with error {error.code}: {error}",
                REMEDIES.get(error.code, OTHER_REMEDY) + or_divide,
                BLOCKED_RETRY_INTERVAL_S,
            )
            pieces = [] if skipped else [copy]
        futures = lane.replace_refused([(piece.data, piece.record_count) for piece in pieces])
        ledger.instead(pieces, futures)


def _around(refused: Sequence[int], count: int) -> list[int]:
    """Where to divide a batch of `count` records, so that those that are refused are by themselves: in a row
    they stay together. What is behind the first `CUTS_AT_ONCE` is divided when its turn comes."""
    beyond = {at + 1 for at in refused}.symmetric_difference(refused)
    return [at for at in heapq.nsmallest(CUTS_AT_ONCE, beyond) if 0 < at < count]


async def _made(pieces: Iterator[VerbatimCopy]) -> list[VerbatimCopy]:
    """All of them, between which others have their turn."""
    found: list[VerbatimCopy] = []
    for piece in pieces:
        found.append(piece)
        await asyncio.sleep(0)
    return found
