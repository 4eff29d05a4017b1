"""What a replica cannot get past: batches that the destination refuses, or that nobody can decode.

Rule: nothing is passed over by itself, since a copy is complete or it is none. What is refused is encoded
anew once: it may be too large as it is, or written by what this broker does not take. Then it is told, and
waits: tried again every `RETRY_S` (somebody may have raised the limit), until an operator skips it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from app.core.verbatim import Copy
from app.kafka.append_errors import Refused
from app.kafka.append_lane import Lane
from app.kafka.decode import UndecodableBatch
from app.replica.former import without
from app.replica.ledger import Ledger, Sent

RETRY_S = 5.0
REMEDIES = {
    10: "raise max.message.bytes of the destination topic",
    32: "raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the destination topic",
    76: "let the destination topic take the source's compression",
    87: "records without a key cannot be kept in a compacted topic; set its cleanup.policy to delete",
}


class Obstacle:
    """See the module; of one replica.

    Attributes: `at` (offsets [start, end) that wait), `why`.
    """

    def __init__(self, tell: Callable[[str, str, str], None], where: str) -> None:
        self.at: tuple[int, int] | None = None
        self.why = ""
        self._tell = tell
        self._where = where
        self._skipped = asyncio.Event()

    def skip(self, before: int) -> bool:
        """An operator skips what waits, if all of it lies below `before`."""
        if self.at is None or before < self.at[1]:
            return False
        self._skipped.set()
        return True

    async def wait(
        self, start: int, end: int, message: str, remedy: str, timeout_s: float | None = None
    ) -> bool:
        """Waits until these offsets are skipped, or for so long; whether they are to be skipped."""
        told = f"{self._where}, offsets [{start}, {end})"
        if self.at != (start, end):
            self.at = start, end
            self._skipped.clear()
            self._tell("replica-stuck", f"{told}: {message}", remedy)
        self.why = f"offsets [{start}, {end}) wait: {message}; {remedy}"
        try:
            async with asyncio.timeout(timeout_s):
                await self._skipped.wait()
        except TimeoutError:
            return False
        self.gone()
        self._tell("replica-skipped", f"{told} were skipped", "they are not in the copy")
        return True

    def gone(self) -> None:
        """It is past it."""
        self.at, self.why = None, ""

    async def mend(
        self,
        sent: Sent,
        error: Refused,
        lane: Lane,
        ledger: Ledger,
        max_batch_bytes: Callable[[], Awaitable[int]],
    ) -> None:
        """Puts something in the place of a refused batch.

        Raises: AppendError, ValueError: the lane has ended meanwhile.
        """
        copy, pieces = sent.copy, list[Copy]()
        assert copy is not None, "only a copy is refused"
        if not sent.is_mended:
            pieces = _mended(copy, await max_batch_bytes())
        if not pieces:
            skipped = await self.wait(
                copy.source_start, copy.source_end, f"refused with error {error.code}: {error}",
                REMEDIES.get(error.code, "see the destination topic's settings"), RETRY_S,
            )  # fmt: skip
            pieces = [] if skipped else [copy]
        futures = lane.instead([(piece.data, piece.record_count) for piece in pieces])
        ledger.instead(pieces, futures)


def _mended(copy: Copy, max_batch_bytes: int) -> list[Copy]:
    """Its records in other batches, of which only the last moves a position; [] when that cannot be."""
    with contextlib.suppress(UndecodableBatch):
        return without(copy, 0, max_batch_bytes)
    return []
