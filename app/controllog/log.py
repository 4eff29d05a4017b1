"""The control log of a region: every worker's own copy of `ControlState`, and the way to append.

`view` is what has been read so far. Changes are told to listeners after each batch. `append` returns
when the event is in the log *and* has been read back here, so that a caller sees its own write.

Compaction may overtake a reader: it has read a definition, lies still, and the next one that it finds
replaces one that is gone by then, so that the fold would refuse it (`app.controllog.state`, rules 6 and 13).
Who begins after a compaction does not have that trouble (rule 10). So
1. who has caught up and then finds offsets missing reads the log again from its start, beside the view, which
   becomes the new one once that is as far;
2. who still reads what there was, and refuses a definition behind missing offsets, begins once more. Then it
   counts as refused: to be overtaken twice takes two compactions, and half of the log is new before each.

Who reads here gets no record without a worker's seal (`app.controllog.seals`). Compaction keeps it all the
same, and drops the valid one of its key. So
3. what counted last under each key is remembered. The leader writes it again where a record without a seal
   stands behind it (`app.placement.repairs`);
4. who has read such a record, before it knew that seals begin, reads the log again, as in 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

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
)
from app.controllog.seals import Seals
from app.controllog.state import ControlState
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.cluster import LATEST, ClusterClient, ClusterUnreachable
from app.kafka.client.topic_tail import TopicTail
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.fetch.bounded_consumer import was_passed_over

log = structlog.get_logger(__name__)

READ_BACK_S = 10.0
Repairable = Assignment | LimitShares | AnyDefinitionEvent
KEEP_RECENT = 1000
EVENTS_DROPPED_AT_ONCE = 100
MAX_KEY_CHARS = 200  # of an event, for people
MAX_KEY_BYTES = 4_000  # of an event of ours
KEYS_REMEMBERED = 1_000  # of records without a seal, before those under which nothing stands are dropped


class ControlLog(Service):
    """Follows the control topic into `view`."""

    def __init__(self, topic: str, kafka_options: dict[str, Any], seals: Seals | None = None) -> None:
        super().__init__()
        self.topic = topic
        self.view = ControlState()
        self._refused: dict[str, Repairable] = {}
        self._jump = ""  # the last event that named a term or epoch that cannot be
        self.refused_alerts: set[str] = set()  # ids: `app.alerts.delivery.monitor` writes these again
        self._rewound: ControlState | None = None  # the log read again, which is to become the view
        self._anew_to = -1  # once it has this offset
        self._misses = self._began_again = False  # both: while what there was is read
        self.recent: deque[dict[str, Any]] = deque(maxlen=KEEP_RECENT)  # what the activity page shows
        self._tail = TopicTail(
            topic, kafka_options, self._on_records,
            from_start=True, is_first=True, on_position=self._on_position,
        )  # fmt: skip
        self._producer = ReplaceableProducer("the control log", kafka_options, seal=seals)
        self._last: dict[str, tuple[int, AnyControlEvent]] = {}  # key -> offset, and what counted there
        self._covered: dict[str, int] = {}  # key -> the offset of a record without a seal
        self._unsealed_to = 0  # behind the last record without a seal that was read
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
        """Everything that was in the log at the start has been read."""
        return self._tail.caught_up.is_set()

    async def read_to_end(self, client: ClusterClient, timeout_s: float) -> None:
        """Returns once all that stands in the log by now has been read here; `client` is of its cluster.

        Raises:
            ClusterUnreachable, KafkaError: where the log ends cannot be known.
            TimeoutError: it was not read within `timeout_s`.
        """
        at = (self.topic, 0)
        async with asyncio.timeout(timeout_s):
            end = (await client.offsets([at], LATEST)).get(at)
            if end is None:
                raise ClusterUnreachable(f"the leader of {self.topic} does not tell where it ends")
            await self._tail.wait_for(end - 1, timeout_s)

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called after every batch of events that were read."""
        self._listeners.append(listener)

    async def up_to(self, offset: int) -> ControlState:
        """The view, once the record at `offset` has been read here, however long that takes."""
        while True:
            with contextlib.suppress(TimeoutError):
                await self._tail.wait_for(offset, READ_BACK_S)
                return self.view

    def _on_records(self, records: list[Any]) -> None:
        for record in records:
            state = self.view if self._rewound is None else self._rewound
            if 0 < state.next_offset < record.offset and self._is_overtaken(state.next_offset, record.offset):
                return
            state.next_offset = record.offset + 1
            if not self._fold(state, record):
                return
            self._end_rewinding(record.offset + 1)
        if self._rewound is None:
            self._tell_listeners()

    def _on_position(self, next_offset: int) -> None:
        """Where no record is read: what stands there is refused, or was compacted."""
        if self._end_rewinding(next_offset):
            self._tell_listeners()
        if len(self._covered) > KEYS_REMEMBERED + len(self._last):
            self._covered = {one: at for one, at in self._covered.items() if one in self._last}

    def _end_rewinding(self, next_offset: int) -> bool:
        """Ends reading the log again, if it was read so far. Whether it does."""
        if self._rewound is None or next_offset <= max(self._anew_to, self._tail.end - 1):
            return False
        self.view, self._rewound = self._rewound, None
        return True

    def _tell_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    def _is_overtaken(self, start: int, offset: int) -> bool:
        """Offsets from `start` to before this one are missing: rule 1."""
        if was_passed_over(self.topic, 0, start, offset):
            return False
        if not self.caught_up:
            self._misses = True
        elif self._rewound is None:
            log.warning("compaction has overtaken the reader of the control log; it is read again", to=offset)
            self._read_again(offset)
            return True
        return False

    def _read_again(self, to: int) -> None:
        """From the start, beside the view."""
        self._rewound, self._anew_to = ControlState(), to
        self._refused.clear()
        self.refused_alerts.clear()
        self._restart_tail()

    def _read_again_if_unsealed(self) -> None:
        """Rule 4."""
        assert self._seals is not None, "it calls this"
        if self._unsealed_to <= self._seals.begins[self.topic, 0]:
            return
        log.warning("the control log is read again, without the records that have no seal")
        if self.caught_up:
            self._read_again(self.view.next_offset - 1)
        else:
            self._begin_again()

    def _begin_again(self) -> None:
        """From the start, before all of it was read once."""
        self.view = ControlState()
        self._restart_tail()

    def _restart_tail(self) -> None:
        self._last.clear()
        self._covered.clear()
        self._tail.rewind()

    def _cover(self, key: bytes | None, offset: int) -> None:
        """Rule 3: a record without a seal stands under `key`. Faust's reader tells the same in its thread."""
        if not key or len(key) > MAX_KEY_BYTES or threading.current_thread() is not threading.main_thread():
            return
        name = key.decode("utf-8", "replace")
        self._covered[name] = max(offset, self._covered.get(name, -1))

    def _fold(self, state: ControlState, record: Any) -> bool:
        """Takes a record in. False: the log is read from its start again, by rule 2."""
        seals = self._seals
        if seals is not None and not (seals.has_begun(self.topic) or seals.is_sealed(self.topic, record)):
            self._unsealed_to = record.offset + 1
        if record.value is None:  # a tombstone: compaction's business
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
        if isinstance(event, StartRecorded | RegionPulse | LimitShares):
            return True  # bookkeeping, with an offset for every partition or again and again
        if counted:
            self._refused.pop(compaction_key(event), None)  # compaction keeps this one
        elif self.caught_up:
            if self._rewound is None or record.offset >= self._anew_to:
                self._refuse(event)
        elif self._misses and not self._began_again and isinstance(event, DefinitionPut | DefinitionDeleted):
            self._began_again = True
            self._begin_again()
            return False
        if isinstance(event, AlertState) and not event.is_news:
            return True  # bookkeeping, too
        if not self.recent or record.offset > self.recent[-1]["offset"]:
            told = msgspec.to_builtins(for_people(event))
            self.recent.append({"offset": record.offset, "counted": counted, **told})
        return True

    def take_jump(self) -> str:
        """The last event that was refused because of its term or epoch, since the last call; "": none."""
        jump, self._jump = self._jump, ""
        return jump

    def _refuse(self, event: AnyControlEvent) -> None:
        match event:
            case DefinitionPut() | DefinitionDeleted() if isinstance(event, DefinitionPut) or (
                event.expected is not None
            ):
                self._refused[compaction_key(event)] = event  # at most one each, whether it is taken or not
            case AlertState():
                self.refused_alerts.add(event.id)
            case Assignment() if event.job in self.view.assignments:
                self._refused[compaction_key(event)] = event
            case LimitShares() if event.key in self.view.limits:
                self._refused[compaction_key(event)] = event

    def take_refused(self) -> list[Repairable]:
        """The last refused assignment of each job, and definition of each workload and route, since the last
        call; the leader repairs what they overwrote (rule 5)."""
        refused, self._refused = self._refused, {}
        return list(refused.values())

    def take_erased(self) -> list[AnyControlEvent]:
        """What counted last under keys that a record without a seal has taken since (rule 3). Nothing while
        the log is read again: what is known then is old. `refused_alerts` has the alerts among it."""
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
        """They were taken, and could not be repaired."""
        for event in erased:
            self._covered.setdefault(compaction_key(event), self._tail.next_offset - 1)

    def refuse_again(self, refused: Iterable[Repairable]) -> None:
        """They were taken, and could not be repaired."""
        for event in refused:
            self._refused.setdefault(compaction_key(event), event)

    def counted(self, offset: int) -> bool:
        """Whether the event at `offset` counted; True when it was read too long ago to be known."""
        for event in reversed(self.recent):
            if event["offset"] <= offset:
                return event["offset"] != offset or bool(event["counted"])
        return True

    async def drop_stale(self) -> None:
        """Has compaction drop what nobody needs any more (rules 8 and 12 of the fold). Raises KafkaError."""
        dropped = list(self.view.stale)[:EVENTS_DROPPED_AT_ONCE]
        futures = [
            await self._producer.send(self.topic, None, key=key.encode(), partition=0) for key in dropped
        ]
        await asyncio.gather(*futures)
        for key in dropped:
            self.view.stale.pop(key, None)

    async def append(self, *events: AnyControlEvent, read_back: bool = True) -> int:
        """Appends `events` in order and waits until they have been read here; returns the last offset.

        Raises:
            aiokafka.errors.KafkaError: the log did not take them.
            TimeoutError: they are in the log but were not read back in time.
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
