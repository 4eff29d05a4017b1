"""Gives followers of a partition the headers of this worker's own appends, so that they need not fetch them.

    LaneWrites.acknowledged -> AppendedBatches -- a round confirms the leader's epoch --> FetchedHeaders

Rules (tests/kafka/append/test_local_appends.py)
1. Given headers are those that a fetch would return (`app.kafka.fetch.shared_reads`). The follower's epoch
   was confirmed before the first batch was sent, and again after all in-sync replicas acknowledged the
   last. All others are fetched: batches in doubt, after other writers' batches, or after a gap.
2. A log that changes batches (own timestamps, own compression) is always fetched. Its settings are checked
   every `SETTINGS_CHECK_INTERVAL_S`; acknowledgements show its own timestamps at once.
3. A lane that is idle for `IDLE_LANE_S` causes no requests. If its follower waits, only every
   `ALL_LANES_EVERY_ROUNDS`th round includes it, unless many batches wait, which cost hardly more.
4. If the log continues after the given batches, and the lane has none in flight, the follower is fetched,
   because others write too.
5. A recreated topic begins in epoch 0 again, but acknowledged offsets only grow within one log. If they do
   not, or the topic is unknown for a moment, the follower's position is in doubt
   (`app.kafka.fetch.log_watch`) before it takes more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import numpy as np
import structlog
from aiokafka.errors import KafkaError

from app.kafka.append.pending_batch import has_times_of_log
from app.kafka.client.cluster import TOPIC_UNKNOWN, ClusterClient, ClusterUnreachable
from app.kafka.client.epoch_ends import EpochEnd, epoch_ends
from app.kafka.client.topic_configs import TopicSettings, describe
from app.kafka.fetch.deliveries import FetchedHeaders, PartitionFetch
from app.kafka.fetch.shared_read_service import HeadsOf, SharedReadService, is_in_doubt
from app.kafka.fetch.shared_reads import NOT_KNOWN, AppendedBatch, AppendedBatches
from app.kafka.records.batch import HEADER_BYTES
from app.kafka.records.header_arrays import headers_of_heads, heads_of
from app.kafka.records.verbatim_copy import CLEARED, VerbatimCopy
from app.kernel.clock import now_ms

log = structlog.get_logger(__name__)

LOCAL_APPEND_ROUND_S = 0.25
ALL_LANES_EVERY_ROUNDS = 4
LOCAL_FEED_TTL_S = 2.0  # until the round after the next (`app.kafka.fetch.shared_read_service`, rule 2)
BROKER_ANSWER_TIMEOUT_S = 2.0
IDLE_LANE_S = 4.0
SETTINGS_CHECK_INTERVAL_S = 15.0
REQUIRED_TOPIC_SETTINGS = {"compression.type": "producer", "message.timestamp.type": "CreateTime"}  # rule 2
UNREADABLE_RETRY_INTERVAL_S = 5.0  # after settings could not be read
INCIDENT_INTERVAL_S = 60.0  # between log messages about failing rounds


class LaneWrites:
    """The appends of one lane. All of its source below `sent_to()` was given to the lane, and
    `in_flight()` batches of it are not acknowledged."""

    def __init__(
        self,
        appends: LocalAppends,
        at: tuple[str, int],
        topic_id: str,
        sent_to: Callable[[], int],
        in_flight: Callable[[], int],
    ) -> None:
        self.at = at
        self.topic_id = topic_id
        self.sent_to = sent_to
        self.in_flight = in_flight
        self.batches = AppendedBatches()
        self.heads_of: HeadsOf = heads_of  # takes headers as the follower wants them
        self.acknowledged_s = float("-inf")
        self._end = 0  # of the acknowledged batches
        self._appends = appends

    def acknowledged(self, base_offset: int, copy: VerbatimCopy) -> None:
        """The log has the batch at this offset; -1: the offset is not known."""
        self.acknowledged_s = time.monotonic()
        end = base_offset + copy.record_count
        if base_offset >= 0:
            if base_offset < self._end:
                self._appends.doubt(self)  # rule 5
            self._end = end
        batches = self.batches
        if batches.is_collecting:
            # Rule 2: a log with its own timestamps has changed the header.
            start = NOT_KNOWN if has_times_of_log(base_offset) else int(base_offset)
            head, *_ = self.heads_of(bytes(copy.data)) or [bytes(copy.data[:HEADER_BYTES])]
            batches.acknowledged(copy.source_start, AppendedBatch(start, end, head, now_ms()))

    def close(self) -> None:
        self._appends.forget(self)


class LocalAppends:
    """The rounds of one cluster. `rounds` counts those in which all settings were known."""

    def __init__(self, client: ClusterClient, shared_reads: SharedReadService) -> None:
        self._client = client
        self._shared_reads = shared_reads
        self._written: dict[LaneWrites, None] = {}
        # topic -> whether its log keeps batches unchanged; None: not known
        self._keeps_batches: dict[str, bool | None] = {}
        self._checked_s = self._logged_s = float("-inf")
        self.rounds = self._turns = 0
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def begin(
        self,
        topic: str,
        partition: int,
        topic_id: str,
        sent_to: Callable[[], int],
        in_flight: Callable[[], int],
    ) -> LaneWrites:
        made = LaneWrites(self, (topic, partition), topic_id, sent_to, in_flight)
        self._written[made] = None
        return made

    def forget(self, written: LaneWrites) -> None:
        self._written.pop(written, None)

    def doubt(self, written: LaneWrites) -> None:
        """Puts the follower in doubt (rule 5)."""
        written.batches.stop()
        part = self._shared_reads.follower(*written.at)
        if part is not None:
            part.doubted = True
            self._shared_reads.fetch_now(part)

    # -- rounds ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOCAL_APPEND_ROUND_S)
            self._turns += 1
            try:
                await self._round(time.monotonic(), all_lanes=self._turns % ALL_LANES_EVERY_ROUNDS == 0)
            except Exception as error:  # noqa: BLE001 - logged; followers fetch
                self._give_up(error, self._written)

    async def _round(self, now_s: float, *, all_lanes: bool = True) -> None:
        by_node: dict[int, list[tuple[LaneWrites, PartitionFetch]]] = {}
        live: list[tuple[LaneWrites, PartitionFetch]] = []
        topics: set[str] = set()
        for written in self._written:
            part = self._shared_reads.follower(*written.at)
            if part is None or written.acknowledged_s < now_s - IDLE_LANE_S or not _same_log(written, part):
                written.batches.stop()
                continue
            topics.add(written.at[0])
            if all_lanes or not part.waits or written.batches.is_full:
                live.append((written, part))
        if not live:
            return
        await self._check(topics, now_s)
        self.rounds += None not in self._keeps_batches.values()
        for written, part in live:
            node = self._client.known_leader(*written.at)
            if node is None or not self._keeps_batches.get(written.at[0]):
                written.batches.stop()
            else:
                written.batches.begin_round(part.epoch)
                by_node.setdefault(node, []).append((written, part))
        # All requests end before the next round, so an answer confirms its own round.
        found = await asyncio.gather(
            *(self._ask(node, members) for node, members in by_node.items()), return_exceptions=True
        )
        for members, error in zip(by_node.values(), found, strict=True):
            if isinstance(error, Exception):
                self._give_up(error, [written for written, _ in members])

    async def _ask(self, node: int, members: list[tuple[LaneWrites, PartitionFetch]]) -> None:
        ends: dict[tuple[str, int], EpochEnd] = {}
        wanted = {written.at: (part.epoch, part.epoch) for written, part in members}
        try:
            async with asyncio.timeout(BROKER_ANSWER_TIMEOUT_S):
                ends = await epoch_ends(self._client, node, wanted)
        except (KafkaError, OSError, TimeoutError) as error:
            log.debug("a leader did not report its epochs", cluster=self._client.name, error=repr(error))
        for written, part in members:
            try:
                self._update_end(written, part, ends.get(written.at))
            except Exception as error:  # noqa: BLE001 - affects this lane only
                self._give_up(error, [written])

    def _give_up(self, error: Exception, lanes: Iterable[LaneWrites]) -> None:
        """Lets the followers of these lanes fetch."""
        for written in lanes:
            written.batches.stop()
            part = self._shared_reads.follower(*written.at)
            if part is not None:
                self._shared_reads.fetch_now(part)
        now_s = time.monotonic()
        if now_s - self._logged_s >= INCIDENT_INTERVAL_S:
            self._logged_s = now_s
            log.error("followers fetch appended batches again", cluster=self._client.name, exc_info=error)

    def _update_end(self, written: LaneWrites, part: PartitionFetch, end: EpochEnd | None) -> None:
        batches = written.batches
        if end is not None and end.code in TOPIC_UNKNOWN:
            self.doubt(written)
            return
        is_known = end is not None and not end.code and end.epoch == batches.epoch
        if end is None or not is_known or not _same_log(written, part) or part.epoch != batches.epoch:
            batches.stop()
            self._shared_reads.fetch_now(part)
        else:
            written.heads_of = part.heads_of
            batches.confirm(written.sent_to())
            self._give(written, part, end.end_offset)

    def _give(self, written: LaneWrites, part: PartitionFetch, log_end: int) -> None:
        """`log_end` is the leader's, not the high watermark: other replicas may lack the last records."""
        batches, followers = written.batches, self._shared_reads
        may_take = (part.is_given or not part.polling) and followers.has_room(part)
        rows = batches.take(part.next_offset) if may_take else []
        if rows:
            headers = headers_of_heads([row.head for row in rows], [row.base_offset for row in rows], CLEARED)
            count = 0 if headers is None or part.counts is None else part.counts(headers)
            if count < len(rows):
                batches.drop()  # headers do not suffice
            if headers is not None and count:
                seen_at_ms = np.array([row.at_ms for row in rows[:count]], dtype=np.int64)
                end = rows[count - 1].next_offset
                if log_end <= end:  # all in-sync replicas have the whole log
                    part.high_watermark, part.seen_at_s = end, time.monotonic()
                else:  # a lower bound; the watch reads the real one
                    part.high_watermark = max(part.high_watermark, end)
                made = FetchedHeaders(
                    part, headers.of(slice(count)), seen_at_ms, end, part.high_watermark, batches.epoch
                )
                followers.give(part, made)
        is_coming = bool(written.in_flight()) and time.monotonic() - written.acknowledged_s < IDLE_LANE_S / 2
        if batches.continues_at(part.next_offset) and (log_end <= batches.end or is_coming):
            followers.delay(part, LOCAL_FEED_TTL_S)
        else:
            followers.fetch_now(part)

    # -- settings ----------------------------------------------------------------------------------

    async def _check(self, topics: set[str], now_s: float) -> None:
        if now_s - self._checked_s < SETTINGS_CHECK_INTERVAL_S and topics <= self._keeps_batches.keys():
            return
        self._checked_s, self._keeps_batches = now_s, dict.fromkeys(topics)
        try:
            async with asyncio.timeout(BROKER_ANSWER_TIMEOUT_S):
                found = await describe(self._client, topics, REQUIRED_TOPIC_SETTINGS.keys())
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as error:
            log.debug("topic settings cannot be read", cluster=self._client.name, error=repr(error))
            self._checked_s = now_s - SETTINGS_CHECK_INTERVAL_S + UNREADABLE_RETRY_INTERVAL_S
            return
        for topic, settings in found.items():
            if isinstance(settings, TopicSettings):
                self._keeps_batches[topic] = REQUIRED_TOPIC_SETTINGS.items() <= settings.config.items()


def _same_log(written: LaneWrites, part: PartitionFetch) -> bool:
    """Whether the follower's log is the lane's, without doubt."""
    is_same = written.topic_id == part.topic_id != "" and part.epoch >= 0
    return is_same and not (part.removed or is_in_doubt(part))
