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
"""

from __future__ import annotations

import asyncio
import contextlib
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
    DefinitionDeleted,
    DefinitionPut,
    LimitShares,
    RegionPulse,
    StartRecorded,
    compaction_key,
    for_people,
)
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


class ControlLog(Service):
    """Follows the control topic into `view`."""

    def __init__(self, topic: str, kafka_options: dict[str, Any]) -> None:
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
        self._tail = TopicTail(topic, kafka_options, self._on_records, from_start=True, is_first=True)
        self._producer = ReplaceableProducer("the control log", kafka_options)
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
            if self._rewound is not None and record.offset >= max(self._anew_to, self._tail.end - 1):
                self.view, self._rewound = self._rewound, None
        if self._rewound is None:
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
            self._rewound, self._anew_to = ControlState(), offset
            self._refused.clear()
            self.refused_alerts.clear()
            self._tail.read_again()
            return True
        return False

    def _fold(self, state: ControlState, record: Any) -> bool:
        """Takes a record in. False: the log is read from its start again, by rule 2."""
        if record.value is None:  # a tombstone: compaction's business
            state.dropped((record.key or b"").decode("utf-8", "replace"))
            return True
        try:
            event = codec.control_event(record.value)
        except codec.BadEvent as error:
            self._unreadable.add_for_later(record.offset, error)
            return True
        counted = state.apply(event)
        if self.caught_up and state.is_jump(event):
            self._jump = f"{compaction_key(event)[:MAX_KEY_CHARS]} at offset {record.offset}"
        if isinstance(event, StartRecorded | RegionPulse | LimitShares):
            return True  # bookkeeping, with an offset for every partition or again and again
        if counted:
            self._refused.pop(compaction_key(event), None)  # compaction keeps this one
        elif self.caught_up:
            if self._rewound is None or record.offset >= self._anew_to:
                self._refuse(event)
        elif self._misses and not self._began_again and isinstance(event, DefinitionPut | DefinitionDeleted):
            self._began_again = True
            self.view = ControlState()
            self._tail.read_again()
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
