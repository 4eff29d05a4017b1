"""Which message of a partition is sent next: what is ready, and what waits for its time or its turn.

    intake.ready ──▶ the partition's delay ──▶ behind its key ──▶ its own `not-before` ──▶ next
                                                  ▲                                         │
                                                  └── freed ◀── finished ◀──────────────────┤
                                                                again ◀── a backoff ◀───────┘

Rules (tests/dispatch/pump/test_ready_queue.py)
1. In a retry tier each record waits until the tier's delay has passed since its append. The workload's own
   delay works alike. Only the first record is examined: in a tier records lie in order of time, and with the
   workload's own delay a record may wait for an earlier one with a later timestamp. A record whose timestamp
   is in the future counts as appended when it was first seen in the log
   (`app.dispatch.model.delayed_delivery.Arrivals`).
2. With an order, a message is shown only when the earlier ones of its key (or partition) are finished.
3. Messages that are delivered again go first.
4. A message that is ended out of turn leaves the queue in which it waits. The messages behind it keep their
   order, and its end releases none of them, because the message before it is still unfinished.
5. A message that is due far in the future does not hold up its partition
   (`app.dispatch.pump.delayed_messages`).

Everything here is unfinished in the tracker, whose capacity bounds its number. The bytes of messages that
wait for their time or turn are bounded too (`app.dispatch.pump.intake`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import structlog

from app.dispatch.model.delayed_delivery import LEVELS_MS, not_before_ms
from app.dispatch.model.retry_headers import read_origin
from app.dispatch.pump.delayed_messages import DELAY_POLL_INTERVAL_MS, DelayedMessages
from app.dispatch.pump.delivery import Delivery
from app.kafka.records.record import size_of
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject

if TYPE_CHECKING:
    from app.dispatch.model.key_lanes import KeyLanes
    from app.dispatch.pump.delivery import DeliveryPump
    from app.dispatch.pump.intake import MessageIntake
    from app.kafka.records.record import Record

log = structlog.get_logger(__name__)
_offset = attrgetter("offset")


class ReadyQueue:
    """The messages of one pump; calls `on_sendable` when one may be sent that could not before."""

    def __init__(
        self,
        pump: DeliveryPump,
        intake: MessageIntake,
        lanes: KeyLanes[Record] | None,
        on_sendable: Callable[[], None],
    ) -> None:
        self.waiting: dict[int, tuple[asyncio.TimerHandle, Delivery]] = {}  # for their next attempt
        self._pump = pump
        self._intake = intake
        self._lanes = lanes
        self._on_sendable = on_sendable
        self._redeliveries: deque[Delivery] = deque()
        self._freed: deque[Record] = deque()  # their turn has come, or they were taken back unsent
        self._out_of_turn: set[int] = set()  # taken before their turn, and not finished (rule 4)
        self._level_ms = 0
        if pump.job.topic == pump.runtime.settings.delayed_topic:
            self._level_ms = LEVELS_MS[min(pump.job.partition, len(LEVELS_MS) - 1)]
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self.delayed = DelayedMessages(
            pump, intake, ordered=lanes is not None, wake=self._wake_at, on_room=self._on_room,
            origin=lambda record: self._delivery(record).message_origin(),
        )  # fmt: skip

    @property
    def has_messages(self) -> bool:
        return bool(self._redeliveries or self._freed or self._intake.ready)

    # -- the next --------------------------------------------------------------------------------

    def next_delivery(self) -> Delivery | None:
        if self._redeliveries:
            return self._redeliveries.popleft()
        ready = self._intake.ready
        while self._freed or (ready and self._is_due(ready[0])):
            record = self._freed.popleft() if self._freed else self._in_lane(ready.popleft())
            if record is not None and not self._is_postponed(record):
                return self._delivery(record)
        return None

    def next_records(self, limit: int) -> list[Record]:
        """At most `limit` messages that may travel together; empty: `next_delivery` has the next one."""
        if self._redeliveries or self._delay_ms:
            return []
        intake, freed = self._intake, self._freed
        ready = intake.ready
        if len(ready) < limit:
            intake.refill(limit)
        records = [freed.popleft() for _ in range(min(limit, len(freed)))]
        fresh = [ready.popleft() for _ in range(min(limit - len(records), len(ready)))]
        if self._lanes is not None:
            turns = self._lanes.offer_many((record.key, record) for record in fresh)
            if len(turns) < len(fresh):
                intake.hold(sum(map(size_of, fresh)) - sum(map(size_of, turns)))
            fresh = turns
        if records:
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
            keeps_tier=bool(self._level_ms),
        )
        return Delivery(pump, record, origin)

    def put_back(self, delivery: Delivery) -> None:
        self._redeliveries.append(delivery)

    def put_back_unsent(self, records: Sequence[Record]) -> None:
        self._freed += records

    # -- its turn --------------------------------------------------------------------------------

    def _in_lane(self, record: Record) -> Record | None:
        if self._lanes is None or self._lanes.offer(record.key, record) is not None:
            return record
        self._intake.hold(size_of(record))
        return None

    def finished(self, records: Sequence[Record]) -> None:
        """Releases the messages that waited behind these."""
        if self.delayed.has_work:
            self.delayed.make_way()
        if self._lanes is None:
            return
        if self._out_of_turn:
            out_of_turn = self._out_of_turn.intersection(record.offset for record in records)
            self._out_of_turn -= out_of_turn
            records = [record for record in records if record.offset not in out_of_turn]
        freed = self._lanes.finished_many(record.key for record in records)
        if freed:
            self._intake.hold(-sum(map(size_of, freed)))
            self._freed += freed
            self._on_sendable()

    # -- its time --------------------------------------------------------------------------------

    def later(self, delivery: Delivery, delay_s: float) -> None:
        offset = delivery.record.offset
        handle = asyncio.get_running_loop().call_later(delay_s, self._show_again, offset)
        self.waiting[offset] = (handle, delivery)
        self._intake.hold(size_of(delivery.record))

    def _show_again(self, offset: int) -> None:
        _, delivery = self.waiting.pop(offset)
        self._intake.hold(-size_of(delivery.record))
        self._redeliveries.append(delivery)
        self._on_sendable()

    @property
    def _delay_ms(self) -> int:
        return self._level_ms or self._pump.delay_ms

    def _due_ms(self, record: Record) -> int:
        return self._intake.arrivals.appended_ms(record.offset, record.timestamp) + self._delay_ms

    def _is_due(self, record: Record) -> bool:
        """Whether the partition's delay has passed (rule 1); else sets the timer."""
        if not self._delay_ms:
            return True
        due_ms = self._due_ms(record)
        if due_ms <= now_ms():
            return True
        self._wake_at(due_ms)
        return False

    def _is_postponed(self, record: Record) -> bool:
        """Whether the record's own header postpones it; then `delayed` shows it when it is due."""
        if not record.headers:
            return False
        present_ms = now_ms()
        heeded = self._pump.runtime.settings.heeds_not_before
        if not heeded and self._pump.is_main:
            return False  # the workload ignores the header, and only copies have a time of their own besides
        at_ms, problem = not_before_ms(record.headers, present_ms, heeded)
        if problem:
            log.warning("a not-before header is ignored", job=str(self._pump.job), problem=problem)
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
        # The wall clock may be set meanwhile (`app.kernel.clock`), so it is read again soon.
        wait_s = min(max(0, at_ms - now_ms()), DELAY_POLL_INTERVAL_MS) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._redeliveries += map(self._delivery, self.delayed.pop_due())
        self.delayed.make_way()
        self._on_sendable()

    def _on_room(self) -> None:
        self._pump.refill()
        self._on_sendable()

    # -- state -----------------------------------------------------------------------------------

    def status_fields(self) -> JsonObject:
        """How many messages wait for what: fields of `app.controllog.codec.JobStatus`."""
        ready, delay_ms = self._intake.ready, self._delay_ms
        dues = [self.delayed.next_due_ms]
        postponed, may_go = len(self.delayed), len(self._redeliveries) + len(self._freed)
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
        """Why retention may delete a message that waits here; "": it cannot."""
        delay_ms, kept_ms = self._delay_ms, self.delayed.retention.ms
        if 0 <= kept_ms <= delay_ms:
            return (
                f"messages wait {delay_ms / 1000:g} s, but their topic keeps them only {kept_ms / 1000:g} s:"
                " raise its retention.ms above the delay"
            )
        return self.delayed.risk()

    # -- out of turn -----------------------------------------------------------------------------

    def remove_waiting(self, offset: int) -> Delivery | None:
        """Takes the message out of the queue in which it waits (rule 4); None: it waits in none."""
        waiting = self.waiting.pop(offset, None)
        if waiting is not None:
            waiting[0].cancel()
            self._intake.hold(-size_of(waiting[1].record))
            return waiting[1]
        for delivery in self._redeliveries:
            if delivery.record.offset == offset:
                self._redeliveries.remove(delivery)
                return delivery
        record = self.delayed.remove(offset) or _remove_at(self._freed, offset)
        if record is None:
            record = _remove_at(self._intake.ready, offset)
            if record is None and self._lanes is not None:
                record = self._lanes.withdraw(lambda waiting: waiting.offset == offset)
                if record is not None:
                    self._intake.hold(-size_of(record))
            if record is not None and self._lanes is not None:
                self._out_of_turn.add(offset)
        return None if record is None else self._delivery(record)

    def close(self) -> None:
        self._intake.close()
        self._redeliveries.clear()
        self._freed.clear()
        for handle, _ in self.waiting.values():
            handle.cancel()
        self.waiting.clear()
        if self._timer is not None:
            self._timer.cancel()


def _remove_at(records: deque[Record], offset: int) -> Record | None:
    for index, record in enumerate(records):
        if record.offset == offset:
            del records[index]
            return record
    return None
