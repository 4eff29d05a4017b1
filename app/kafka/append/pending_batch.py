"""A lane's batch that is not acknowledged yet, and its place in the log afterwards.

A broker that forgets a producer between two batches in flight takes the second without the first; the
first then comes after it. Neither gets an offset, because a known offset promises that earlier batches lie
before it and later ones after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import Bytes, next_sequence


class AppendedOffset(int):
    """A base offset with the producer's stamp after the batch, and whether the log set its own timestamps."""

    stamp: ProducerStamp
    has_times_of_log = False


def stamp_of(base_offset: int) -> ProducerStamp | None:
    """The producer's stamp after an appended batch; None if its place is not known."""
    return base_offset.stamp if isinstance(base_offset, AppendedOffset) else None


def has_times_of_log(base_offset: int) -> bool:
    """Whether the log replaced the batch's timestamps by its own; False also if that is not known."""
    return isinstance(base_offset, AppendedOffset) and base_offset.has_times_of_log


class PendingBatch:
    __slots__ = (
        "alone", "base_offset", "code", "data", "epoch", "future", "log_time_ms", "message", "record_count",
        "refused", "sequence",
    )  # fmt: skip

    def __init__(self, data: Bytes, record_count: int, future: asyncio.Future[int]) -> None:
        self.data = data
        self.record_count = record_count
        self.future = future
        self.sequence = self.epoch = -1  # set by the first attempt
        self.base_offset: int | None = None  # set once it is in the log
        self.log_time_ms = -1  # the log's timestamp, if it sets its own
        self.alone = False  # the lane had nothing else in flight when it was sent
        self.code, self.message = 0, ""  # of the last attempt
        self.refused: tuple[int, ...] = ()  # its records that the last attempt refused

    def acknowledge(self, base_offset: int, producer_id: int) -> None:
        """All in-sync replicas have the batch, at this offset; -1: the offset is not known."""
        if self.future.done():  # the sender may have cancelled it
            return
        if self.sequence >= 0 and base_offset >= 0:
            appended = AppendedOffset(base_offset)
            next_number = next_sequence(self.sequence, self.record_count)
            appended.stamp = ProducerStamp(producer_id, self.epoch, next_number)
            appended.has_times_of_log = self.log_time_ms >= 0
            base_offset = appended
        self.future.set_result(base_offset)


class OutOfOrderBatches:
    """Batches that are in the log although one in front of them in the queue was not."""

    def __init__(self) -> None:
        self._batches: list[PendingBatch] = []

    def see(self, queue: Iterable[PendingBatch]) -> None:
        """Notes these batches, while none of the queue is in flight."""
        self._batches = [pending for pending in queue if pending.base_offset is not None]

    def place(self, pending: PendingBatch) -> tuple[int, bool]:
        """The offset of the queue's first batch, which is in the log (-1: not known). Also whether it was
        found only now that a later batch was taken before it."""
        base_offset = -1 if pending.base_offset is None else pending.base_offset
        if not self._batches:
            return base_offset, False
        self._batches = [batch for batch in self._batches if batch is not pending]
        places = [-1 if batch.base_offset is None else batch.base_offset for batch in self._batches]
        is_behind = any(0 <= place < base_offset for place in places)
        if not any(base_offset < 0 or place < base_offset for place in places):
            return base_offset, False
        for batch, place in zip(self._batches, places, strict=True):
            if base_offset < 0 or place < base_offset:
                batch.base_offset = -1
        return -1, is_behind
