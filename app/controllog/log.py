"""A worker's copy of the control log (`ControlState`), and the way to append to it.

`view` is the state that has been read so far; listeners are called after each batch, except while the log is
read again. `append` returns when its events are in the log *and* have been read back, so a caller sees its
own write.

Compaction may overtake a reader. The reader has read a definition and is then suspended; the next record
that it finds replaces a definition that compaction dropped, and the fold would refuse it
(`app.controllog.state`, rules 6 and 13). A reader that begins after the compaction has no such problem
(rule 10). So:
1. A reader that has caught up and then misses offsets reads the log again from its start, beside the view.
   The new state replaces the view once it has read as far.
2. A reader that is still catching up, and refuses a definition after missing offsets, begins again once.
   After that the definition counts as refused: to be overtaken twice, the log would have to be compacted
   twice during one reading.

Once seals have begun (`app.controllog.seals`), no reader here gets a record without one. Compaction still
keeps such a record, and drops the valid one of its key. So:
3. The log remembers what counted last under each key. The leader writes it again where a record without a
   seal follows (`app.placement.repairs`).
4. A reader that has read such a record, before it knew that seals begin, reads the log again, as in rule 1 or
   2.

`tests/controllog/test_log.py` holds these rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog
from mode import Service

from app.controllog import codec
from app.controllog.alert_state import AlertState
from app.controllog.events import (
    AnyControlEvent,
    AnyDefinitionEvent,
    Assignment,
    Claim,
    DefinitionDeleted,
    DefinitionPut,
    LimitShares,
    RegionPulse,
    StartRecorded,
    compaction_key,
    for_people,
    is_activity,
)
from app.controllog.seals import Seals
from app.controllog.state import ControlState
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import LATEST, ClusterClient, ClusterUnreachable
from app.kafka.client.topic_tail import TopicTail
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.fetch.bounded_consumer import was_passed_over
from app.kafka.records.record import PlacedRecord, Record
from app.kernel.json_types import JsonObject

log = structlog.get_logger(__name__)

READ_BACK_S = 10.0
Repairable = Assignment | LimitShares | AnyDefinitionEvent
KEEP_RECENT = 1000
EVENTS_DROPPED_AT_ONCE = 100
MAX_KEY_CHARS = 200  # of an event's key in messages
MAX_KEY_BYTES = 4_000  # longer keys are no worker's
KEYS_REMEMBERED = 1_000  # of records without a seal, before keys without an event are dropped


class ControlLog(Service):
    """Follows the control topic into `view`. `worker`: this process's id, if it may lead."""

    def __init__(self, topic: str, kafka_options: ClientOptions, seals: Seals | None = None) -> None:
        super().__init__()
        self.topic = topic
        self.worker = ""
        self.view = ControlState()
        self._refused: dict[str, Repairable] = {}
        self._jump = ""  # the last event with an impossible term or epoch
        self.refused_alerts: set[str] = set()  # ids: `app.alerts.delivery.monitor` writes these again
        self._rewound: ControlState | None = None  # the log read again from its start, to replace the view
        self._reread_to = -1  # once it has read this offset
        self._misses = self._began_again = False  # both while catching up
        self.recent: deque[JsonObject] = deque(maxlen=KEEP_RECENT)  # for the activity page
        self._tail = TopicTail(
            topic, kafka_options, self._on_records,
            from_start=True, is_first=True, on_position=self._on_position,
        )  # fmt: skip
        self._producer = ReplaceableProducer("the control log", kafka_options, seal=seals)
        self._last: dict[str, tuple[int, AnyControlEvent]] = {}  # key -> offset and event that counted last
        self._covered: dict[str, int] = {}  # key -> the offset of a record without a seal
        self._unsealed_to = 0  # next offset after the last record read without a seal
        self._seals = seals
        if seals is not None:
            seals.on_refused(topic, self._cover)
            seals.on_begin(self._read_again_if_unsealed)
        self._listeners: list[Callable[[], None]] = []
        self._unreadable = UnreadableRecords("records of the control log are no events")

    async def on_start(self) -> None:
        await self._producer.start_patiently()
        await self.add_runtime_dependency(self._tail)
        await self._tail.caught_up.wait()

    async def on_stop(self) -> None:
        await self._producer.stop()

    @property
    def caught_up(self) -> bool:
        """Whether everything that was in the log at the start has been read."""
        return self._tail.caught_up.is_set()

    async def read_to_end(self, client: ClusterClient, timeout_s: float) -> None:
        """Returns once everything that is in the log now has been read; `client` is of its cluster.

        Raises:
            ClusterUnreachable, KafkaError: The log's end offset is not known.
            TimeoutError: The records were not read within `timeout_s`.
        """
        at = (self.topic, 0)
        async with asyncio.timeout(timeout_s):
            end = (await client.offsets([at], LATEST)).get(at)
            if end is None:
                raise ClusterUnreachable(f"the broker that leads {self.topic} does not give its end offset")
            await self._tail.wait_for(end - 1, timeout_s)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every batch of events."""
        self._listeners.append(listener)

    async def up_to(self, offset: int) -> ControlState:
        """The view, once the record at `offset` has been read, however long that takes."""
        while True:
            with contextlib.suppress(TimeoutError):
                await self._tail.wait_for(offset, READ_BACK_S)
                return self.view

    def _on_records(self, records: Sequence[PlacedRecord]) -> None:
        for record in records:
            state = self.view if self._rewound is None else self._rewound
            if 0 < state.next_offset < record.offset and self._is_overtaken(state.next_offset, record.offset):
                return
            state.next_offset = record.offset + 1
            if not self._fold(state, record):
                return
            self._end_rewinding(record.offset + 1)
        if self._rewound is None:
            self._call_listeners()

    def _on_position(self, next_offset: int) -> None:
        """Moves past offsets without a readable record: refused, or compacted."""
        if self._end_rewinding(next_offset):
            self._call_listeners()
        if len(self._covered) > KEYS_REMEMBERED + len(self._last):
            self._covered = {one: at for one, at in self._covered.items() if one in self._last}

    def _end_rewinding(self, next_offset: int) -> bool:
        """Replaces the view once the second reading is as far; returns whether it did."""
        if self._rewound is None or next_offset <= max(self._reread_to, self._tail.end - 1):
            return False
        self.view, self._rewound = self._rewound, None
        return True

    def _call_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    def _is_overtaken(self, start: int, offset: int) -> bool:
        """Whether rule 1 applies: the offsets from `start` to `offset` are missing."""
        if was_passed_over(self.topic, 0, start, offset):
            return False
        if not self.caught_up:
            self._misses = True
        elif self._rewound is None:
            log.warning(
                "compaction has overtaken the reader of the control log; the worker reads the log again",
                to=offset,
            )
            self._read_again(offset)
            return True
        return False

    def _read_again(self, to: int) -> None:
        """Reads the log again from its start, beside the view."""
        self._rewound, self._reread_to = ControlState(), to
        self._refused.clear()
        self.refused_alerts.clear()
        self._restart_tail()

    def _read_again_if_unsealed(self) -> None:
        """Rule 4: the log is read again when a record without a seal was read."""
        assert self._seals is not None, "only seals call this"
        if self._unsealed_to <= self._seals.begins[self.topic, 0]:
            return
        log.warning("the worker reads the control log again, without the records that have no seal")
        if self.caught_up:
            self._read_again(self.view.next_offset - 1)
        else:
            self._begin_again()

    def _begin_again(self) -> None:
        """Reads the log again from its start, before it was caught up."""
        self.view = ControlState()
        self._restart_tail()

    def _restart_tail(self) -> None:
        self._last.clear()
        self._covered.clear()
        self._tail.rewind()

    def _cover(self, key: bytes | None, offset: int) -> None:
        """Rule 3: notes a record without a seal under `key`. Calls from Faust's reading thread repeat it,
        and are ignored."""
        if not key or len(key) > MAX_KEY_BYTES or threading.current_thread() is not threading.main_thread():
            return
        name = key.decode("utf-8", "replace")
        self._covered[name] = max(offset, self._covered.get(name, -1))

    def _fold(self, state: ControlState, record: Record) -> bool:
        """Takes a record in. Returns False when the log is read from its start again (rule 2)."""
        seals = self._seals
        if seals is not None and not (seals.has_begun(self.topic) or seals.is_sealed(self.topic, record)):
            self._unsealed_to = record.offset + 1
        if record.value is None:  # a tombstone
            key = (record.key or b"").decode("utf-8", "replace")
            state.dropped(key)
            self._last.pop(key, None)
            return True
        try:
            event = codec.control_event(record.value)
        except codec.BadEvent as error:
            self._unreadable.add_for_later(record.offset, error)
            return True
        counted = state.apply(event)
        if self.caught_up and state.is_jump(event):
            self._jump = f"{compaction_key(event)[:MAX_KEY_CHARS]} at offset {record.offset}"
        if counted:
            self._last[compaction_key(event)] = record.offset, event
        if isinstance(event, StartRecorded | RegionPulse):
            return True  # bookkeeping: large, or frequent
        if counted:
            self._refused.pop(compaction_key(event), None)  # compaction keeps this event
        elif self.caught_up:
            if self._rewound is None or record.offset >= self._reread_to:
                self._refuse(event)
        elif self._misses and not self._began_again and isinstance(event, DefinitionPut | DefinitionDeleted):
            self._began_again = True
            self._begin_again()
            return False
        if not is_activity(event):
            return True
        if not self.recent or record.offset > self.recent[-1]["offset"]:
            fields = msgspec.to_builtins(for_people(event))
            self.recent.append({"offset": record.offset, "counted": counted, **fields})
        return True

    def take_jump(self) -> str:
        """The last event refused for an impossible term or epoch since the last call; "": none."""
        jump, self._jump = self._jump, ""
        return jump

    def _refuse(self, event: AnyControlEvent) -> None:
        match event:
            case DefinitionPut() | DefinitionDeleted() if isinstance(event, DefinitionPut) or (
                event.expected is not None
            ):
                self._refused[compaction_key(event)] = event  # at most one for each key
            case AlertState():
                self.refused_alerts.add(event.id)
            case Assignment() if event.job in self.view.assignments:
                self._refused[compaction_key(event)] = event
            case LimitShares() if event.key in self.view.limits:
                self._refused[compaction_key(event)] = event

    def take_refused(self) -> list[Repairable]:
        """The last refused event of each key since the last call. The leader repairs what they overwrote
        (rule 5 of the fold)."""
        refused, self._refused = self._refused, {}
        return list(refused.values())

    def take_erased(self) -> list[AnyControlEvent]:
        """The last valid event of each key that a record without a seal has taken since the last call
        (rule 3).

        Empty while the log is read again, because the state is old then. `refused_alerts` has the alerts
        among them.
        """
        if self._rewound is not None:
            return []
        read = {key: at for key, at in self._covered.items() if at < self._tail.next_offset}
        self._covered = {key: at for key, at in self._covered.items() if key not in read}
        last = ((self._last.get(key), offset) for key, offset in read.items())
        erased = [found[1] for found, offset in last if found is not None and found[0] < offset]
        terms = {event.term for event in erased if isinstance(event, Claim)}
        self.refused_alerts |= {event.id for event in erased if isinstance(event, AlertState)}
        self.refused_alerts |= {
            name for name, state in self.view.alert_states.states.items() if state.term in terms
        }
        return erased

    def erase_again(self, erased: Iterable[AnyControlEvent]) -> None:
        """Returns events of `take_erased` that could not be repaired."""
        for event in erased:
            self._covered.setdefault(compaction_key(event), self._tail.next_offset - 1)

    def refuse_again(self, refused: Iterable[Repairable]) -> None:
        """Returns events of `take_refused` that could not be repaired."""
        for event in refused:
            self._refused.setdefault(compaction_key(event), event)

    def counted(self, offset: int) -> bool:
        """Whether the event at `offset` counted; True for events that are not remembered: old ones and
        bookkeeping."""
        for event in reversed(self.recent):
            if event["offset"] <= offset:
                return event["offset"] != offset or bool(event["counted"])
        return True

    async def drop_stale(self) -> None:
        """Has compaction drop records that are not needed any more (`ControlState.stale`).

        Raises:
            KafkaError: The log did not take the tombstones.
        """
        dropped = list(self.view.stale)[:EVENTS_DROPPED_AT_ONCE]
        futures = [
            await self._producer.send(self.topic, None, key=key.encode(), partition=0) for key in dropped
        ]
        await asyncio.gather(*futures)
        for key in dropped:
            self.view.stale.pop(key, None)

    async def append(self, *events: AnyControlEvent, read_back: bool = True) -> int:
        """Appends `events` in order and waits until they have been read back; returns the last offset.

        Raises:
            aiokafka.errors.KafkaError: The log did not take them.
            TimeoutError: They are in the log but were not read back in time.
        """
        last = -1
        futures = [
            await self._producer.send(
                self.topic, codec.encode(event), key=compaction_key(event).encode(), partition=0
            )
            for event in events
        ]
        for future in futures:
            last = (await future).offset
        if read_back and last >= 0:
            await self._tail.wait_for(last, READ_BACK_S)
        return last
