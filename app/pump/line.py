"""Which message of a partition is next: what may be sent now, and what waits for its time or its turn.

    intake.ready ──▶ the partition's delay ──▶ behind its key ──▶ its own `not-before` ──▶ next
                                                  ▲                                         │
                                                  └── freed ◀── finished ◀──────────────────┤
                                                                again ◀── a backoff ◀───────┘

Rules
1. Retry tiers wait until each record's delay has passed since it was appended; records of a tier are
   in order of time, so that looking at the first is enough. So does the workload's own delay.
2. With an order, a message is shown only when those before it of the same key (or partition) are finished.
3. What is to be delivered again goes first.

Everything in here is unfinished in the tracker, whose capacity bounds it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import structlog

from app.clock import now_ms
from app.core.due import DueQueue, not_before_ms
from app.core.retry_headers import read_origin
from app.pump.delivery import Delivery

if TYPE_CHECKING:
    from app.core.lanes import Lanes
    from app.core.record import Record
    from app.pump.dispatch import DispatchPump
    from app.pump.intake import Intake

log = structlog.get_logger(__name__)
_offset = attrgetter("offset")


class Line:
    """See the module. `stirred` is told when something may be sent that could not before."""

    def __init__(
        self, pump: DispatchPump, intake: Intake, lanes: Lanes[Record] | None, stirred: Callable[[], None]
    ) -> None:
        self.waiting: dict[int, tuple[asyncio.TimerHandle, Delivery]] = {}  # for their next attempt
        self._pump = pump
        self._intake = intake
        self._lanes = lanes
        self._stirred = stirred
        self._again: deque[Delivery] = deque()
        self._freed: deque[Record] = deque()  # whose turn has come in their lane
        self._due: DueQueue[Record] = DueQueue(pump.tracker.capacity)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    @property
    def has_some(self) -> bool:
        """There is something to look at."""
        return bool(self._again or self._freed or self._intake.ready)

    # -- the next --------------------------------------------------------------------------------

    def next_delivery(self) -> Delivery | None:
        """The next message, or None when there is none (now)."""
        if self._again:
            return self._again.popleft()
        ready = self._intake.ready
        while self._freed or (ready and self._is_due(ready[0])):
            record = self._freed.popleft() if self._freed else self._in_lane(ready.popleft())
            if record is not None and not self._is_postponed(record):
                return self._delivery(record)
        return None

    def next_records(self, most: int) -> list[Record]:
        """At most `most` messages that may go together; empty: ask `next_delivery`."""
        if self._again or self._pump.delay_ms:
            return []
        intake, freed = self._intake, self._freed
        ready = intake.ready
        if len(ready) < most:
            intake.refill(most)
        records = [freed.popleft() for _ in range(min(most, len(freed)))]
        fresh = [ready.popleft() for _ in range(min(most - len(records), len(ready)))]
        if self._lanes is not None:
            fresh = self._lanes.offer_many((record.key, record) for record in fresh)
            fresh = sorted(records + fresh, key=_offset)
        return [record for record in fresh if not (record.headers and self._is_postponed(record))]

    def _delivery(self, record: Record) -> Delivery:
        pump = self._pump
        if pump.is_main:
            return Delivery(pump, record, None)
        origin = read_origin(
            record.headers,
            topic=pump.job.topic,
            partition=pump.job.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            tier=pump.tier,
        )
        return Delivery(pump, record, origin)

    def put_back(self, delivery: Delivery) -> None:
        """Shows it again, before all others."""
        self._again.append(delivery)

    # -- its turn --------------------------------------------------------------------------------

    def _in_lane(self, record: Record) -> Record | None:
        return record if self._lanes is None else self._lanes.offer(record.key, record)

    def finished(self, records: Sequence[Record]) -> None:
        """These are finished: what waited behind them may go."""
        if self._lanes is None:
            return
        freed = self._lanes.finished_many(record.key for record in records)
        if freed:
            self._freed += freed
            self._stirred()

    # -- its time --------------------------------------------------------------------------------

    def later(self, delivery: Delivery, delay_s: float) -> None:
        """Shows it again after `delay_s`."""
        offset = delivery.record.offset
        handle = asyncio.get_running_loop().call_later(delay_s, self._show_again, offset)
        self.waiting[offset] = (handle, delivery)

    def _show_again(self, offset: int) -> None:
        _, delivery = self.waiting.pop(offset)
        self._again.append(delivery)
        self._stirred()

    def _is_due(self, record: Record) -> bool:
        """Rule 1; looks again when it is."""
        delay_ms = self._pump.delay_ms
        if not delay_ms:
            return True
        due_ms = record.timestamp + delay_ms
        if due_ms <= now_ms():
            return True
        self._wake_at(due_ms)
        return False

    def _is_postponed(self, record: Record) -> bool:
        """Whether its own header puts it off; it comes again when its time has come."""
        if not record.headers:
            return False
        present_ms = now_ms()
        at_ms, problem = not_before_ms(record.headers, present_ms)
        if problem:
            log.warning("a header is not heeded", job=str(self._pump.job), problem=problem)
        if at_ms is None or at_ms <= present_ms or not self._due.push(at_ms, record.offset, record):
            return False
        self._wake_at(at_ms)
        return True

    def _wake_at(self, at_ms: int) -> None:
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = at_ms
        wait_s = max(0.0, (at_ms - now_ms()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._again += [self._delivery(record) for _, record in self._due.pop_due(now_ms()) if record]
        if self._due.next_due_ms is not None:
            self._wake_at(self._due.next_due_ms)
        self._stirred()

    # -- out of turn -----------------------------------------------------------------------------

    def take(self, offset: int) -> Delivery | None:
        """Takes the message out of whatever it waits in; None when it does not, or must keep its place."""
        waiting = self.waiting.pop(offset, None)
        if waiting is not None:
            waiting[0].cancel()
            return waiting[1]
        for delivery in self._again:
            if delivery.record.offset == offset:
                self._again.remove(delivery)
                return delivery
        if self._lanes is None:
            for record in self._intake.ready:
                if record.offset == offset:
                    self._intake.ready.remove(record)
                    return self._delivery(record)
        return None

    def close(self) -> None:
        """Shows nothing more."""
        self._intake.close()
        self._again.clear()
        self._freed.clear()
        for handle, _ in self.waiting.values():
            handle.cancel()
        self.waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
