"""Fetches raw record batches of many partitions of one cluster.

    ready partitions of a broker -> one FetchRequest -> Fetched (raw bytes) -> deliver

Rules
1. A partition has at most one request under way; its answers are delivered in order.
2. It is fetched again only while its unreleased bytes are below `PARTITION_BUFFER_BYTES` and the budget has
   room: memory is bounded in bytes, and a slow partition stalls itself only. What is asked for counts as
   held, so that polls side by side share the room. Who holds nothing may ask for `LEAST_BYTES` also when
   there is no room: however much others hold, and for however long, everybody gets on.
3. Who got data goes to the end of the line: a broker answers the first in a request first, and in full.
4. A broker works on one request a connection at a time, so that a partition which becomes ready during a
   long poll of the others is asked for on another connection (`CONNECTIONS` a broker). The last of them
   polls for a short time only, so that none waits for long; whoever had no data waits for it and joins.
5. What the log lost is told as a `Gap`, never passed over in silence; so is a topic made anew (log_watch).
6. The position moves when the sink has taken what lies before it: what it refuses is fetched again.
7. A partition in trouble waits alone, with backoff; one that lost its leader until another is elected.
8. Nothing is fetched from a leader before it is known that its log is the one that was read (epochs).
9. No header is believed before its batch's checksum matched (kafka.records.batch); that costs 0.65 ms a MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

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
from app.kafka.client.epoch_ends import AHEAD, FENCED, NOT_KNOWN, EpochEnd, EpochFetchRequest, epoch_ends
from app.kafka.fetch.deliveries import (
    ALL_BYTES,
    CORRUPT,
    PARTITION_BUFFER_BYTES,
    PARTITION_MAX_BYTES,
    UNEXPECTED,
    ByteBudget,
    FetchedBatches,
    FetchIncident,
    PartitionFetch,
    refusal,
    remedy_of,
)
from app.kafka.fetch.leader_search import LeaderSeeker
from app.kafka.fetch.log_watch import WATERMARKS_S, LogWatch, find_gap
from app.kafka.fetch.offsets_at_time import offsets_at
from app.kafka.fetch.shared_read_service import Counts, HeadsOf, SharedReadService
from app.kafka.records.batch import MAX_BATCH_BYTES, CorruptBatch, take
from app.kafka.records.checksum import crc32c
from app.kafka.records.header_arrays import heads_of

log = structlog.get_logger(__name__)

MAX_WAIT_MS = 250
LAST_WAIT_MS = 20  # the most that a partition which becomes ready waits for a connection
RESPONSE_MAX_BYTES = 8 * 1024 * 1024
LEAST_BYTES = 64 * 1024  # what partitions may hold beyond the budget: so much each, or one batch
DAMAGE_MAX_BYTES = 64 * 1024 * 1024  # asked for to see what follows a damaged batch
CONNECTIONS = 3
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 2.0
LEADER_SEARCH_INTERVAL_S = 0.25  # a lost leader's successor is looked for so often
INCIDENT_DELAY_S = 3.0  # trouble that heals by itself within this (a leader's election) is not told

OFFSET_OUT_OF_RANGE = 1


class FetchService(Service):
    """See the module. `deliver` takes `FetchedBatches`, `Gap` and `FetchIncident`."""

    def __init__(
        self, client: ClusterClient, deliver: Callable[[Any], Awaitable[None]], budget: ByteBudget
    ) -> None:
        super().__init__()
        self.client = client
        self.budget = budget
        self._deliver = deliver
        self._partitions: dict[Any, PartitionFetch] = {}
        self._free: dict[int, set[int]] = {}  # connections of each broker
        self._polls: set[asyncio.Task[None]] = set()
        self._leaders = LeaderSeeker(client)
        self._wake = asyncio.Event()
        self.shared_reads = SharedReadService(deliver, budget, self._wake.set)

    async def on_start(self) -> None:
        self.budget.waiters.append(self._wake.set)

    async def on_stop(self) -> None:
        self.budget.waiters.remove(self._wake.set)
        self._wake.set()
        for poll in list(self._polls):
            poll.cancel()
        await asyncio.gather(*self._polls, self.shared_reads.stop(), return_exceptions=True)

    # -- what is fetched -------------------------------------------------------------------------

    def add(
        self, key: Any, topic: str, partition: int, next_offset: int, topic_id: str = "",
        leaves_bytes: int = 0, last_epoch: int = NOT_KNOWN, lingers_s: float = 0.0,
        counts: Counts | None = None, heads: HeadsOf = heads_of,
    ) -> None:  # fmt: skip
        """Fetches the partition from `next_offset` on, under `key`; ends what was fetched under it before.

        `topic_id`: of the topic that the offset speaks of; without it, of the topic seen first. When the
        topic is found to have another, a `Gap` tells that it has begun anew. With no more than `leaves_bytes`
        of the budget free, the partition is fetched as if there was no room; with `ALL_BYTES`, not at all.
        `last_epoch`: in which the record before `next_offset`, or a later one, was written, if that is known.
        `lingers_s`: after an answer with little in it, it is asked for again so much later.
        `counts`: it follows others that read or write there (`app.kafka.fetch.shared_read_service`), by
        headers that `heads` takes of batches.
        """
        self.remove(key)
        part = PartitionFetch(self, key, topic, partition, next_offset, topic_id, leaves_bytes, lingers_s)
        part.epoch, part.last_epoch = self.client.leader_epoch(topic, partition), last_epoch
        part.unsure = max(last_epoch, part.epoch) >= 0
        self._partitions[key] = part
        self.shared_reads.add(part, counts, heads)
        self._wake.set()

    def leave(self, key: Any, leaves_bytes: int) -> None:
        """It leaves so much of the budget to others from now on (`add`). Unknown keys are ignored."""
        found = self._partitions.get(key)
        if found is not None and found.leaves_bytes != leaves_bytes:
            found.leaves_bytes = leaves_bytes
            self._wake.set()

    def remove(self, key: Any) -> None:
        """Ends it; nothing more is delivered under `key`. Unknown keys are ignored."""
        if (found := self._partitions.pop(key, None)) is not None:
            found.removed = True
            self.shared_reads.remove(found)

    def high_watermark(self, key: Any) -> int:
        """Last seen high watermark of a fetched partition, -1 when unknown."""
        return -1 if (found := self._partitions.get(key)) is None else found.high_watermark

    def trouble(self, key: Any) -> str | None:
        """What was told of a fetched partition, and lasts; "" when nothing is, None when it is not known."""
        return None if (found := self._partitions.get(key)) is None else found.told

    async def offsets_at(self, topic: str, partition: int, timestamp: int) -> int:
        """First offset at or after `timestamp` (ms, or EARLIEST, LATEST).

        Raises:
            LookupError: the partition has no leader that answers now.
            ClusterUnreachable, KafkaError: (of a time) the log cannot be read now.
        """
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
            except Exception as error:  # noqa: BLE001 - scheduling must survive whatever metadata does
                log.warning("fetch scheduling failed, and goes on", cluster=self.client.name, why=repr(error))
                wait_s = BACKOFF_MAX_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def _schedule(self) -> float:
        """Starts a poll for every broker that has ready partitions; seconds until it must look again."""
        now_s = time.monotonic()
        wait_s = WATERMARKS_S
        ready: dict[tuple[int, int], list[PartitionFetch]] = {}
        asked: Counter[tuple[str, int]] = Counter()
        free_bytes = self.budget.free_bytes
        for part in list(self._partitions.values()):
            most_bytes = PARTITION_BUFFER_BYTES if free_bytes > part.leaves_bytes else 1
            if part.polling or part.unreleased_bytes >= most_bytes or part.leaves_bytes >= ALL_BYTES:
                continue
            if part.retry_at_s > now_s:
                wait_s = min(wait_s, part.retry_at_s - now_s)
                continue
            if part.node is None:
                part.node = self.client.known_leader(part.topic, part.partition)
            if part.idle and part.node is not None and self._last_is_busy(part.node):
                continue
            if (node := part.node) is None:
                await self._failed(part, *self.client.why_no_leader(part.topic, part.partition))
                wait_s = min(wait_s, part.retry_at_s - now_s)
            elif not part.removed:
                # A request names a partition once: for a second group it is asked for in another.
                turn = asked[part.topic, part.partition]
                asked[part.topic, part.partition] += 1
                ready.setdefault((node, turn), []).append(part)
        for (node, _), found in ready.items():
            parts = [part for part in found if not (part.removed or part.polling)]  # since it was looked at
            free = self._free.setdefault(node, set(range(CONNECTIONS)))
            if not free or not parts:
                continue
            connection = min(free)
            free.remove(connection)
            for part in parts:
                part.polling = True
                # Last asked, last in line next time.
                self._partitions[part.key] = self._partitions.pop(part.key)
            poll = asyncio.get_running_loop().create_task(self._poll(node, connection, parts))
            self._polls.add(poll)
            poll.add_done_callback(self._polls.discard)
        return max(wait_s, 0.001)

    def _last_is_busy(self, node: int) -> bool:
        return CONNECTIONS - 1 not in self._free.get(node, {CONNECTIONS - 1})

    async def _poll(self, node: int, connection: int, parts: list[PartitionFetch]) -> None:
        try:
            await self._fetch(node, connection, parts)
        except (KafkaError, OSError, TimeoutError) as error:
            self.client.client.force_metadata_update()
            for part in parts:
                await self._failed(part, NO_LEADER, f"broker {node} of {self.client.name}: {error!r}")
        except Exception as error:
            log.exception("a fetch failed in an unexpected way", cluster=self.client.name)
            for part in parts:
                await self._failed(part, UNEXPECTED, repr(error))
        finally:
            for part in parts:
                part.polling = False
            self._free[node].add(connection)
            self._wake.set()

    async def _fetch(self, node: int, connection: int, parts: list[PartitionFetch]) -> None:
        if unsure := [part for part in parts if part.unsure]:
            await self._compare(node, unsure)
            parts = [part for part in parts if not part.unsure and not part.removed]
            if not parts:
                return
        topics: dict[str, list[tuple[int, int, int]]] = {}
        by_name: dict[tuple[str, int], PartitionFetch] = {}
        free_bytes = self.budget.free_bytes
        for part in parts:
            most_bytes = min(part.max_bytes, LEAST_BYTES if free_bytes <= part.leaves_bytes else ALL_BYTES)
            topics.setdefault(part.topic, []).append((part.partition, part.next_offset, most_bytes))
            by_name[part.topic, part.partition] = part
        wait_ms = LAST_WAIT_MS if connection == CONNECTIONS - 1 else MAX_WAIT_MS
        max_bytes = self.budget.room_for(RESPONSE_MAX_BYTES)
        if free_bytes <= 0:
            max_bytes = min(RESPONSE_MAX_BYTES, LEAST_BYTES * len(parts))
        epochs = {at: part.epoch for at, part in by_name.items()}
        request = EpochFetchRequest(wait_ms, 1, max_bytes, list(topics.items()), epochs)
        self.budget.asked_bytes += max_bytes
        try:
            async with asyncio.timeout(None) as patience:
                self._leaders.asked[patience] = time.monotonic(), parts
                try:
                    response = await self.client.send(node, request, f"fetch-{connection}")
                finally:
                    del self._leaders.asked[patience]
            if getattr(response, "error_code", 0):
                raise for_code(response.error_code)
            for topic, answers in response.topics:
                for partition, *answer in answers:
                    asked = by_name.pop((topic, partition), None)
                    if asked is None or asked.removed or asked.unsure:  # since it was asked another leads
                        continue
                    try:
                        await self._answered(asked, answer)
                    except Exception as error:  # of this partition only: the sink's, or unheard-of bytes
                        log.exception("fetched data was not taken", topic=topic, partition=partition)
                        await self._failed(asked, UNEXPECTED, repr(error))
        finally:
            self.budget.asked_bytes -= max_bytes

    async def _compare(self, node: int, parts: list[PartitionFetch]) -> None:
        """Whether the log of the leader is the one that was read: rule 8."""
        asked = {(part.topic, part.partition): (part.epoch, part.compared_epoch) for part in parts}
        ends = await epoch_ends(self.client, node, asked)
        for part in parts:
            end = ends.get((part.topic, part.partition))
            if end is not None and end.code:
                await self._refused(part, end.code)
            elif end is not None and part.last_epoch >= 0 and end.parts_at(part.next_offset):
                await self._look_at_the_log(part, 0, end)
            else:  # it is; or nobody can tell
                part.found_in(end)

    async def _refused(self, part: PartitionFetch, code: int) -> None:
        told = self.client.leader_epoch(part.topic, part.partition)
        if code == FENCED or (code == AHEAD and told < part.epoch):
            part.epoch, part.unsure = NOT_KNOWN, part.last_epoch >= 0
        if code in LEADER_ERROR_CODES:
            self.client.client.force_metadata_update()
        await self._failed(part, code, refusal(code, self.client.spec, part.topic, part.partition))

    async def _answered(self, part: PartitionFetch, answer: list[Any]) -> None:
        # v4: (last stable, aborted, data); v5 on: log start before aborted; v11: replica before data
        code, high_watermark, *rest = answer
        data, aborted = rest[-1], next((r for r in rest if isinstance(r, list)), None) or []
        part.idle = not data
        if part.lingers_s and data and len(data) < part.max_bytes // 2:
            part.retry_at_s = max(part.retry_at_s, time.monotonic() + part.lingers_s)
        if code == OFFSET_OUT_OF_RANGE or (code == 0 and part.doubted):
            await self._look_at_the_log(part, code)
        elif code == 0:
            part.high_watermark, part.seen_at_s = high_watermark, time.monotonic()
            if data:
                await self._deliver_data(part, data, [(a[0], a[1]) for a in aborted])
            else:
                part.failures, part.told = 0, ""
                self.shared_reads.offer(part)
        else:
            await self._refused(part, code)

    async def _deliver_data(self, part: PartitionFetch, data: bytes, aborted: list[tuple[int, int]]) -> None:
        try:
            pieces = take(data, part.next_offset, part.high_watermark, crc32c)
        except CorruptBatch as error:  # in trouble alone; the others of the response come through
            part.max_bytes = min(part.max_bytes * 2, DAMAGE_MAX_BYTES)  # what follows may tell its offsets
            await self._failed(part, CORRUPT, f"{part.topic}-{part.partition}: {error}")
            return
        if not pieces:
            # Not one whole batch: brokers send a first batch whole, so this is an old one's limit.
            if part.max_bytes >= MAX_BATCH_BYTES:
                await self._failed(part, CORRUPT, f"{part.topic}-{part.partition}: not one whole batch")
            part.max_bytes = min(part.max_bytes * 2, MAX_BATCH_BYTES)
            return
        part.max_bytes = PARTITION_MAX_BYTES
        if self._partitions.get(part.key) is part:
            self._partitions[part.key] = self._partitions.pop(part.key)  # behind those that got none
        for piece in pieces:
            if part.removed:
                return
            content = data[piece.start_byte : piece.end_byte]
            fetched = FetchedBatches(
                part, len(content), content, piece.next_offset, aborted, part.high_watermark, piece.damage,
                piece.leader_epoch,
            )  # fmt: skip
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
        part.failures, part.told = 0, ""

    async def _look_at_the_log(self, part: PartitionFetch, code: int, common: EpochEnd | None = None) -> None:
        """The position is not in the log, or that, or its topic, may be another: on where it goes on."""
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
            await self._failed(part, NO_LEADER, "the position was out of range, and is not any more")

    async def _failed(self, part: PartitionFetch, code: int, message: str) -> None:
        now_s = time.monotonic()
        if not part.failures:
            part.failing_since_s = now_s
        part.failures += 1
        if code in LEADER_ERROR_CODES:
            self._leaders.leaderless[part] = part.node
        part.node = None
        if code == UNKNOWN_TOPIC:
            part.doubted = True  # the one that comes may be another
        part.retry_at_s = now_s + min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(part.failures - 1, 10))
        if now_s - part.failing_since_s > INCIDENT_DELAY_S and part.told != message and not part.removed:
            part.told = message
            remedy = remedy_of(code, self.client.spec, part.topic)
            trouble = FetchIncident(part.key, part.topic, part.partition, message, remedy)
            try:
                await self._deliver(trouble)
            except Exception:
                log.exception("trouble could not be told", topic=part.topic, message=message)

    @Service.task
    async def _seek_leaders(self) -> None:
        while not self.should_stop:
            await self.sleep(LEADER_SEARCH_INTERVAL_S)
            if await self._leaders.seek(time.monotonic()):
                self._wake.set()

    @Service.task
    async def _watch(self) -> None:
        """Ids and retention of topics, and high watermarks of partitions that are not being fetched now."""
        watch = LogWatch(self.client)
        while not self.should_stop:
            await self.sleep(WATERMARKS_S)
            await watch.try_poll(list(self._partitions.values()), time.monotonic())
