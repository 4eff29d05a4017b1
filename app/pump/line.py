"""Which message of a partition is next: what may be sent now, and what waits for its time or its turn.

    intake.ready ──▶ the partition's delay ──▶ behind its key ──▶ its own `not-before` ──▶ next
                                                  ▲                                         │
                                                  └── freed ◀── finished ◀──────────────────┤
                                                                again ◀── a backoff ◀───────┘

Rules
1. Retry tiers wait until each record's delay has passed since it was appended; records of a tier are
   in order of time, so that looking at the first is enough. So does the workload's own delay. A record whose
   timestamp lies ahead counts as appended when it was first seen in the log (`app.core.due.Arrivals`).
2. With an order, a message is shown only when those before it of the same key (or partition) are finished.
3. What is to be delivered again goes first.
4. What is taken out of turn leaves whatever it waits in; those behind it keep their order, and its end frees
   nobody: the one before it is still out.
5. What is due far ahead does not hold its partition: it is copied to where it waits at no cost
   (`app.core.due`), at once when it is due a day ahead or more, else once the tracker is nearly full behind
   it, or what is postponed is many bytes. What is due within seconds waits here in any case, and so does
   what has an order to keep: those of its key come after it. For the other keys the tracker's window widens,
   as what is finished there takes a byte each, but not what is unfinished.

Everything in here is unfinished in the tracker, whose capacity bounds it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import structlog

from app.clock import iso, now_ms
from app.core.due import FAR_MS, LEVELS_MS, DueQueue, not_before_ms
from app.core.retry_headers import read_origin
from app.pump.copies import Postponed
from app.pump.delivery import Delivery

if TYPE_CHECKING:
    from app.core.lanes import Lanes
    from app.core.record import Record
    from app.pump.dispatch import DispatchPump
    from app.pump.intake import Intake

log = structlog.get_logger(__name__)
_offset = attrgetter("offset")

SOON_MS = LEVELS_MS[0]
FULL_SHARE = 0.9  # of the tracker in use: as for a head that blocks the line (`app.core.head_of_line`)
POSTPONED_BYTES = 16 * 1024 * 1024
AT_ONCE = 256  # copied together
WIDEST = 1_000_000  # offsets of a window that was widened
LOOK_MS = 1_000  # while something is postponed; nothing else tells of a pause that ends, or another capacity
STAYS = "postponed: "


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
        self._out_of_turn: set[int] = set()  # taken before their turn, and not finished (rule 4)
        self._due: DueQueue[Record] = DueQueue()
        self._due_bytes = 0
        self._far: dict[int, None] = {}  # those of them that are to leave at once (rule 5), in order
        self._unmovable: dict[int, str] = {}  # those of them that no topic takes, and why
        self._leaving = False  # some are being copied
        self._narrow = self._wide = 0  # the tracker's capacity as it is defined, and widened
        self._level_ms = 0
        if pump.job.topic == pump.runtime.workload.delayed_topic():
            self._level_ms = LEVELS_MS[min(pump.job.partition, len(LEVELS_MS) - 1)]
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
        if self._again or self._delay_ms:
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
            keeps_tier=bool(self._level_ms),
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
        if self._due_bytes or self._wide:
            self._make_way()
        if self._lanes is None:
            return
        if self._out_of_turn:
            early = self._out_of_turn.intersection(record.offset for record in records)
            self._out_of_turn -= early
            records = [record for record in records if record.offset not in early]
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
        at_ms, problem = not_before_ms(record.headers, present_ms)
        if problem:
            log.warning("a header is not heeded", job=str(self._pump.job), problem=problem)
        if at_ms is None or at_ms <= present_ms:
            return False
        if self._lanes is None and at_ms - present_ms >= FAR_MS:
            self._far[record.offset] = None
        self._postpone(at_ms, record)
        self._make_way()
        return True

    def _postpone(self, at_ms: int, record: Record) -> None:
        self._due.push(at_ms, record.offset, record)
        self._due_bytes += _size(record)
        self._wake_at(min(at_ms, now_ms() + LOOK_MS))

    def _left_due(self, records: Iterable[Record]) -> None:
        """These are not in `_due` any more."""
        for record in records:
            self._due_bytes -= _size(record)
            self._far.pop(record.offset, None)
            self._unmovable.pop(record.offset, None)

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
        present_ms = now_ms()
        due = [record for _, record in self._due.pop_due(present_ms) if record]
        self._left_due(due)
        self._again += map(self._delivery, due)
        if self._due.next_due_ms is not None:
            self._wake_at(min(self._due.next_due_ms, present_ms + LOOK_MS))
        self._make_way()
        self._stirred()

    # -- making way ------------------------------------------------------------------------------

    def _make_way(self) -> None:
        """Rule 5."""
        pump = self._pump
        if pump.trouble.startswith(STAYS):
            pump.trouble = ""
        if self._wide and pump.tracker.base not in self._due:
            self._narrow_down()
        if not self._due or self._leaving or pump.paused or pump.closed or pump.draining:
            return
        present_ms = now_ms()
        going: list[Postponed] = []
        for offset in self._in_the_way(present_ms):
            at_ms = self._postponed_to_ms(offset)
            if at_ms - present_ms >= SOON_MS and offset not in self._unmovable:
                record = self._due.take(offset)
                assert record is not None
                self._left_due([record])
                going.append(Postponed(record, self._delivery(record).told_origin(), at_ms))
        if going:
            self._leaving = True
            pump.runtime.copier.postpone(pump, going, self._moved, self._stay, self._all_left)

    def _in_the_way(self, present_ms: int) -> list[int]:
        """What is postponed and should leave; tells of what should and cannot."""
        if self._far:
            return list(islice(self._far, AT_ONCE))
        tracker, due = self._pump.tracker, self._due
        head = tracker.base
        if self._lanes is None and self._due_bytes > POSTPONED_BYTES:
            return list(islice(due, AT_ONCE))
        if head not in due or tracker.capacity - tracker.room < tracker.capacity * FULL_SHARE:
            return []
        at_ms = self._postponed_to_ms(head)
        is_soon = at_ms - present_ms < SOON_MS
        why = (
            self._unmovable.get(head) if self._lanes is None else "the workload's order keeps it in its place"
        )
        if why is None:
            others = (offset for offset in islice(due, AT_ONCE) if offset != head)
            return [] if is_soon else [head, *others]
        if not self._widen() and not is_soon and not self._pump.trouble:
            self._pump.trouble = (
                f"{STAYS}the message at {head} is not to come before {iso(at_ms)} and fills the tracker"
                f" meanwhile: {why}; skip it, or raise tracker.capacity"
            )
        return []

    def _widen(self) -> bool:
        """Whether more may be read behind a head that has to stay."""
        tracker = self._pump.tracker
        if tracker.capacity != self._wide:  # as it was defined, perhaps anew
            self._narrow = tracker.capacity
        wider = min(WIDEST, tracker.capacity + self._narrow)
        if tracker.unfinished >= FULL_SHARE * self._narrow or wider <= tracker.capacity:
            return False
        tracker.capacity = self._wide = wider
        asyncio.get_running_loop().call_soon(self._read_on)
        return True

    def _narrow_down(self) -> None:
        tracker = self._pump.tracker
        if tracker.capacity == self._wide:
            tracker.capacity = self._narrow
        self._wide = 0

    def _read_on(self) -> None:
        self._pump.refill()
        self._stirred()

    def _postponed_to_ms(self, offset: int) -> int:
        return not_before_ms(self._due[offset].headers, now_ms())[0] or 0

    def _moved(self, records: Sequence[Record]) -> None:
        """These wait elsewhere now, and are finished here."""
        for record in records:
            self._pump.tracker.nack(record.offset)
        self._read_on()

    def _stay(self, messages: Sequence[Postponed], why: str) -> None:
        """These have to wait here: they are due too soon, or cannot be copied for the reason given."""
        if self._pump.draining:
            return  # the next owner's
        for record, _, due_ms in messages:
            if why:
                self._unmovable[record.offset] = why
            self._postpone(due_ms, record)

    def _all_left(self) -> None:
        self._leaving = False
        self._make_way()

    # -- state -----------------------------------------------------------------------------------

    def waits(self) -> dict[str, Any]:
        """What is in here waits for what: fields of `app.wire.JobStatus`."""
        ready, delay_ms = self._intake.ready, self._delay_ms
        dues = [self._due.next_due_ms]
        postponed, may_go = len(self._due), len(self._again) + len(self._freed)
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

    # -- out of turn -----------------------------------------------------------------------------

    def take(self, offset: int) -> Delivery | None:
        """Takes the message out of whatever it waits in (rule 4); None when it waits in nothing."""
        waiting = self.waiting.pop(offset, None)
        if waiting is not None:
            waiting[0].cancel()
            return waiting[1]
        for delivery in self._again:
            if delivery.record.offset == offset:
                self._again.remove(delivery)
                return delivery
        record = self._due.take(offset)
        if record is not None:
            self._left_due([record])
        else:
            record = _taken(self._freed, offset)
        if record is None:
            record = _taken(self._intake.ready, offset)
            if record is None and self._lanes is not None:
                record = self._lanes.withdraw(lambda waiting: waiting.offset == offset)
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


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + 1


def _taken(records: deque[Record], offset: int) -> Record | None:
    """The record at `offset`, out of `records`."""
    for index, record in enumerate(records):
        if record.offset == offset:
            del records[index]
            return record
    return None
