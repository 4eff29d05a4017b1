"""A lane's batch that is not acknowledged yet, and where it lies once it is.

A broker that forgets its producer right between two batches in flight takes the second one without the first,
which then comes behind it. Of neither is said where it lies: what lies behind the first one says nothing of
what comes after it in its sender's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import Bytes, next_sequence


class AppendedOffset(int):
    """A base offset that knows its producer's stamp behind the batch, and whether the log gave its records
    times of its own."""

    stamp: ProducerStamp
    has_times_of_log = False


def stamp_of(base_offset: int) -> ProducerStamp | None:
    """The producer's behind an appended batch; None where its numbers say nothing of its place."""
    return base_offset.stamp if isinstance(base_offset, AppendedOffset) else None


def has_times_of_log(base_offset: int) -> bool:
    """Whether the log put its own times in place of an appended batch's; False also where nobody told."""
    return isinstance(base_offset, AppendedOffset) and base_offset.has_times_of_log


class PendingBatch:
    """See the module."""

    __slots__ = (
        "alone", "base_offset", "code", "data", "epoch", "future", "log_time_ms", "message", "record_count",
        "refused", "sequence",
    )  # fmt: skip

    def __init__(self, data: Bytes, record_count: int, future: asyncio.Future[int]) -> None:
        self.data = data
        self.record_count = record_count
        self.future = future
        self.sequence = self.epoch = -1  # given when it is sent first
        self.base_offset: int | None = None  # in the log
        self.log_time_ms = -1  # its records' in the log, where that gives them one of its own
        self.alone = False  # nothing of the lane was in flight when it was sent
        self.code, self.message = 0, ""  # of its last try
        self.refused: tuple[int, ...] = ()  # records of it, by that try

    def acknowledge(self, base_offset: int, producer_id: int) -> None:
        """All in-sync replicas have it, at this offset; -1: nobody tells where."""
        if self.future.done():  # its sender may have cancelled it
            return
        if self.sequence >= 0 and base_offset >= 0:
            appended, behind = AppendedOffset(base_offset), next_sequence(self.sequence, self.record_count)
            appended.stamp = ProducerStamp(producer_id, self.epoch, behind)
            appended.has_times_of_log = self.log_time_ms >= 0
            base_offset = appended
        self.future.set_result(base_offset)


class OutOfOrderBatches:
    """Batches that are in the log, though one in front of them in the queue was not."""

    def __init__(self) -> None:
        self._batches: list[PendingBatch] = []

    def see(self, queue: Iterable[PendingBatch]) -> None:
        """Nothing of the queue is in flight; what of its beginning is in the log has left it."""
        self._batches = [pending for pending in queue if pending.base_offset is not None]

    def place(self, pending: PendingBatch) -> tuple[int, bool]:
        """Where the queue's first batch, which is in the log, lies (-1: nobody tells), and whether it was
        found only now that another one was taken before it."""
        base_offset = -1 if pending.base_offset is None else pending.base_offset
        if not self._batches:
            return base_offset, False
        self._batches = [one for one in self._batches if one is not pending]
        places = [-1 if one.base_offset is None else one.base_offset for one in self._batches]
        is_behind = any(0 <= place < base_offset for place in places)
        if not any(base_offset < 0 or place < base_offset for place in places):
            return base_offset, False
        for one, place in zip(self._batches, places, strict=True):
            if base_offset < 0 or place < base_offset:
                one.base_offset = -1
        return -1, is_behind
