"""Copies of a region's control topics have only what its workers have sealed (`app.controllog.seals`).

Whoever reads a copy cannot check that: its offsets are others. Here the offsets are the region's own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from app.controllog.seals import Seals
from app.kafka.append.encoder import Edit, Headers
from app.kafka.fetch.decoder import UndecodableBatch, records_of
from app.kafka.records.batch import iter_batches
from app.kafka.records.record import Record


class SealedCopies:
    """Of one partition.

    Args:
        seals: the region's; None as long as it has none.
        inner: gives records that count their headers.
    """

    def __init__(
        self, topic: str, partition: int, seals: Callable[[], Seals | None], inner: Edit | None
    ) -> None:
        self._place = topic, partition
        self._seals = seals
        self._inner = inner
        self._upto = 0  # so far records were looked at: what is sent again is not counted again

    def edit(self, end: int) -> Edit | None:
        """Leaves out the records that do not count, for batches that end at offset `end` at the latest.

        Batches below the first seal are copied by the route's own rules: nobody could have sealed them.
        """
        seals = self._seals()
        if seals is None or end <= seals.begins.get(self._place, end):
            return self._inner
        return partial(self._checked, seals)

    async def refuses(self, error: UndecodableBatch) -> bool:
        """Whether records that could not be copied do not count: no worker can read them, either."""
        seals = self._seals()
        if seals is None or error.start < seals.begins.get(self._place, error.end):
            return False
        if await asyncio.to_thread(_is_readable, error.raw):
            return False
        self._refuse(seals, error.start)
        return True

    def _checked(self, seals: Seals, record: Record) -> Headers | None:
        if not seals.counts(*self._place, record):
            self._refuse(seals, record.offset)
            return None
        self._upto = max(self._upto, record.offset + 1)
        return record.headers if self._inner is None else self._inner(record)

    def _refuse(self, seals: Seals, offset: int) -> None:
        if offset >= self._upto:
            self._upto = offset + 1
            seals.refuse(*self._place, offset)


def _is_readable(raw: bytes) -> bool:
    try:
        for batch in iter_batches(raw):
            deque(records_of(batch), maxlen=0)
    except Exception:  # noqa: BLE001 - decoders raise what they like
        return False
    return True
