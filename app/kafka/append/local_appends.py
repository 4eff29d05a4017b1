"""What this worker's own lanes have appended is told to who follows the partition
(`app.kafka.fetch.shared_read_service`): the headers of batches, with the offsets that the log gave them,
instead of all their bytes.

    Written.acknowledged -> Line -- a round: does the leader lead in the same epoch? --> Headed -> follower

Rules
1. What is told is what a fetch would show (`app.kafka.fetch.shared_reads`): the follower's epoch is confirmed
   before the first of it was sent, and after the last of it was acknowledged by all in-sync replicas.
   Whatever is in doubt, lies behind what somebody else wrote, or does not follow on what the follower has, is
   fetched.
2. A log that changes what it takes (its own timestamps, its own compression) is always fetched; that is
   looked at every `SETTINGS_CHECK_INTERVAL_S`. Its own timestamps are known at once: acknowledgements tell
   them.
3. Where nothing was appended for `IDLE_LANE_S` nothing is asked. What a follower waits for is asked about in
   every `ALL_LANES_EVERY_ROUNDS`th round only, unless much waits in its line: many batches cost hardly more
   than a few.
4. Where the log goes on behind what was told, and nothing of ours is on its way there, it is fetched: others
   write, too.
5. A topic that is deleted and made anew begins in epoch 0 again. But the offsets that a writer is told only
   grow in one log: where they do not, or the topic is gone for a moment, the follower's position is doubted
   (`app.kafka.fetch.log_watch`) before anything more is taken there.
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
LOCAL_FEED_TTL_S = 2.0  # rule 2 of `app.kafka.fetch.shared_read_service`: until the round after the next one
BROKER_ANSWER_TIMEOUT_S = 2.0  # so long a round waits for a broker
IDLE_LANE_S = 4.0
SETTINGS_CHECK_INTERVAL_S = 15.0
REQUIRED_TOPIC_SETTINGS = {"compression.type": "producer", "message.timestamp.type": "CreateTime"}  # rule 2
UNREADABLE_RETRY_INTERVAL_S = 5.0  # after it could not be looked at
INCIDENT_INTERVAL_S = 60.0  # what goes wrong in each round is told so often


class LaneWrites:
    """What one lane writes.

    Args:
        sent_to: all that was handed to the lane until now is of its source's offsets below.
        in_flight: how much of that is not acknowledged.
    """

    def __init__(
        self, at: tuple[str, int], topic_id: str, sent_to: Callable[[], int], in_flight: Callable[[], int],
        doubt: Callable[[LaneWrites], None], ended: Callable[[LaneWrites], None],
    ) -> None:  # fmt: skip
        self.at = at
        self.topic_id = topic_id
        self.sent_to = sent_to
        self.in_flight = in_flight
        self.line = AppendedBatches()
        self.heads_of: HeadsOf = heads_of  # as who follows takes them
        self.acknowledged_s = float("-inf")
        self._end = 0  # of what is acknowledged
        self._doubt = doubt
        self._ended = ended

    def acknowledged(self, base_offset: int, copy: VerbatimCopy) -> None:
        """The log has it there; -1: nobody tells where."""
        self.acknowledged_s = time.monotonic()
        end = base_offset + copy.record_count
        if base_offset >= 0:
            if base_offset < self._end:
                self._doubt(self)  # rule 5
            self._end = end
        line = self.line
        if line.is_begun:
            # Rule 2: where the log has set its times, the header was changed.
            start = NOT_KNOWN if has_times_of_log(base_offset) else int(base_offset)
            head, *_ = self.heads_of(bytes(copy.data)) or [bytes(copy.data[:HEADER_BYTES])]
            line.acknowledged(copy.source_start, AppendedBatch(start, end, head, now_ms()))

    def close(self) -> None:
        """It writes no more."""
        self._ended(self)


class LocalAppends:
    """See the module; of one cluster. `rounds`: in which all settings were known."""

    def __init__(self, client: ClusterClient, shared_reads: SharedReadService) -> None:
        self._client = client
        self._shared_reads = shared_reads
        self._written: dict[LaneWrites, None] = {}
        self._kept: dict[str, bool | None] = {}  # topic -> whether its log keeps batches; None: not known
        self._checked_s = self._told_s = float("-inf")
        self.rounds = self._turns = 0
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins its rounds."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends them."""
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
        """Of a lane, as `LaneWrites`."""
        made = LaneWrites((topic, partition), topic_id, sent_to, in_flight, self._doubt, self._end)
        self._written[made] = None
        return made

    def _end(self, written: LaneWrites) -> None:
        self._written.pop(written, None)

    def _doubt(self, written: LaneWrites) -> None:
        """Rule 5."""
        written.line.stop()
        part = self._shared_reads.of(*written.at)
        if part is not None:
            part.doubted = True
            self._shared_reads.go(part)

    # -- rounds ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOCAL_APPEND_ROUND_S)
            self._turns += 1
            try:
                await self._round(time.monotonic(), of_all=self._turns % ALL_LANES_EVERY_ROUNDS == 0)
            except Exception as error:  # noqa: BLE001 - it is told, and all is fetched
                self._went_wrong(error, self._written)

    async def _round(self, now_s: float, *, of_all: bool = True) -> None:
        asked: dict[int, list[tuple[LaneWrites, PartitionFetch]]] = {}
        live: list[tuple[LaneWrites, PartitionFetch]] = []
        topics: set[str] = set()
        for written in self._written:
            part = self._shared_reads.of(*written.at)
            if part is None or written.acknowledged_s < now_s - IDLE_LANE_S or not _fits(written, part):
                written.line.stop()
                continue
            topics.add(written.at[0])
            if of_all or not part.waits or written.line.is_full:
                live.append((written, part))
        if not live:
            return
        await self._check(topics, now_s)
        self.rounds += None not in self._kept.values()
        for written, part in live:
            node = self._client.known_leader(*written.at)
            if node is None or not self._kept.get(written.at[0]):
                written.line.stop()
            else:
                written.line.ask(part.epoch)
                asked.setdefault(node, []).append((written, part))
        # All of them have ended before the next round asks: an answer confirms what was asked in its round.
        found = await asyncio.gather(
            *(self._ask(node, lines) for node, lines in asked.items()), return_exceptions=True
        )
        for lines, error in zip(asked.values(), found, strict=True):
            if isinstance(error, Exception):
                self._went_wrong(error, [written for written, _ in lines])

    async def _ask(self, node: int, lines: list[tuple[LaneWrites, PartitionFetch]]) -> None:
        ends: dict[tuple[str, int], EpochEnd] = {}
        wanted = {written.at: (part.epoch, part.epoch) for written, part in lines}
        try:
            async with asyncio.timeout(BROKER_ANSWER_TIMEOUT_S):
                ends = await epoch_ends(self._client, node, wanted)
        except (KafkaError, OSError, TimeoutError) as error:
            log.debug("a leader's epochs are not known", cluster=self._client.name, error=repr(error))
        for written, part in lines:
            try:
                self._update_end(written, part, ends.get(written.at))
            except Exception as error:  # noqa: BLE001 - of this one only
                self._went_wrong(error, [written])

    def _went_wrong(self, error: Exception, of: Iterable[LaneWrites]) -> None:
        """What they have is not told, and so is fetched."""
        for written in of:
            written.line.stop()
            part = self._shared_reads.of(*written.at)
            if part is not None:
                self._shared_reads.go(part)
        now_s = time.monotonic()
        if now_s - self._told_s >= INCIDENT_INTERVAL_S:
            self._told_s = now_s
            log.error(
                "what was appended could not be told, and is fetched",
                cluster=self._client.name, exc_info=error,
            )  # fmt: skip

    def _update_end(self, written: LaneWrites, part: PartitionFetch, end: EpochEnd | None) -> None:
        line = written.line
        if end is not None and end.code in TOPIC_UNKNOWN:
            self._doubt(written)
            return
        is_known = end is not None and not end.code and end.epoch == line.epoch
        if end is None or not is_known or not _fits(written, part) or part.epoch != line.epoch:
            line.stop()
            self._shared_reads.go(part)
        else:
            written.heads_of = part.heads_of
            line.confirmed(written.sent_to())
            self._give(written, part, end.end_offset)

    def _give(self, written: LaneWrites, part: PartitionFetch, log_end: int) -> None:
        """`log_end`: of the leader, of which the other replicas may lack something: no high watermark."""
        line, followers = written.line, self._shared_reads
        may_take = (part.is_given or not part.polling) and followers.has_room(part)
        rows = line.take(part.next_offset) if may_take else []
        if rows:
            headers = headers_of_heads([row.head for row in rows], [row.base_offset for row in rows], CLEARED)
            count = 0 if headers is None or part.counts is None else part.counts(headers)
            if count < len(rows):
                line.drop()  # their records are needed
            if headers is not None and count:
                seen_at_ms = np.array([row.at_ms for row in rows[:count]], dtype=np.int64)
                end = rows[count - 1].next_offset
                if log_end <= end:  # all replicas have all of it
                    part.high_watermark, part.seen_at_s = end, time.monotonic()
                else:  # they have so much at least; more is asked for as ever
                    part.high_watermark = max(part.high_watermark, end)
                made = FetchedHeaders(
                    part, headers.of(slice(count)), seen_at_ms, end, part.high_watermark, line.epoch
                )
                followers.give(part, made)
        is_coming = bool(written.in_flight()) and time.monotonic() - written.acknowledged_s < IDLE_LANE_S / 2
        if line.goes_on_at(part.next_offset) and (log_end <= line.end or is_coming):
            followers.wait(part, LOCAL_FEED_TTL_S)
        else:
            followers.go(part)

    # -- settings ----------------------------------------------------------------------------------

    async def _check(self, topics: set[str], now_s: float) -> None:
        """Rule 2."""
        if now_s - self._checked_s < SETTINGS_CHECK_INTERVAL_S and topics <= self._kept.keys():
            return
        self._checked_s, self._kept = now_s, dict.fromkeys(topics)
        try:
            async with asyncio.timeout(BROKER_ANSWER_TIMEOUT_S):
                found = await describe(self._client, topics, REQUIRED_TOPIC_SETTINGS.keys())
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as error:
            log.debug("settings are not known", cluster=self._client.name, error=repr(error))
            self._checked_s = now_s - SETTINGS_CHECK_INTERVAL_S + UNREADABLE_RETRY_INTERVAL_S
            return
        for topic, settings in found.items():
            if isinstance(settings, TopicSettings):
                self._kept[topic] = REQUIRED_TOPIC_SETTINGS.items() <= settings.config.items()


def _fits(written: LaneWrites, part: PartitionFetch) -> bool:
    """Whether the follower's log is the one that is written, and nothing is in doubt of it."""
    is_same = written.topic_id == part.topic_id != "" and part.epoch >= 0
    return is_same and not (part.removed or is_in_doubt(part))
