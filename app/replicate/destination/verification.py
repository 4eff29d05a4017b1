"""Reads copies back and compares them with what was sent, while copying continues.

    acknowledged copy -> (its offset, how many records, checksum of their bytes) -> waiting
                                                     the destination's log, a little at a time -> equal?

All copies of a slow flow are compared. For a fast flow the verifier compares runs of `RUN_BYTES` of each
partition in turn, up to `BYTES_PER_S`. So comparing costs a few percent of copying. If a route asks for all,
everything is compared, and copying waits while `MAX_BEHIND` of its copies wait.

Batches that were sent unchanged are compared by the checksum of their bytes. Batches that were encoded again
are compared record by record with the source: timestamp (unless the destination sets its own), key, value,
headers. The same holds for all batches if the destination compresses them again or compacts its log. In a
compacted log only the records that are left can be compared.

If copies cannot be read back for `UNREAD_S`, the verifier reports it and gives up the waiting ones. From then
on it tries one copy at a time.

A position does not wait for its copies to be compared. If a route compares everything, the copies that could
not be compared count as `uncompared`. Such a copy was acknowledged without an offset, could not be read back,
had gone, or still waited when its worker ended. The note keeps this number with the position
(`app.replicate.destination.handover`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from dataclasses import dataclass

import structlog
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest

from app.kafka.client.cluster import EARLIEST, READ_UNCOMMITTED, ClusterClient, ClusterUnreachable
from app.kafka.client.only_partition import only_partition
from app.kafka.client.topic_configs import TopicSettings, describe
from app.kafka.fetch.deliveries import refusal, remedy_of
from app.kafka.producers.history import OFFSET_OUT_OF_RANGE
from app.kafka.records.batch import HEADER_BYTES, iter_batches
from app.kafka.records.checksum import crc32c
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.kernel.token_bucket import TokenBucket
from app.replicate.destination.comparison import ExpectedCopy, codec_at, compare, compare_records, print_of
from app.replicate.destination.predecessor import rows_of

log = structlog.get_logger(__name__)

BYTES_PER_S = 2 * 1024 * 1024  # of a worker
RUN_BYTES = 128 * 1024
RECORDS_COST = 4  # comparing records costs this many times as much as comparing bytes
MAX_BEHIND = 2_000  # waiting copies of a route that compares everything
MAX_WAITING = 200_000  # of a worker: copies, and their records that are compared one by one
VERIFY_POLL_INTERVAL_S, VERIFY_RETRY_INTERVAL_S = 0.5, 2.0
UNREAD_S = 60.0
FETCH_WAIT_MS = 50
CONNECTION = "verify"
CLEANUP_POLICY, COMPACT = "cleanup.policy", "compact"
_CODEC = 0x07


TargetPartition = tuple[str, int]  # topic, partition


class VerificationBudget:
    """Shared by a worker's verifiers: the rate of compared `bytes`, and the weight of `waiting` copies."""

    def __init__(self, bytes_per_s: float = BYTES_PER_S) -> None:
        self.bytes = TokenBucket(bytes_per_s, bytes_per_s)
        self.waiting = 0


class CopyUnreadable(ClusterUnreachable):
    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(slots=True)
class _Trouble:
    since_s: float
    retry_at_s: float = 0.0
    is_given_up: bool = False
    is_reported: bool = False


class CopyVerifier:
    """Compares the copies that a route's replicas make on this worker. The worker's routes share `budget`.

    Attributes:
        compared, differing: Records, by job.
        uncompared: Records that should have been compared and could not be, by job; former owners' included.
        everything: All copies are compared.
    """

    def __init__(
        self, target: ClusterClient, report_incident: ReportIncident, budget: VerificationBudget
    ) -> None:
        self.compared, self.differing = Counter[JobId](), Counter[JobId]()
        self.uncompared, self._waiting_records = Counter[JobId](), Counter[JobId]()
        self._unnoted = Counter[JobId]()  # at most this many of them came after the last saved note
        self.everything = False
        self._target = target
        self._report_incident = report_incident
        self._waiting: dict[TargetPartition, deque[ExpectedCopy]] = {}
        self._count = 0
        self._left_bytes: dict[TargetPartition, int] = {}  # of each target's current run
        self._budget = budget
        self._by_records: set[TargetPartition] = set()  # the destination changes the bytes of batches
        self._troubles: dict[TargetPartition, _Trouble] = {}

    def add(
        self, job: JobId, target: TargetPartition, base_offset: int, copy: VerbatimCopy, topic_id: str = ""
    ) -> None:
        """Queues an acknowledged copy, unless there is too much to compare."""
        left_bytes, trouble = self._left_bytes.get(target, 0), self._troubles.get(target)
        if trouble is not None and trouble.is_given_up and target in self._waiting:
            self.leave_uncompared(job, copy.record_count)
            return
        if left_bytes <= 0 and not self.everything:
            now_s = time.monotonic()
            if self._budget.waiting >= MAX_WAITING or self._budget.bytes.wait_s(now_s, RUN_BYTES):
                return
            self._budget.bytes.take(now_s, RUN_BYTES)
            left_bytes = RUN_BYTES
        size_bytes = len(copy.data)
        prints = None
        if copy.read_again is not None or target in self._by_records:
            try:
                prints = [print_of(*row) for row in rows_of(copy)]
            except Exception as error:  # noqa: BLE001 - the decoder raises many kinds; the bytes are unchanged
                log.debug("a batch is compared by its bytes", target=target, error=repr(error))
        self._left_bytes[target] = left_bytes - size_bytes * (RECORDS_COST if prints else 1)
        with memoryview(copy.data) as view, view[HEADER_BYTES:] as records:
            crc = crc32c(records)
        copied = ExpectedCopy(
            job, base_offset, copy.record_count, size_bytes, crc, copy.data[22] & _CODEC,
            copy.source_start, copy.source_end, prints, topic_id,
        )  # fmt: skip
        self._waiting.setdefault(target, deque()).append(copied)
        self._count += 1
        self._waiting_records[job] += copied.record_count
        self._unnoted[job] += copied.record_count
        self._budget.waiting += copied.weight

    def start_replica(self, job: JobId, uncompared: int) -> None:
        """Starts a replica, perhaps again, with the `uncompared` copies of its saved note. They include
        copies that still wait here, except those that came after the note."""
        noted = max(0, self._must_compare(job) - self._unnoted[job])
        self.uncompared[job] = max(0, uncompared - noted)

    def noted(self, job: JobId, acknowledged: int, covered: int | None) -> None:
        """Takes a saved note's counts: `covered` records were acknowledged when it was made, `acknowledged`
        are now."""
        if covered is not None:
            self._unnoted[job] = acknowledged - covered

    def leave_uncompared(self, job: JobId, record_count: int) -> None:
        """Counts copies that will not be compared."""
        if self.everything:
            self.uncompared[job] += record_count

    def unverified(self, job: JobId) -> int:
        """The acknowledged records that would stay uncompared if the worker ended now."""
        return self.uncompared[job] + self._must_compare(job)

    def _must_compare(self, job: JobId) -> int:
        """The waiting records that may not be left out."""
        return self._waiting_records[job] if self.everything else 0

    def is_comparing(self, job: JobId, target: TargetPartition) -> bool:
        """Whether all of the job's copies must be compared, and the waiting ones can be soon."""
        return self.everything and self._waiting_records[job] > 0 and target not in self._troubles

    @property
    def waiting(self) -> int:
        return self._count

    @property
    def is_behind(self) -> bool:
        """Whether all copies must be compared and too many wait."""
        return self.everything and self._count >= MAX_BEHIND

    async def run(self) -> None:
        has_read = True
        while True:
            hurries = has_read and self.everything and self._count > MAX_BEHIND // 4
            await asyncio.sleep(0 if hurries else VERIFY_POLL_INTERVAL_S)
            has_read = False
            for target in list(self._waiting):
                trouble = self._troubles.get(target)
                if target in self._waiting and not (trouble and time.monotonic() < trouble.retry_at_s):
                    has_read = await self._verify(target) or has_read

    async def _verify(self, target: TargetPartition) -> bool:
        """Compares the copies that wait now; returns whether anything could be read. Later copies wait for
        the next round; otherwise each would need a request of its own."""
        has_read, last = False, self._waiting[target][-1].base_offset
        try:
            try:
                while target in self._waiting and self._waiting[target][0].base_offset <= last:
                    await self._compare_run(target)
                    has_read = True
                    self._troubles.pop(target, None)
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                await self._failed(target, error)
        except Exception:
            log.exception("a copy could not be compared and is left out", target=target)
            if target in self._waiting:  # else it was the last one, and is counted already
                self._leave_out(target)
            self._troubles.pop(target, None)  # it was read
        return has_read

    async def _failed(self, target: TargetPartition, error: Exception) -> None:
        """Notes that copies cannot be read, and gives up the waiting ones after `UNREAD_S`."""
        log.debug("copies cannot be compared now", target=target, error=repr(error))
        with contextlib.suppress(ClusterUnreachable, KafkaError, OSError, TimeoutError):
            if await self._is_gone(target):
                self._troubles.pop(target, None)
                return
        now_s = time.monotonic()
        trouble = self._troubles.setdefault(target, _Trouble(now_s))
        trouble.retry_at_s = now_s + VERIFY_RETRY_INTERVAL_S
        if now_s - trouble.since_s < UNREAD_S:
            return
        trouble.is_given_up = True
        if not any(known.is_reported for (topic, _), known in self._troubles.items() if topic == target[0]):
            trouble.is_reported = True
            remedy = "check that the destination's brokers run; the worker compares later copies by itself"
            self._report_incident(
                "verify-trouble",
                str(self._waiting[target][0].job),
                f"copies in {target[0]} of {self._target.name} could not be read back for "
                f"{now_s - trouble.since_s:.0f} s, so they are not compared: {error or repr(error)}",
                error.remedy if isinstance(error, CopyUnreadable) else remedy,
                lambda: self._troubles.get(target) is not trouble,
            )
        self._drop(target)

    def close(self) -> None:
        if self.everything and self._count:
            log.warning(
                "copies were not compared before the worker closed the route",
                records=self._waiting_records.total(),
            )
        for target in list(self._waiting):
            self._drop(target)
        self._troubles.clear()

    def _drop(self, target: TargetPartition) -> None:
        while target in self._waiting:
            self._leave_out(target)

    def _leave_out(self, target: TargetPartition) -> None:
        """Drops the first waiting copy, which cannot be compared."""
        copied = self._pop(target)
        self.leave_uncompared(copied.job, copied.record_count)

    def _pop(self, target: TargetPartition) -> ExpectedCopy:
        waiting = self._waiting[target]
        copied = waiting.popleft()
        self._count -= 1
        self._waiting_records[copied.job] -= copied.record_count
        self._budget.waiting -= copied.weight
        if not waiting:
            del self._waiting[target]
        return copied

    def _run(self, target: TargetPartition) -> tuple[int, int]:
        """The bytes and the number of the first waiting copies that lie one behind the other."""
        size_bytes = count = 0
        end = -1
        for copied in self._waiting[target]:
            if end not in {-1, copied.base_offset} or size_bytes > RUN_BYTES:
                break
            size_bytes, count = size_bytes + copied.size_bytes, count + 1
            end = copied.base_offset + copied.record_count
        return size_bytes, count

    async def _compare_run(self, target: TargetPartition) -> None:
        (topic, partition), first = target, self._waiting[target][0]
        node = await self._target.leader(topic, partition)
        if node is None:
            raise ClusterUnreachable(f"{topic}-{partition} has no leader")
        size_bytes, count = self._run(target)
        partitions = [(topic, [(partition, first.base_offset, size_bytes)])]
        request = FetchRequest(FETCH_WAIT_MS, 1, size_bytes, READ_UNCOMMITTED, partitions)
        response = await self._target.send(node, request, CONNECTION)
        _, code, *rest = only_partition(response)
        if code == OFFSET_OUT_OF_RANGE:
            log_start = (await self._target.offsets([target], EARLIEST)).get(target)
            if log_start is None:
                raise ClusterUnreachable(
                    f"the leader of {topic}-{partition} does not report its start offset"
                )
            # Otherwise retention has deleted the copy.
            is_cut = first.base_offset >= log_start
            if is_cut and await self._is_gone(target):
                return
            if is_cut:
                self._pop(target)
                self._report_difference(target, first, "the copy's log ends before it")
            else:
                self._leave_out(target)
            return
        if code:
            self._target.client.force_metadata_update()
            spec = self._target.spec
            raise CopyUnreadable(refusal(code, spec, topic, partition), remedy_of(code, spec, topic))
        batches = list(iter_batches(rest[-1]))
        if not batches:
            raise ClusterUnreachable(f"{topic}-{partition} returned no batch at {first.base_offset}")
        end = batches[-1].header.next_offset
        while count and self._waiting[target][0].base_offset < end:
            count -= 1
            copied = self._waiting[target][0]
            how = compare(copied, batches)
            by_records = bool(how) and await self._may_be_compacted(topic)
            if how and await self._is_gone(target):
                return
            if by_records and copied.prints is not None:
                how = compare_records(copied.prints, copied, batches)
            if not how and copied.prints is None:
                by_records = codec_at(copied.base_offset, batches) != copied.codec
            if by_records and copied.prints is None:
                self._by_records.add(target)  # for later copies; this one cannot be compared
                self._leave_out(target)
                continue
            self._pop(target)
            if how:
                self._report_difference(target, copied, how)
            else:
                self.compared[copied.job] += copied.record_count

    async def _is_gone(self, target: TargetPartition) -> bool:
        """Whether the topic was deleted or recreated since the first waiting copy was made; then drops its
        copies.

        Raises: ClusterUnreachable, KafkaError, OSError, TimeoutError: It cannot be known now."""
        topic, former = target[0], self._waiting[target][0].topic_id
        present = (await self._target.topic_ids([topic])).get(topic)
        if present is not None and not (present and former and present != former):
            return False
        while target in self._waiting and self._waiting[target][0].topic_id == former:
            self._leave_out(target)
        return True

    async def _may_be_compacted(self, topic: str) -> bool:
        """Also true if the policy cannot be read."""
        found = (await describe(self._target, [topic], [CLEANUP_POLICY])).get(topic)
        return not isinstance(found, TopicSettings) or COMPACT in found.config.get(CLEANUP_POLICY, COMPACT)

    def _report_difference(self, target: TargetPartition, copied: ExpectedCopy, how: str) -> None:
        self.differing[copied.job] += copied.record_count
        (topic, partition), end = target, copied.base_offset + copied.record_count
        self._report_incident(
            "copy-differs",
            str(copied.job),
            f"{topic}-{partition} in {self._target.name} differs from what was sent: offsets "
            f"[{copied.base_offset}, {end}), copied from [{copied.source_start}, {copied.source_end}) of "
            f"{copied.job.topic}-{copied.job.partition}: {how}",
            "check whether the topic was recreated or truncated, and the brokers' disks; copy the range "
            "again",
        )
