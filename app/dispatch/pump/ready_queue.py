"""Which message of a partition is next: what may be sent now, and what waits for its time or its turn.

    intake.ready ──▶ the partition's delay ──▶ behind its key ──▶ its own `not-before` ──▶ next
                                                  ▲                                         │
                                                  └── freed ◀── finished ◀──────────────────┤
                                                                again ◀── a backoff ◀───────┘

Rules
1. Retry tiers wait until each record's delay has passed since it was appended; records of a tier are
   in order of time, so that looking at the first is enough. So does the workload's own delay. A record whose
   timestamp lies ahead counts as appended when it was first seen in the log
   (`app.dispatch.model.delayed_delivery.Arrivals`).
2. With an order, a message is shown only when those before it of the same key (or partition) are finished.
3. What is to be delivered again goes first.
4. What is taken out of turn leaves whatever it waits in; those behind it keep their order, and its end frees
   nobody: the one before it is still out.
5. What is due far ahead does not hold its partition (`app.dispatch.pump.delayed_messages`).

Everything in here is unfinished in the tracker, whose capacity bounds it; the bytes of what waits for its
time or its turn are bounded besides (`app.dispatch.pump.intake`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import structlog

from app.dispatch.model.delayed_delivery import LEVELS_MS, not_before_ms
from app.dispatch.model.retry_headers import read_origin
from app.dispatch.pump.delayed_messages import DELAY_POLL_INTERVAL_MS, DelayedMessages
from app.dispatch.pump.delivery import Delivery
from app.kafka.records.record import size_of
from app.kernel.clock import now_ms

if TYPE_CHECKING:
    from app.dispatch.model.key_lanes import KeyLanes
    from app.dispatch.pump.intake import MessageIntake
    from app.dispatch.pump.partition import DispatchPump
    from app.kafka.records.record import Record

log = structlog.get_logger(__name__)
_offset = attrgetter("offset")


class ReadyQueue:
    """See the module. `on_sendable` is told when something may be sent that could not before."""

    def __init__(
        self,
        pump: DispatchPump,
        intake: MessageIntake,
        lanes: KeyLanes[Record] | None,
        on_sendable: Callable[[], None],
    ) -> None:
        self.waiting: dict[int, tuple[asyncio.TimerHandle, Delivery]] = {}  # for their next attempt
        self._pump = pump
        self._intake = intake
        self._lanes = lanes
        self._on_sendable = on_sendable
        self._again: deque[Delivery] = deque()
        self._freed: deque[Record] = deque()  # whose turn has come in their lane
        self._out_of_turn: set[int] = set()  # taken before their turn, and not finished (rule 4)
        self._level_ms = 0
        if pump.job.topic == pump.runtime.workload.delayed_topic():
            self._level_ms = LEVELS_MS[min(pump.job.partition, len(LEVELS_MS) - 1)]
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self.delayed = DelayedMessages(
            pump, intake, ordered=lanes is not None, wake=self._wake_at, read_on=self._read_on,
            origin=lambda record: self._delivery(record).told_origin(),
        )  # fmt: skip

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
        if self._again or self._delay_ms:
            return []
        intake, freed = self._intake, self._freed
        ready = intake.ready
        if len(ready) < most:
            intake.refill(most)
        records = [freed.popleft() for _ in range(min(most, len(freed)))]
        fresh = [ready.popleft() for _ in range(min(most - len(records), len(ready)))]
        if self._lanes is not None:
            turns = self._lanes.offer_many((record.key, record) for record in fresh)
            if len(turns) < len(fresh):
                intake.hold(sum(map(size_of, fresh)) - sum(map(size_of, turns)))
            fresh = sorted(records + turns, key=_offset)
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
            keeps_tier=bool(self._level_ms),
        )
        return Delivery(pump, record, origin)

    def put_back(self, delivery: Delivery) -> None:
        """Shows it again, before all others."""
        self._again.append(delivery)

    # -- its turn --------------------------------------------------------------------------------

    def _in_lane(self, record: Record) -> Record | None:
        if self._lanes is None or self._lanes.offer(record.key, record) is not None:
            return record
        self._intake.hold(size_of(record))
        return None

    def finished(self, records: Sequence[Record]) -> None:
        """These are finished: what waited behind them may go."""
        if self.delayed.in_play:
            self.delayed.make_way()
        if self._lanes is None:
            return
        if self._out_of_turn:
            early = self._out_of_turn.intersection(record.offset for record in records)
            self._out_of_turn -= early
            records = [record for record in records if record.offset not in early]
        freed = self._lanes.finished_many(record.key for record in records)
        if freed:
            self._intake.hold(-sum(map(size_of, freed)))
            self._freed += freed
            self._on_sendable()

    # -- its time --------------------------------------------------------------------------------

    def later(self, delivery: Delivery, delay_s: float) -> None:
        """Shows it again after `delay_s`."""
        offset = delivery.record.offset
        handle = asyncio.get_running_loop().call_later(delay_s, self._show_again, offset)
        self.waiting[offset] = (handle, delivery)
        self._intake.hold(size_of(delivery.record))

    def _show_again(self, offset: int) -> None:
        _, delivery = self.waiting.pop(offset)
        self._intake.hold(-size_of(delivery.record))
        self._again.append(delivery)
        self._on_sendable()

    @property
    def _delay_ms(self) -> int:
        return self._level_ms or self._pump.delay_ms

    def _due_ms(self, record: Record) -> int:
        """Rule 1."""
        return self._intake.arrivals.appended_ms(record.offset, record.timestamp) + self._delay_ms

    def _is_due(self, record: Record) -> bool:
        """Rule 1; looks again when it is."""
        if not self._delay_ms:
            return True
        due_ms = self._due_ms(record)
        if due_ms <= now_ms():
            return True
        self._wake_at(due_ms)
        return False

    def _is_postponed(self, record: Record) -> bool:
        """Whether its own header puts it off; it comes again when its time has come."""
        if not record.headers:
            return False
        present_ms = now_ms()
        heeded = self._pump.runtime.heeds_not_before
        if not heeded and self._pump.is_main:
            return False  # a copy's own time says nothing here: only copies have one
        at_ms, problem = not_before_ms(record.headers, present_ms, heeded)
        if problem:
            log.warning("a header is not heeded", job=str(self._pump.job), problem=problem)
        if at_ms is None or at_ms <= present_ms:
            return False
        self.delayed.add(at_ms, record)
        return True

    def _wake_at(self, at_ms: int) -> None:
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = at_ms
        # No longer than that: by then the clock may be another (`app.kernel.clock`).
        wait_s = min(max(0, at_ms - now_ms()), DELAY_POLL_INTERVAL_MS) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._again += map(self._delivery, self.delayed.pop_due())
        self.delayed.make_way()
        self._on_sendable()

    def _read_on(self) -> None:
        self._pump.refill()
        self._on_sendable()

    # -- state -----------------------------------------------------------------------------------

    def waits(self) -> dict[str, Any]:
        """What is in here waits for what: fields of `app.controllog.codec.JobStatus`."""
        ready, delay_ms = self._intake.ready, self._delay_ms
        dues = [self.delayed.next_due_ms]
        postponed, may_go = len(self.delayed), len(self._again) + len(self._freed)
        if ready and delay_ms and (due_ms := self._due_ms(ready[0])) > now_ms():
            dues.append(due_ms)
            postponed += len(ready)
        else:
            may_go += len(ready)
        return {
            "ready": may_go,
            "behind": 0 if self._lanes is None else self._lanes.waiting,
            "postponed": postponed,
            "backoff": len(self.waiting),
            "due_ms": min((at_ms for at_ms in dues if at_ms is not None), default=-1),
            "buffered_bytes": self._intake.buffered_bytes,
        }

    def risk(self) -> str:
        """What may be lost by waiting in its place, "" for nothing."""
        delay_ms, kept_ms = self._delay_ms, self.delayed.retention.ms
        if 0 <= kept_ms <= delay_ms:
            return (
                f"messages wait {delay_ms / 1000:g} s, and their topic keeps them {kept_ms / 1000:g} s only:"
                " raise its retention.ms above the delay"
            )
        return self.delayed.risk()

    # -- out of turn -----------------------------------------------------------------------------

    def remove_waiting(self, offset: int) -> Delivery | None:
        """Takes the message out of whatever it waits in (rule 4); None when it waits in nothing."""
        waiting = self.waiting.pop(offset, None)
        if waiting is not None:
            waiting[0].cancel()
            self._intake.hold(-size_of(waiting[1].record))
            return waiting[1]
        for delivery in self._again:
            if delivery.record.offset == offset:
                self._again.remove(delivery)
                return delivery
        record = self.delayed.remove(offset) or _taken(self._freed, offset)
        if record is None:
            record = _taken(self._intake.ready, offset)
            if record is None and self._lanes is not None:
                record = self._lanes.withdraw(lambda waiting: waiting.offset == offset)
                if record is not None:
                    self._intake.hold(-size_of(record))
            if record is not None and self._lanes is not None:
                self._out_of_turn.add(offset)
        return None if record is None else self._delivery(record)

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


def _taken(records: deque[Record], offset: int) -> Record | None:
    """The record at `offset`, out of `records`."""
    for index, record in enumerate(records):
        if record.offset == offset:
            del records[index]
            return record
    return None
