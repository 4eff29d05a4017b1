"""Fetches raw record batches of many partitions of one cluster.

    ready partitions of a broker -> one FetchRequest -> FetchedBatches (raw bytes) -> deliver

Rules
1. A partition has at most one request under way. Its answers are delivered in order.
2. Memory is bounded in bytes: a partition is fetched only while its unreleased bytes are below
   `PARTITION_BUFFER_BYTES` and the budget has room. So a slow partition stalls only itself. Requested
   bytes count as held, so that parallel polls share the room. A partition that holds nothing may request
   `LEAST_BYTES` without room, so that every partition advances.
3. A partition that got data moves to the end, because a broker fills the first partitions of a request first.
4. A partition that becomes ready during a long poll is requested over another connection
   (`broker_connections`). The last one polls only for `LAST_WAIT_MS`, so that no partition waits long.
   A partition without data waits for it and joins.
5. Offsets that the log lost, and a recreated topic, are never skipped silently: see `LogGap`, `log_watch`.
6. The position moves once the sink has taken the offsets before it. Refused data is fetched again.
7. A failing partition waits alone, with backoff, or until a new leader is elected (`leader_search`).
8. A partition is fetched only from a leader whose log is known to be the one that was read (`epoch_ends`).
9. No header counts before its batch's checksum matches (`kafka.records.batch`); this costs 0.65 ms a MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable

import structlog
from aiokafka.errors import KafkaError, for_code
from mode import Service

from app.kafka.client.cluster import (
    LEADER_ERROR_CODES,
    NO_LEADER,
    READ_COMMITTED,
    UNKNOWN_TOPIC,
    ClusterClient,
)
from app.kafka.client.epoch_ends import (
    FENCED_EPOCH,
    NOT_KNOWN,
    UNKNOWN_EPOCH,
    EpochEnd,
    epoch_ends,
)
from app.kafka.fetch.broker_connections import FIRST, LAST, BrokerConnections
from app.kafka.fetch.deliveries import (
    ALL_BYTES,
    CORRUPT,
    PARTITION_BUFFER_BYTES,
    PARTITION_MAX_BYTES,
    UNEXPECTED,
    ByteBudget,
    FetchedBatches,
    FetchIncident,
    FetchItem,
    FetchKey,
    PartitionFetch,
    refusal,
    remedy_of,
)
from app.kafka.fetch.held_partitions import HeldPartitions
from app.kafka.fetch.leader_search import LeaderSeeker
from app.kafka.fetch.log_watch import WATERMARKS_S, LogWatch, find_gap
from app.kafka.fetch.offsets_at_time import offsets_at
from app.kafka.fetch.protocol import Fetch, PartitionAnswer, WantedPartition, answers_of
from app.kafka.fetch.shared_read_service import Counts, HeadsOf, SharedReadService
from app.kafka.records.batch import MAX_BATCH_BYTES, CorruptBatch, take
from app.kafka.records.checksum import crc32c
from app.kafka.records.header_arrays import heads_of

log = structlog.get_logger(__name__)

MAX_WAIT_MS = 500
LAST_WAIT_MS = 20  # the longest that a newly ready partition waits for a connection
RESPONSE_MAX_BYTES = 8 * 1024 * 1024
LEAST_BYTES = 64 * 1024  # what each partition may hold beyond the budget, or one batch
DAMAGE_MAX_BYTES = 64 * 1024 * 1024  # most bytes requested to find the batch after a damaged one
LOOP_TURNS = 3  # between two requests: what came is dispatched, and its calls leave
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 2.0
LEADER_SEARCH_INTERVAL_S = 0.25
INCIDENT_DELAY_S = 3.0  # shorter trouble, such as a leader election, is not reported

OFFSET_OUT_OF_RANGE = 1


def _had_data(part: PartitionFetch) -> bool:
    return not part.idle


class FetchService(Service):
    """Fetches one cluster.

    Args:
        deliver: Takes what was fetched. A worker's is `SwitchyardApp._deliver`, which puts it into the Faust
            channel of its kind of job.
    """

    def __init__(
        self, client: ClusterClient, deliver: Callable[[FetchItem], Awaitable[None]], budget: ByteBudget
    ) -> None:
        super().__init__()
        self.client = client
        self.budget = budget
        self._deliver = deliver
        self._partitions: dict[FetchKey, PartitionFetch] = {}
        self._brokers: defaultdict[int, BrokerConnections] = defaultdict(BrokerConnections)
        self._lacks_room = False  # a partition is not fetched before bytes are freed
        self._polls: set[asyncio.Task[None]] = set()
        self._leaders = LeaderSeeker(client)
        self._wake = asyncio.Event()
        self.shared_reads = SharedReadService(deliver, budget, self._wake.set)

    async def on_start(self) -> None:
        self.budget.waiters.append(self._on_freed)

    async def on_stop(self) -> None:
        self.budget.waiters.remove(self._on_freed)
        self._wake.set()
        for poll in list(self._polls):
            poll.cancel()
        await asyncio.gather(*self._polls, self.shared_reads.stop(), return_exceptions=True)

    # -- the fetched partitions ------------------------------------------------------------------

    def add(
        self, key: FetchKey, topic: str, partition: int, next_offset: int, topic_id: str = "",
        leaves_bytes: int = 0, last_epoch: int = NOT_KNOWN, lingers_s: float = 0.0,
        counts: Counts | None = None, heads: HeadsOf = heads_of,
    ) -> None:  # fmt: skip
        """Fetches the partition from `next_offset` on, under `key`; replaces an earlier fetch under that key.

        Args:
            topic_id: The topic that the offset belongs to; "": the one seen first. Another id leads to a
                `LogGap`.
            leaves_bytes: With no more of the budget free, the partition is fetched as if there were no
                room; with `ALL_BYTES`, it is not fetched.
            last_epoch: The leader epoch of the record before `next_offset`, or of a later one, if known.
            lingers_s: The pause after an answer with little data.
            counts: Makes the partition follow other readers and writers of it
                (`app.kafka.fetch.shared_read_service`).
            heads: Takes the headers for a follower out of batches.
        """
        self.remove(key)
        part = PartitionFetch(
            self.budget, key, topic, partition, next_offset, topic_id, leaves_bytes, lingers_s
        )
        part.epoch, part.last_epoch = self.client.leader_epoch(topic, partition), last_epoch
        part.unsure = max(last_epoch, part.epoch) >= 0
        self._partitions[key] = part
        self.shared_reads.add(part, counts, heads)
        self._wake.set()

    def leave(self, key: FetchKey, leaves_bytes: int) -> None:
        """Changes `leaves_bytes` (see `add`). Unknown keys are ignored."""
        found = self._partitions.get(key)
        if found is not None and found.leaves_bytes != leaves_bytes:
            found.leaves_bytes = leaves_bytes
            self._wake.set()

    def remove(self, key: FetchKey) -> None:
        """Ends the fetch; nothing more is delivered under `key`. Unknown keys are ignored."""
        if (found := self._partitions.pop(key, None)) is not None:
            found.removed = True
            self.shared_reads.remove(found)

    def high_watermark(self, key: FetchKey) -> int:
        """The last seen high watermark of a fetched partition; -1: unknown."""
        return -1 if (found := self._partitions.get(key)) is None else found.high_watermark

    def trouble(self, key: FetchKey) -> str | None:
        """A fetched partition's reported trouble that still lasts; "": none; None: the key is unknown."""
        return None if (found := self._partitions.get(key)) is None else found.incident

    async def offsets_at(self, topic: str, partition: int, timestamp: int) -> int:
        """The first offset at or after `timestamp` (ms, or EARLIEST, LATEST). Raises LookupError: no leader
        of the partition answers now. Raises ClusterUnreachable, KafkaError: for a time, the log cannot be
        read now."""
        found = await offsets_at(self.client, [(topic, partition)], timestamp, READ_COMMITTED)
        if (topic, partition) not in found:
            raise LookupError(f"no leader of {topic}-{partition} in {self.client.name} answers")
        return found[topic, partition]

    # -- the loop --------------------------------------------------------------------------------

    @Service.task
    async def _schedule_for_ever(self) -> None:
        while not self.should_stop:
            self._wake.clear()
            try:
                wait_s = await self._schedule()
            except Exception as error:  # noqa: BLE001 - scheduling must survive any metadata error
                log.warning("fetch scheduling failed; retrying", cluster=self.client.name, why=repr(error))
                wait_s = BACKOFF_MAX_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def _schedule(self) -> float:
        """Starts a poll for each broker with ready partitions; returns seconds until the next look."""
        now_s = time.monotonic()
        wait_s = WATERMARKS_S
        ready: dict[tuple[int, int], list[PartitionFetch]] = {}
        requested: Counter[tuple[str, int]] = Counter()
        free_bytes = self.budget.free_bytes
        self._lacks_room = False
        for part in list(self._partitions.values()):
            if part.polling or not self._has_room(part, free_bytes):
                continue
            if part.retry_at_s > now_s:
                wait_s = min(wait_s, part.retry_at_s - now_s)
                continue
            if part.node is None:
                part.node = self.client.known_leader(part.topic, part.partition)
            if part.idle and part.node is not None and self._brokers[part.node].last_is_busy:
                continue
            if (node := part.node) is None:
                await self._failed(part, *self.client.why_no_leader(part.topic, part.partition))
                wait_s = min(wait_s, part.retry_at_s - now_s)
            elif not part.removed:
                # A request may name a partition once; a second fetch of it needs another request.
                turn = requested[part.topic, part.partition]
                requested[part.topic, part.partition] += 1
                ready.setdefault((node, turn), []).append(part)
        for broker in self._brokers.values():
            broker.is_crowded = False
        for (node, _), found in ready.items():
            parts = [part for part in found if not (part.removed or part.polling)]  # an await may change it
            if not parts or (connection := self._brokers[node].take()) is None:
                continue
            for part in parts:
                part.polling = True
                # The last requested partition is last in the next request.
                self._partitions[part.key] = self._partitions.pop(part.key)
            poll = asyncio.get_running_loop().create_task(self._poll(node, connection, parts))
            self._polls.add(poll)
            poll.add_done_callback(self._polls.discard)
        return max(wait_s, 0.001)

    def _has_room(self, part: PartitionFetch, free_bytes: int) -> bool:
        """Whether the partition may hold more bytes; if not, freed bytes start the next look (rule 2)."""
        if part.leaves_bytes >= ALL_BYTES:
            return False
        has_room = part.unreleased_bytes < (PARTITION_BUFFER_BYTES if free_bytes > part.leaves_bytes else 1)
        self._lacks_room |= not has_room
        return has_room

    def _on_freed(self) -> None:
        if self._lacks_room:
            self._wake.set()

    async def _poll(self, node: int, connection: int, parts: list[PartitionFetch]) -> None:
        """Fetches partitions over a connection, again and again while some are ready at once."""
        try:
            async with asyncio.timeout(None) as timeout:
                while parts:
                    began_s = time.monotonic()
                    await self._fetch(node, connection, parts, timeout)
                    for _ in range(0 if connection == LAST else LOOP_TURNS):
                        await asyncio.sleep(0)
                    parts = self._again(node, connection, parts, began_s)
        except (KafkaError, OSError, TimeoutError) as error:
            self.client.client.force_metadata_update()
            for part in parts:
                await self._failed(part, NO_LEADER, f"broker {node} of {self.client.name}: {error!r}")
        except Exception as error:
            log.exception("a fetch failed unexpectedly", cluster=self.client.name)
            for part in parts:
                await self._failed(part, UNEXPECTED, repr(error))
        finally:
            for part in parts:
                part.polling = False
            self._brokers[node].give_back(connection)
            self._wake.set()

    def _again(
        self, node: int, connection: int, parts: list[PartitionFetch], began_s: float
    ) -> list[PartitionFetch]:
        """The partitions that are fetched again over this connection at once; the service looks for the rest.
        `began_s`: when the last request began."""
        broker = self._brokers[node]
        if connection == FIRST:
            parts = [*parts, *broker.joined()]
        now_s, free_bytes, joins_last = time.monotonic(), self.budget.free_bytes, broker.last_is_busy
        again: dict[tuple[str, int], PartitionFetch] = {}
        if connection != LAST and not broker.is_crowded and not self.should_stop:
            for part in sorted(parts, key=_had_data):  # rule 3
                if part.node != node or part.removed or part.unsure or (part.idle and joins_last):
                    continue
                # A follower leaves a moment for what others read (`app.kafka.fetch.shared_read_service`).
                if part.counts is None and part.retry_at_s <= now_s and self._has_room(part, free_bytes):
                    again.setdefault((part.topic, part.partition), part)
        if connection == FIRST:
            broker.first_goes_on(again, now_s, began_s)
        else:
            broker.join_first(again, now_s)
        found = [*again.values()]
        if len(found) < len(parts):
            for part in set(parts).difference(found):
                part.polling = False
            self._wake.set()
        return found

    async def _fetch(
        self, node: int, connection: int, parts: list[PartitionFetch], timeout: asyncio.Timeout
    ) -> None:
        if unsure := [part for part in parts if part.unsure]:
            await self._compare(node, unsure)
            parts = [part for part in parts if not part.unsure and not part.removed]
            if not parts:
                return
        wanted: list[WantedPartition] = []
        by_name: dict[tuple[str, int], PartitionFetch] = {}
        free_bytes = self.budget.free_bytes
        for part in parts:
            most_bytes = min(part.max_bytes, LEAST_BYTES if free_bytes <= part.leaves_bytes else ALL_BYTES)
            wanted.append(
                WantedPartition(part.topic, part.partition, part.epoch, part.next_offset, most_bytes)
            )
            by_name[part.topic, part.partition] = part
        wait_ms = LAST_WAIT_MS if connection == LAST else MAX_WAIT_MS
        max_bytes = self.budget.room_for(RESPONSE_MAX_BYTES)
        if free_bytes <= 0:
            max_bytes = min(RESPONSE_MAX_BYTES, LEAST_BYTES * len(parts))
        request = Fetch(wait_ms, max_bytes, wanted)
        self.budget.requested_bytes += max_bytes
        try:
            self._leaders.polls[timeout] = time.monotonic(), parts
            try:
                response = await self.client.send(node, request, f"fetch-{connection}")
            finally:
                del self._leaders.polls[timeout]
            timeout.reschedule(None)  # the search may have ended it in this turn of the loop
            if getattr(response, "error_code", 0):
                raise for_code(response.error_code)
            for answer in answers_of(response):
                found = by_name.pop((answer.topic, answer.partition), None)
                if found is None or found.removed or found.unsure:  # another leader was elected meanwhile
                    continue
                try:
                    await self._answered(found, answer)
                except Exception as error:  # of the sink or of unknown bytes: only this partition fails
                    log.exception(
                        "fetched data was not accepted", topic=answer.topic, partition=answer.partition
                    )
                    await self._failed(found, UNEXPECTED, repr(error))
        finally:
            self.budget.requested_bytes -= max_bytes

    async def _compare(self, node: int, parts: list[PartitionFetch]) -> None:
        epochs = {(part.topic, part.partition): (part.epoch, part.compared_epoch) for part in parts}
        ends = await epoch_ends(self.client, node, epochs)
        for part in parts:
            end = ends.get((part.topic, part.partition))
            if end is not None and end.code:
                await self._refused(part, end.code)
            elif end is not None and part.last_epoch >= 0 and end.diverges_at(part.next_offset):
                await self._check_log(part, 0, end)
            else:  # the same log, as far as known
                part.found_in(end)

    async def _refused(self, part: PartitionFetch, code: int) -> None:
        metadata_epoch = self.client.leader_epoch(part.topic, part.partition)
        if code == FENCED_EPOCH or (code == UNKNOWN_EPOCH and metadata_epoch < part.epoch):
            part.epoch, part.unsure = NOT_KNOWN, part.last_epoch >= 0
        if code in LEADER_ERROR_CODES:
            self.client.client.force_metadata_update()
        await self._failed(part, code, refusal(code, self.client.spec, part.topic, part.partition))

    async def _answered(self, part: PartitionFetch, answer: PartitionAnswer) -> None:
        code, data = answer.code, answer.data
        part.idle = not data
        if part.lingers_s and data and len(data) < part.max_bytes // 2:
            part.retry_at_s = max(part.retry_at_s, time.monotonic() + part.lingers_s)
        if code == OFFSET_OUT_OF_RANGE or (code == 0 and part.doubted):
            await self._check_log(part, code)
        elif code == 0:
            part.high_watermark, part.seen_at_s = answer.high_watermark, time.monotonic()
            part.note_stable(part.high_watermark if data else answer.stable_offset, part.seen_at_s)
            if data:
                await self._deliver_data(part, data, answer.aborted)
            else:
                if part.failures or not part.is_held():  # a trouble of the broker is over
                    part.incident = ""
                part.failures = 0
                self.shared_reads.offer(part)
        else:
            await self._refused(part, code)

    async def _deliver_data(self, part: PartitionFetch, data: bytes, aborted: list[tuple[int, int]]) -> None:
        fetched_s = time.monotonic()
        try:
            pieces = take(data, part.next_offset, part.high_watermark, crc32c)
        except CorruptBatch as error:  # only this partition fails
            # The next batch may show where the damage ends.
            part.max_bytes = min(part.max_bytes * 2, DAMAGE_MAX_BYTES)
            await self._failed(part, CORRUPT, f"{part.topic}-{part.partition}: {error}")
            return
        if not pieces:
            # Brokers send the first batch whole; an old broker cuts it at the limit.
            if part.max_bytes >= MAX_BATCH_BYTES:
                await self._failed(
                    part, CORRUPT, f"{part.topic}-{part.partition}: no whole batch in {part.max_bytes} bytes"
                )
            part.max_bytes = min(part.max_bytes * 2, MAX_BATCH_BYTES)
            return
        part.max_bytes = PARTITION_MAX_BYTES
        if self._partitions.get(part.key) is part:
            self._partitions[part.key] = self._partitions.pop(part.key)  # after the partitions that got none
        for piece in pieces:
            if part.removed:
                return
            content = data[piece.start_byte : piece.end_byte]
            fetched = FetchedBatches(
                part, len(content), content, piece.next_offset, aborted, part.high_watermark, piece.damage,
                piece.leader_epoch,
            )  # fmt: skip
            fetched.fetched_s = fetched_s  # the pieces before it may have waited
            part.unreleased_bytes += fetched.nbytes
            self.budget.used_bytes += fetched.nbytes
            self.shared_reads.offer(part, fetched)
            try:
                await self._deliver(fetched)
            except BaseException:
                fetched.release()
                raise
            part.next_offset = piece.next_offset
            part.last_epoch = max(part.last_epoch, piece.leader_epoch)
        part.failures, part.incident = 0, ""

    async def _check_log(self, part: PartitionFetch, code: int, common: EpochEnd | None = None) -> None:
        """Finds out whether the position is still in the same log, and where to continue if not."""
        try:
            gap, topic_id, last_epoch = await find_gap(self.client, part, common)
        except (LookupError, KafkaError, OSError, TimeoutError) as error:
            await self._failed(part, NO_LEADER, f"{part.topic}-{part.partition}: {error}")
            return
        if part.removed:
            return
        if gap is not None:
            await self._deliver(gap)
            part.next_offset, part.last_epoch = gap.end, last_epoch
            part.epoch, part.unsure = self.client.leader_epoch(part.topic, part.partition), False
        part.topic_id, part.doubted = topic_id, False
        if gap is None and code == OFFSET_OUT_OF_RANGE:
            await self._failed(part, NO_LEADER, "the position was out of range for a moment")

    async def _failed(self, part: PartitionFetch, code: int, message: str) -> None:
        now_s = time.monotonic()
        if not part.failures:
            part.failing_since_s = now_s
        part.failures += 1
        if code in LEADER_ERROR_CODES:
            self._leaders.leaderless[part] = part.node
        part.node = None
        if code == UNKNOWN_TOPIC:
            part.doubted = True  # a topic that appears later may be another one
        part.retry_at_s = now_s + min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(part.failures - 1, 10))
        if now_s - part.failing_since_s > INCIDENT_DELAY_S and part.incident != message and not part.removed:
            part.incident = message
            remedy = remedy_of(code, self.client.spec, part.topic)
            try:
                await self._deliver(FetchIncident(part.key, part.topic, part.partition, message, remedy))
            except Exception:
                log.exception("fetch trouble could not be reported", topic=part.topic, message=message)

    @Service.task
    async def _seek_leaders(self) -> None:
        while not self.should_stop:
            await self.sleep(LEADER_SEARCH_INTERVAL_S)
            if await self._leaders.seek(time.monotonic()):
                self._wake.set()

    @Service.task
    async def _watch(self) -> None:
        """Watches topic ids, retention, and high watermarks of partitions that are not fetched now."""
        watch = LogWatch(self.client)
        while not self.should_stop:
            await self.sleep(WATERMARKS_S)
            await watch.try_poll(list(self._partitions.values()), time.monotonic())

    @Service.task
    async def _watch_transactions(self) -> None:
        held = HeldPartitions(self.client, self._deliver)
        while not self.should_stop:
            await self.sleep(WATERMARKS_S)
            await held.try_poll(list(self._partitions.values()), time.monotonic())
