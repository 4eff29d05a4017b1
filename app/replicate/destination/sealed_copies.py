"""Copies only sealed records of a region's control topics (`app.controllog.seals`).

Readers of a copy cannot check seals, because the copy has other offsets. So the check is made here, with the
region's own offsets.
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
    """The seal check of one partition.

    Args:
        seals: The region's seals; None while it has none.
        inner: The edit of records that count.
    """

    def __init__(
        self, topic: str, partition: int, seals: Callable[[], Seals | None], inner: Edit | None
    ) -> None:
        self._place = topic, partition
        self._seals = seals
        self._inner = inner
        self._checked_to = 0  # a record that is sent again is not counted again

    def edit(self, end: int) -> Edit | None:
        """An edit that leaves out records that do not count, for batches that end at offset `end` at the
        latest.

        Batches below the first seal could not be sealed, so they are copied by the route's own rules."""
        seals = self._seals()
        if seals is None or end <= seals.begins.get(self._place, end):
            return self._inner
        return partial(self._edit_sealed, seals)

    async def refuses(self, error: UndecodableBatch) -> bool:
        """Whether undecodable records do not count, because no worker can read them either."""
        seals = self._seals()
        if seals is None or error.start < seals.begins.get(self._place, error.end):
            return False
        if await asyncio.to_thread(_is_readable, error.raw):
            return False
        self._refuse(seals, error.start)
        return True

    def _edit_sealed(self, seals: Seals, record: Record) -> Headers | None:
        if not seals.counts(*self._place, record):
            self._refuse(seals, record.offset)
            return None
        self._checked_to = max(self._checked_to, record.offset + 1)
        return record.headers if self._inner is None else self._inner(record)

    def _refuse(self, seals: Seals, offset: int) -> None:
        if offset >= self._checked_to:
            self._checked_to = offset + 1
            seals.refuse(*self._place, offset)


def _is_readable(raw: bytes) -> bool:
    try:
        for batch in iter_batches(raw):
            deque(records_of(batch), maxlen=0)
    except Exception:  # noqa: BLE001 - the decoder raises many kinds
        return False
    return True
