"""Messages of a partition that are not due yet by their own header: they wait here, or make way.

    add ──▶ waits in memory ──▶ due: shown again
                └── in the way ──▶ copied to the topic of delayed messages
                (`app.dispatch.model.delayed_delivery`)

Rules
1. What is due within seconds waits here in any case; so does, with an order to keep, everything: those of its
   key come after it.
2. All else leaves at once when it is due a day ahead or more, or not before half of the time is over that
   its topic keeps it: what is unfinished is read again by a next owner, and must still be there. Of a topic
   that is cut by size nobody knows how long that is.
3. It leaves as well when what waits here is many bytes, or holds the base of a tracker that is nearly full.
4. Behind a base that has to stay the tracker's window widens, by what is finished in it: that takes a byte
   each. What is unfinished there stays within the capacity as it is defined.

Each message is looked at once for leaving: what is due too soon only comes nearer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from app.dispatch.model.delayed_delivery import FAR_MS, LEVELS_MS, DueQueue
from app.dispatch.pump.retry_publisher import PostponedMessage
from app.kafka.fetch.deliveries import TopicRetention
from app.kafka.records.record import size_of
from app.kernel.clock import iso, now_ms

if TYPE_CHECKING:
    from app.dispatch.model.retry_headers import MessageOrigin
    from app.dispatch.pump.intake import MessageIntake
    from app.dispatch.pump.partition import DispatchPump
    from app.kafka.records.record import Record

SOON_MS = LEVELS_MS[0]
# of the tracker in use: as for a head that blocks the line (`app.dispatch.model.head_of_line`)
FULL_SHARE = 0.9
POSTPONED_BYTES = 16 * 1024 * 1024
COPIES_AT_ONCE = 256  # copied together
WIDEST = 1_000_000  # offsets of a window that was widened
COPY_AGAIN_MS = 30_000  # after the topic took no copies
# while something waits; nothing else tells of a pause that ends, or another capacity
DELAY_POLL_INTERVAL_MS = 1_000
STAYS = "postponed: "
ORDER = "the workload's order keeps it in its place"


class DelayedMessage(NamedTuple):
    """A message, and when it is due."""

    record: Record
    due_ms: int


class DelayedMessages:
    """See the module.

    `ordered`: with an order to keep. `origin` tells where a message first stood, `wake` is asked to have
    `pop_due` called at a time, `read_on` is told that more may be read.
    """

    def __init__(
        self,
        pump: DispatchPump,
        intake: MessageIntake,
        *,
        ordered: bool,
        origin: Callable[[Record], MessageOrigin],
        wake: Callable[[int], None],
        read_on: Callable[[], None],
    ) -> None:
        self.retention = TopicRetention()  # the topic's
        self._retention_ms = -1  # by which was decided so far
        self._pump = pump
        self._intake = intake
        self._ordered = ordered
        self._origin = origin
        self._wake = wake
        self._read_on = read_on
        self._due: DueQueue[DelayedMessage] = DueQueue()
        self._bytes = 0
        self._far: dict[int, None] = {}  # those that leave at once (rule 2), in order
        self._movable: dict[int, int] = {}  # those that may leave, in order, and when they are due
        self._unmovable: dict[int, str] = {}  # those that no topic takes, and why
        self._leaving = False  # some are being copied
        self._untaken = 0, ""  # the topic takes no copies: until when (ms) none is tried, and why
        self._narrow = self._wide = 0  # the tracker's capacity as it is defined, and widened

    def __len__(self) -> int:
        return len(self._due)

    @property
    def in_play(self) -> bool:
        """Something waits, or something is to be undone: `make_way` has something to look at."""
        return bool(self._bytes or self._wide)

    @property
    def next_due_ms(self) -> int | None:
        """When the first is due, None when nothing waits."""
        return self._due.next_due_ms

    @property
    def capacity(self) -> int:
        """The tracker's, as it is defined."""
        capacity = self._pump.tracker.capacity
        return self._narrow if self._wide and capacity == self._wide else capacity

    # -- in and out ------------------------------------------------------------------------------

    def add(self, due_ms: int, record: Record) -> None:
        """Waits for `due_ms`."""
        present_ms = now_ms()
        if not self._ordered and due_ms - present_ms >= SOON_MS:
            self._may_leave(due_ms, record, present_ms)
        self._keep(due_ms, record)
        self.make_way()

    def _may_leave(self, due_ms: int, record: Record, present_ms: int) -> None:
        self._movable[record.offset] = due_ms
        if due_ms >= self._safe_until_ms(record, present_ms):
            self._far[record.offset] = None

    def _keep(self, due_ms: int, record: Record) -> None:
        self._due.push(due_ms, record.offset, DelayedMessage(record, due_ms))
        self._bytes += (size := size_of(record))
        self._intake.hold(size)
        self._wake(min(due_ms, now_ms() + DELAY_POLL_INTERVAL_MS))

    def pop_due(self) -> list[Record]:
        """What is due now, the earliest first; more is to be asked for when `wake` was told."""
        present_ms = now_ms()
        due = [waiting.record for _, waiting in self._due.pop_due(present_ms) if waiting]
        self._left(due)
        if self.next_due_ms is not None:
            self._wake(min(self.next_due_ms, present_ms + DELAY_POLL_INTERVAL_MS))
        return due

    def remove(self, offset: int) -> Record | None:
        """Takes it out, due or not; None when it does not wait here."""
        waiting = self._due.remove(offset)
        if waiting is None:
            return None
        self._left([waiting.record])
        self.make_way()
        return waiting.record

    def _left(self, records: Iterable[Record]) -> None:
        """These do not wait here any more."""
        for record in records:
            size, offset = size_of(record), record.offset
            self._bytes -= size
            self._intake.hold(-size)
            self._far.pop(offset, None)
            self._movable.pop(offset, None)
            self._unmovable.pop(offset, None)

    # -- making way ------------------------------------------------------------------------------

    def make_way(self) -> None:
        """Rules 2 to 4."""
        pump = self._pump
        if self.retention.ms != self._retention_ms:
            self._check_retention()
        if self._wide and pump.tracker.base not in self._due:
            self._narrow_down()
        stays = ""
        if self._due and not (pump.paused or pump.closed or pump.draining):
            present_ms = now_ms()
            is_in_the_way, tries = self._is_in_the_way(), present_ms >= self._untaken[0]
            if tries and not self._leaving and (going := self._next_to_go(present_ms, is_in_the_way)):
                self._send_away(going)
            can_go = tries and pump.tracker.base in self._movable
            if is_in_the_way and not self._leaving and not can_go:
                stays = self._make_room(present_ms)
        if stays or pump.trouble.startswith(STAYS):
            pump.trouble = stays if not pump.trouble or pump.trouble.startswith(STAYS) else pump.trouble

    def _is_in_the_way(self) -> bool:
        """Something here is at the base, and little or nothing more is read."""
        tracker = self._pump.tracker
        return tracker.base in self._due and (
            tracker.room <= (1 - FULL_SHARE) * self.capacity or self._intake.is_held_up
        )

    def _next_to_go(self, present_ms: int, is_in_the_way: bool) -> list[int]:
        if self._far:
            return list(islice(self._far, COPIES_AT_ONCE))
        if not (is_in_the_way or self._bytes > POSTPONED_BYTES):
            return []
        going: list[int] = []
        soon: list[int] = []
        for offset, due_ms in self._movable.items():
            (soon if due_ms - present_ms < SOON_MS else going).append(offset)
            if len(going) == COPIES_AT_ONCE:
                break
        for offset in soon:
            del self._movable[offset]
        return going

    def _send_away(self, offsets: Sequence[int]) -> None:
        pump = self._pump
        going: list[PostponedMessage] = []
        for offset in offsets:
            waiting = self._due.remove(offset)
            assert waiting is not None
            self._left([waiting.record])
            going.append(PostponedMessage(waiting.record, self._origin(waiting.record), waiting.due_ms))
        self._leaving = True
        pump.runtime.retry_publisher.postpone(pump, going, self._moved, self._stay, self._all_left)

    def _moved(self, records: Sequence[Record]) -> None:
        """These wait elsewhere now, and are finished here."""
        for record in records:
            self._pump.tracker.nack(record.offset)
        self._read_on()

    def _stay(self, messages: Sequence[PostponedMessage], why: str, for_now: bool) -> None:
        """These have to wait here: they are due too soon, or cannot be copied for the reason given."""
        if self._pump.draining:
            return  # the next owner's
        present_ms = now_ms()
        if for_now:
            self._untaken = present_ms + COPY_AGAIN_MS, why
        for record, _, due_ms in messages:
            if for_now:
                self._may_leave(due_ms, record, present_ms)
            elif why:
                self._unmovable[record.offset] = why
            self._keep(due_ms, record)

    def _all_left(self) -> None:
        self._leaving = False
        self.make_way()

    def _make_room(self, present_ms: int) -> str:
        """Has more read behind a base that has to stay (rule 4); else says what it stops, when that lasts."""
        if self._widen():
            return ""
        base = self._pump.tracker.base
        due_ms = self._due[base].due_ms
        if due_ms - present_ms < SOON_MS:
            return ""
        untaken = self._untaken[1] if base in self._movable else "it was due soon"
        why = ORDER if self._ordered else self._unmovable.get(base, untaken)
        fills = "memory" if self._intake.is_held_up else "the tracker"
        remedy = "skip it" if self._intake.is_held_up else "skip it, or raise tracker.capacity"
        return (
            f"{STAYS}the message at {base} is not to come before {iso(due_ms)} and fills {fills}"
            f" meanwhile: {why}; {remedy}"
        )

    def _widen(self) -> bool:
        """Whether more may be read behind a base that has to stay."""
        tracker = self._pump.tracker
        if tracker.capacity != self._wide:  # as it was defined, perhaps anew
            self._narrow = tracker.capacity
        wider = min(WIDEST, tracker.tracked - tracker.unfinished + self._narrow)
        if tracker.unfinished >= FULL_SHARE * self._narrow or wider <= tracker.capacity:
            return False
        tracker.capacity = self._wide = wider
        asyncio.get_running_loop().call_soon(self._read_on)
        return not self._intake.is_held_up

    def _narrow_down(self) -> None:
        self._pump.tracker.capacity = self.capacity
        self._wide = 0

    # -- retention -------------------------------------------------------------------------------

    def _check_retention(self) -> None:
        """What was to wait here may not any more."""
        self._retention_ms, present_ms = self.retention.ms, now_ms()
        for offset, due_ms in self._movable.items():
            if due_ms >= self._safe_until_ms(self._due[offset].record, present_ms):
                self._far[offset] = None

    def _safe_until_ms(self, record: Record, present_ms: int) -> int:
        """Rule 2: until when it may wait here."""
        far_ms = present_ms + FAR_MS
        if self.retention.ms < 0:
            return far_ms
        return min(far_ms, _written_ms(record, present_ms) + self.retention.ms // 2)

    def risk(self) -> str:
        """What may be lost by waiting in its place, "" for nothing."""
        base = self._pump.tracker.base
        if self.retention.ms < 0 or base not in self._due:
            return ""
        record, due_ms = self._due[base]
        kept_until_ms = _written_ms(record, now_ms()) + self.retention.ms
        if due_ms <= kept_until_ms:
            return ""
        why = ORDER if self._ordered else self._unmovable.get(base, "it is on its way to another topic")
        return (
            f"the message at {base} is not to come before {iso(due_ms)}, and its topic keeps it until"
            f" {iso(kept_until_ms)} only: {why}; raise the topic's retention.ms"
        )


def _written_ms(record: Record, present_ms: int) -> int:
    """When its topic's retention began: a time to come, or none, counts as now."""
    return min(record.timestamp, present_ms) if record.timestamp >= 0 else present_ms
