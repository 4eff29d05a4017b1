"""Seals decide which records of the control topics count: those that a worker of this region has sealed.

A client that may write into the tracker topic could mark messages as finished that no receiver got; one
that may write into the control log could delete a workload. So a worker seals each record that it writes
(`app.kernel.seals`), and ignores records without a seal.

Rules
1. Seals cover the topics that only workers write (`ControlTopics.sealed`). Audit reports come from
   clients, too; `app.audit.folds.seals` covers them.
2. Records of versions without seals stay valid. So seals begin at one offset in each partition, and from
   there on a record without a seal is refused. The leader writes these offsets into the topic of seals
   once all live workers seal (`app.worker.runtime.seal_keeper`). That topic is never compacted and does
   not expire.
3. For each topic, the first offsets count that a sealed record of the topic of seals names. A control
   topic that was recreated since has another id; it is sealed from its start.
4. No reader in a worker's process gets a refused record (`app.kafka.fetch.bounded_consumer`). A reader
   that read one before it knew the offsets reads again (`on_begin`).
5. Refused records are counted by topic, for an incident. `on_refused` gets each one.

A seal is valid at each offset of its topic. So a client that may read and write a topic can repeat an old
record. A client that may write into a compacted topic can also make compaction erase the record of a key;
in the control log the leader writes it again (`app.controllog.log`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec
import structlog
from mode import Service

from app.controllog.topics import ControlTopics
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.topic_tail import TAIL_STOP_TIMEOUT_S, TopicTail, bounded
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.records.record import PlacedRecord, Record
from app.kernel.clock import now_ms
from app.kernel.fencing import LogId
from app.kernel.seals import HEADER, is_same, key_of, record_seal

log = structlog.get_logger(__name__)

Headers = list[tuple[str, bytes | None]]


class SealedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic's id, and the next offset of each of its partitions when its seals began."""

    topic_id: str
    ends: list[int]


class SealsBegin(msgspec.Struct, frozen=True, tag="seals-begin", tag_field="event", kw_only=True):
    """The offsets from which on seals are required. `worker` was the leader when it wrote this."""

    at_ms: int
    worker: str
    topics: dict[str, SealedTopic]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's refused records since the last call: how many, and where the last one is."""

    topic: str
    count: int
    partition: int
    offset: int


PURPOSE = b"switchyard control record"  # makes the key differ from other keys
VERSION = 1  # a release that seals more topics has a higher one

_decoder = msgspec.json.Decoder(SealsBegin)


class Seals(Service):
    """The seals of a region's control topics. Call `learn` before it starts; once started, it has caught up.

    Attributes:
        begins: (topic, partition) -> the offset from which on its records need a seal.
    """

    def __init__(self, topics: ControlTopics, kafka_options: ClientOptions) -> None:
        super().__init__()
        self.begins: dict[tuple[str, int], int] = {}
        self._topics = topics
        self._options = kafka_options
        self._sealed = {topic.name: topic for topic in topics.sealed}
        self._secret = b""
        self._ids: dict[str, str] = {}
        self._on_begin: list[Callable[[], None]] = []
        self._on_refused: dict[str, Callable[[bytes | None, int], None]] = {}
        self._is_read = False
        self._lock = threading.Lock()  # Faust's consumer reads in a thread of its own
        self._refused: dict[str, Refused] = {}
        self._tail = TopicTail(topics.seals.name, dict(kafka_options), self._on_records, from_start=True)
        self._unreadable = UnreadableRecords("records of the topic of seals do not count")

    async def learn(self, client: ClusterClient, *, is_own: bool = True) -> None:
        """Reads the ids that the key consists of from the control cluster. `is_own` False: another
        region's, where only the control log's topic must be known.

        Raises:
            ClusterUnreachable, KafkaError: The cluster does not answer, or not for all topics.
        """
        self._ids = await client.topic_ids(self._sealed)
        needed = self._sealed.keys() if is_own else {self._topics.control.name}
        if unknown := needed - self._ids.keys():
            raise ClusterUnreachable(f"topic {min(unknown)} is not known in {client.name} yet")
        self._secret = key_of(PURPOSE, await client.cluster_id(), self._ids[self._topics.control.name])

    async def on_start(self) -> None:
        await self.add_runtime_dependency(self._tail)
        await self._tail.caught_up.wait()

    def on_begin(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when seals begin while this process runs."""
        self._on_begin.append(listener)

    def on_refused(self, topic: str, listener: Callable[[bytes | None, int], None]) -> None:
        """Calls `listener` with key and offset of each refused record of `topic`, in any thread."""
        self._on_refused[topic] = listener

    # -- writing ---------------------------------------------------------------------------------

    def headers(self, topic: str, key: bytes | None, value: bytes | None) -> Headers:
        """The header with a record's seal; none for a topic without seals."""
        if topic not in self._sealed and topic != self._topics.seals.name:
            return []
        return [(HEADER, record_seal(self._secret, topic, key, value))]

    # -- reading ---------------------------------------------------------------------------------

    def refuses(self, record: PlacedRecord) -> bool:
        """Whether to ignore a record, as aiokafka's consumers give it; counts it then."""
        if self.counts(record.topic, record.partition, record):
            return False
        self.refuse(record.topic, record.partition, record.offset, record.key)
        return True

    def counts(self, topic: str, partition: int, record: Record) -> bool:
        """Whether a record of the topic counts."""
        begin = self.begins.get((topic, partition))
        return begin is None or record.offset < begin or self.is_sealed(topic, record)

    def refuse(self, topic: str, partition: int, offset: int, key: bytes | None = None) -> None:
        """Counts a refused record."""
        with self._lock:
            count = self._refused[topic].count + 1 if topic in self._refused else 1
            self._refused[topic] = Refused(topic=topic, count=count, partition=partition, offset=offset)
        if (listener := self._on_refused.get(topic)) is not None:
            listener(key, offset)

    def take_refused(self) -> list[Refused]:
        """The refused records since the last call, by topic."""
        with self._lock:
            refused, self._refused = self._refused, {}
        return list(refused.values())

    def has_begun(self, topic: str) -> bool:
        """Whether the topic's records need a seal, from some offset on."""
        return (topic, 0) in self.begins

    def is_sealed(self, topic: str, record: Record) -> bool:
        """Whether a record of the topic has a valid seal."""
        seal = seal_in(record.headers)
        return seal is not None and is_same(seal, record_seal(self._secret, topic, record.key, record.value))

    # -- beginning -------------------------------------------------------------------------------

    @property
    def missing(self) -> list[str]:
        """The topics whose seals have not begun."""
        return [name for name in self._sealed if not self.has_begun(name)]

    @property
    def has_key(self) -> bool:
        """Whether the brokers give topic ids. Without them (before Kafka 2.8) anyone could compute the
        key."""
        return bool(self._ids[self._topics.control.name])

    async def begin(self, client: ClusterClient, worker: str) -> None:
        """Requires seals from the present end offsets on; all live workers write them.

        Raises:
            ClusterUnreachable, KafkaError, TimeoutError: It is not possible now.
        """
        missing = self.missing
        places = [(name, at) for name in missing for at in range(self._sealed[name].partitions)]
        ends = await client.end_offsets(places)
        topics = {
            name: SealedTopic(self._ids[name], [ends[name, at] for at in range(topic.partitions)])
            for name, topic in self._sealed.items()
            if name in missing
        }
        event = msgspec.json.encode(SealsBegin(at_ms=now_ms(), worker=worker, topics=topics))
        producer = ReplaceableProducer("seals", self._options, seal=self)
        try:
            await producer.start()
            await producer.send_and_wait(self._topics.seals.name, event, partition=0)
        finally:
            await producer.stop()

    def _on_records(self, records: Sequence[PlacedRecord]) -> None:
        news = False
        for record in records:
            try:
                if not self.is_sealed(self._topics.seals.name, record):
                    raise ValueError("it lacks the seal of a worker of this region")
                event = _decoder.decode(record.value or b"")
            except ValueError as error:
                self._unreadable.add_for_later(record.offset, error)
                continue
            news |= self._take(event)
        if news:
            topics = len({topic for topic, _ in self.begins})
            log.info("control topics are sealed", region=self._topics.region, topics=topics)
            for listener in self._on_begin:
                listener()
        if not self.missing and not self._is_read:  # later records change nothing
            self._is_read = True
            self._tail.caught_up.set()
            self.add_future(bounded(self._tail.stop(), TAIL_STOP_TIMEOUT_S, "reader of seals"))

    def _take(self, event: SealsBegin) -> bool:
        """Takes the first offsets of each topic (rule 3)."""
        found = {
            (name, partition): 0 if self._is_another(name, event.topics[name]) else end
            for name in self.missing
            if name in event.topics
            for partition, end in enumerate(event.topics[name].ends)
        }
        self.begins |= found
        return bool(found)

    def _is_another(self, name: str, topic: SealedTopic) -> bool:
        return LogId(topic_id=topic.topic_id).is_another(LogId(topic_id=self._ids.get(name, "")))


def seal_in(headers: Sequence[tuple[str, bytes | None]] | None) -> bytes | None:
    """The seal among a record's headers, as aiokafka gives them."""
    for name, value in headers or ():
        if name == HEADER and isinstance(value, bytes):
            return value
    return None
