"""A partition's messages that are not due yet by their own header: they wait in memory, or are copied away.

    add ──▶ waits in memory ──▶ due: shown again
                └── in the way ──▶ copied to the topic of delayed messages
                (`app.dispatch.model.delayed_delivery`)

Rules (tests/dispatch/pump/test_delayed_messages.py)
1. A message that is due within seconds waits in memory. With an order to keep, every message waits, because
   later messages of its key come after it.
2. Any other message is copied away at once if it is due in `FAR_MS` or more, or after half of its retention
   time. The next owner reads unfinished messages again, so the topic must still keep them. For a topic that
   is cut by size that time is unknown, and only `FAR_MS` counts.
3. It is also copied away when waiting messages use more than `POSTPONED_BYTES`, or when one of them is the
   base of a nearly full tracker, or while waiting messages stop the decoding.
4. Behind a base that must stay, the tracker's window widens by what is finished in it, at a byte an offset.
   The unfinished messages in it stay within the defined capacity.

A message that is due too soon for a copy is not examined again, because its due time only comes nearer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from app.dispatch.model.delayed_delivery import FAR_MS, LEVELS_MS, DueQueue
from app.dispatch.pump.delivery import PostponedMessage
from app.kafka.fetch.deliveries import TopicRetention
from app.kafka.records.record import size_of
from app.kernel.clock import iso, now_ms
from app.kernel.troubles import TroubleSource

if TYPE_CHECKING:
    from app.dispatch.model.retry_headers import MessageOrigin
    from app.dispatch.pump.delivery import DeliveryPump
    from app.dispatch.pump.intake import MessageIntake
    from app.kafka.records.record import Record

SOON_MS = LEVELS_MS[0]
FULL_SHARE = 0.9  # of the tracker; the same as for a blocked head of line (`app.dispatch.model.head_of_line`)
POSTPONED_BYTES = 16 * 1024 * 1024
COPIES_AT_ONCE = 256
MAX_WIDENED_OFFSETS = 1_000_000  # in a widened window
COPY_RETRY_MS = 30_000  # after the topic took no copies
# Nothing else reports the end of a pause, or a changed capacity.
DELAY_POLL_INTERVAL_MS = 1_000
ORDER = "the workload's order keeps it in place"


class DelayedMessage(NamedTuple):
    record: Record
    due_ms: int


class DelayedMessages:
    """The waiting messages of one pump; `ordered`: the workload keeps an order (rule 1).

    `origin` returns where a message was first produced. `wake` has `pop_due` called at a time in ms since
    1970. `on_room` is called when the pump may read more.
    """

    def __init__(
        self,
        pump: DeliveryPump,
        intake: MessageIntake,
        *,
        ordered: bool,
        origin: Callable[[Record], MessageOrigin],
        wake: Callable[[int], None],
        on_room: Callable[[], None],
    ) -> None:
        self.retention = TopicRetention()
        self._retention_ms = -1  # by which `_copy_at_once` was chosen
        self._pump = pump
        self._intake = intake
        self._ordered = ordered
        self._origin = origin
        self._wake = wake
        self._on_room = on_room
        self._due: DueQueue[DelayedMessage] = DueQueue()
        self._bytes = 0
        self._copy_at_once: dict[int, None] = {}  # to copy at once (rule 2), in order
        self._movable: dict[int, int] = {}  # offset -> due time of messages that may leave
        self._unmovable: dict[int, str] = {}  # offset -> why no topic takes the message
        self._is_copying = False
        self._copy_pause = 0, ""  # no copies until then (ms), and why

    def __len__(self) -> int:
        return len(self._due)

    @property
    def has_work(self) -> bool:
        """Something waits, or a widened window is to be restored."""
        return bool(self._bytes or self._pump.tracker.extra)

    @property
    def next_due_ms(self) -> int | None:
        return self._due.next_due_ms

    # -- in and out ------------------------------------------------------------------------------

    def add(self, due_ms: int, record: Record) -> None:
        """Keeps the message until `due_ms`, here or in the topic of delayed messages."""
        present_ms = now_ms()
        if not self._ordered and due_ms - present_ms >= SOON_MS:
            self._may_leave(due_ms, record, present_ms)
        self._keep(due_ms, record)
        self.make_way()

    def _may_leave(self, due_ms: int, record: Record, present_ms: int) -> None:
        self._movable[record.offset] = due_ms
        if due_ms >= self._safe_until_ms(record, present_ms):
            self._copy_at_once[record.offset] = None

    def _keep(self, due_ms: int, record: Record) -> None:
        self._due.push(due_ms, record.offset, DelayedMessage(record, due_ms))
        self._bytes += (size := size_of(record))
        self._intake.hold(size)
        self._wake(min(due_ms, now_ms() + DELAY_POLL_INTERVAL_MS))

    def pop_due(self) -> list[Record]:
        """The messages that are due now, the earliest first; `wake` gets the time of the next call."""
        present_ms = now_ms()
        due = [waiting.record for _, waiting in self._due.pop_due(present_ms) if waiting]
        self._forget(due)
        if self.next_due_ms is not None:
            self._wake(min(self.next_due_ms, present_ms + DELAY_POLL_INTERVAL_MS))
        return due

    def remove(self, offset: int) -> Record | None:
        """Takes a message out, due or not; None: it does not wait here."""
        waiting = self._due.remove(offset)
        if waiting is None:
            return None
        self._forget([waiting.record])
        self.make_way()
        return waiting.record

    def _forget(self, records: Iterable[Record]) -> None:
        for record in records:
            size, offset = size_of(record), record.offset
            self._bytes -= size
            self._intake.hold(-size)
            self._copy_at_once.pop(offset, None)
            self._movable.pop(offset, None)
            self._unmovable.pop(offset, None)

    # -- making way ------------------------------------------------------------------------------

    def make_way(self) -> None:
        """Applies rules 2 to 4, and sets the pump's trouble while a message holds up the partition."""
        pump = self._pump
        if self.retention.ms != self._retention_ms:
            self._check_retention()
        if pump.tracker.extra and pump.tracker.base not in self._due:
            pump.tracker.extra = 0
        trouble = ""
        if self._due and not (pump.paused or pump.closed or pump.draining):
            present_ms = now_ms()
            is_in_the_way, may_copy = self._is_in_the_way(), present_ms >= self._copy_pause[0]
            if (
                may_copy
                and not self._is_copying
                and (to_copy := self._next_to_copy(present_ms, is_in_the_way))
            ):
                self._copy_away(to_copy)
            can_move = may_copy and pump.tracker.base in self._movable
            if is_in_the_way and not self._is_copying and not can_move:
                trouble = self._read_past_base(present_ms)
        pump.troubles.show(TroubleSource.POSTPONED, trouble)

    def _is_in_the_way(self) -> bool:
        """The base waits here, and there is little or no room to read past it."""
        tracker = self._pump.tracker
        return tracker.base in self._due and (
            tracker.room <= (1 - FULL_SHARE) * tracker.capacity or self._intake.is_held_up
        )

    def _next_to_copy(self, present_ms: int, is_in_the_way: bool) -> list[int]:
        if self._copy_at_once:
            return list(islice(self._copy_at_once, COPIES_AT_ONCE))
        if not (is_in_the_way or self._bytes > POSTPONED_BYTES):
            return []
        to_copy: list[int] = []
        due_soon: list[int] = []
        for offset, due_ms in self._movable.items():
            (due_soon if due_ms - present_ms < SOON_MS else to_copy).append(offset)
            if len(to_copy) == COPIES_AT_ONCE:
                break
        for offset in due_soon:
            del self._movable[offset]
        return to_copy

    def _copy_away(self, offsets: Sequence[int]) -> None:
        pump = self._pump
        to_copy: list[PostponedMessage] = []
        for offset in offsets:
            waiting = self._due.remove(offset)
            assert waiting is not None
            self._forget([waiting.record])
            to_copy.append(PostponedMessage(waiting.record, self._origin(waiting.record), waiting.due_ms))
        self._is_copying = True
        pump.runtime.postpone(pump, to_copy, self._on_moved, self._on_stay, self._on_copied)

    def _on_moved(self, records: Sequence[Record]) -> None:
        for record in records:
            self._pump.tracker.nack(record.offset)
        self._on_room()

    def _on_stay(self, messages: Sequence[PostponedMessage], why: str, for_now: bool) -> None:
        """Keeps messages that are due too soon for a copy, or that no topic takes for the reason given."""
        if self._pump.draining:
            return  # the next owner delivers them
        present_ms = now_ms()
        if for_now:
            self._copy_pause = present_ms + COPY_RETRY_MS, why
        for record, _, due_ms in messages:
            if for_now:
                self._may_leave(due_ms, record, present_ms)
            elif why:
                self._unmovable[record.offset] = why
            self._keep(due_ms, record)

    def _on_copied(self) -> None:
        self._is_copying = False
        self.make_way()

    def _read_past_base(self, present_ms: int) -> str:
        """Widens the window (rule 4), or returns the trouble that the base causes; "" if it is due soon."""
        if self._widen():
            return ""
        base = self._pump.tracker.base
        due_ms = self._due[base].due_ms
        if due_ms - present_ms < SOON_MS:
            return ""
        refusal = self._copy_pause[1] if base in self._movable else "it was due too soon for a copy"
        why = ORDER if self._ordered else self._unmovable.get(base, refusal)
        fills = "memory" if self._intake.is_held_up else "the tracker"
        remedy = "skip it" if self._intake.is_held_up else "skip it, or raise tracker.capacity"
        return (
            f"postponed: the message at {base} is not due before {iso(due_ms)} and fills {fills}"
            f" meanwhile: {why}; {remedy}"
        )

    def _widen(self) -> bool:
        """Whether more may be read behind a base that must stay."""
        tracker = self._pump.tracker
        wider = min(MAX_WIDENED_OFFSETS, tracker.tracked - tracker.unfinished + tracker.capacity)
        if tracker.unfinished >= FULL_SHARE * tracker.capacity or wider <= tracker.limit:
            return False
        tracker.extra = wider - tracker.capacity
        asyncio.get_running_loop().call_soon(self._on_room)
        return not self._intake.is_held_up

    # -- retention -------------------------------------------------------------------------------

    def _check_retention(self) -> None:
        self._retention_ms, present_ms = self.retention.ms, now_ms()
        for offset, due_ms in self._movable.items():
            if due_ms >= self._safe_until_ms(self._due[offset].record, present_ms):
                self._copy_at_once[offset] = None

    def _safe_until_ms(self, record: Record, present_ms: int) -> int:
        """Until when the message may wait here (rule 2)."""
        far_ms = present_ms + FAR_MS
        if self.retention.ms < 0:
            return far_ms
        return min(far_ms, _written_ms(record, present_ms) + self.retention.ms // 2)

    def risk(self) -> str:
        """Why retention may delete the base before it is due; "": it cannot."""
        base = self._pump.tracker.base
        if self.retention.ms < 0 or base not in self._due:
            return ""
        record, due_ms = self._due[base]
        kept_until_ms = _written_ms(record, now_ms()) + self.retention.ms
        if due_ms <= kept_until_ms:
            return ""
        why = ORDER if self._ordered else self._unmovable.get(base, "it is on its way to another topic")
        return (
            f"the message at {base} is not due before {iso(due_ms)}, and its topic keeps it only until"
            f" {iso(kept_until_ms)}: {why}; raise the topic's retention.ms"
        )


def _written_ms(record: Record, present_ms: int) -> int:
    """When the record's retention began; a timestamp that is missing or in the future counts as now."""
    return min(record.timestamp, present_ms) if record.timestamp >= 0 else present_ms
