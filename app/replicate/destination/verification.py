"""Copies are read back and compared with what was sent, while copying goes on.

    acknowledged copy -> (where it is said to be, how many records, checksum of their bytes) -> waiting
                                                     the destination's log, a little at a time -> the same?

Of a slow flow everything is compared; of a fast one runs of `RUN_BYTES` of each partition in turn, as many as
`BYTES_PER_S` allow, so that it costs a few percent of what copying costs. Of a route that asks for all
everything is, and copying waits while `MAX_BEHIND` of its copies wait.

What was sent as it came is compared by the checksum of its bytes. What was encoded anew is compared record by
record with what was read from the source: timestamp (unless the destination gives its own), key, value,
headers. So is everything where the destination compresses anew, or compacts: there only what is still there
can be compared.

Where copies could not be read back for `UNREAD_S` that is told, and what waits is given up: from then on one
copy at a time is tried.

A position does not wait for its copies to be compared. So of a route that compares all, what could not be is
counted as `uncompared`: what was acknowledged without an offset, could not be read back, was gone by then, or
still waited when its worker ended. That goes on with the position, in the note
(`app.replicate.destination.handover`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable
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
from app.kernel.job import JobId
from app.kernel.token_bucket import TokenBucket
from app.replicate.destination.comparison import ExpectedCopy, codec_at, compare, compare_records, print_of
from app.replicate.destination.predecessor import rows_of

log = structlog.get_logger(__name__)

BYTES_PER_S = 2 * 1024 * 1024  # of a worker
RUN_BYTES = 128 * 1024
RECORDS_COST = 4  # comparing by records costs so many times what comparing bytes does
MAX_BEHIND = 2_000  # copies of a route of which all are compared
MAX_WAITING = 200_000  # of a worker: copies, and those of their records that are compared one by one
VERIFY_POLL_INTERVAL_S, VERIFY_RETRY_INTERVAL_S = 0.5, 2.0
UNREAD_S = 60.0
FETCH_WAIT_MS = 50
CONNECTION = "verify"
CLEANUP_POLICY, COMPACT = "cleanup.policy", "compact"
_CODEC = 0x07

ReportIncident = Callable[[str, str, str, str], None]  # kind, subject, message, remedy


TargetPartition = tuple[str, int]  # topic, partition


class VerificationBudget:
    """A worker's: `bytes` that are compared, and how much waits for it."""

    def __init__(self, bytes_per_s: float = BYTES_PER_S) -> None:
        self.bytes = TokenBucket(bytes_per_s, bytes_per_s)
        self.waiting = 0


class CopyUnreadable(ClusterUnreachable):
    """What was copied cannot be read."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(slots=True)
class _Trouble:
    """A target cannot be read."""

    since_s: float
    retry_at_s: float = 0.0
    is_given_up: bool = False
    is_told: bool = False


class CopyVerifier:
    """See the module; of the replicas of one route on this worker. `budget`: what all of a worker share.

    Attributes:
        compared, differing: records, by job.
        uncompared: records, by job, which were to be compared, as all were, and could not be; by whomever.
        everything: none is left out.
    """

    def __init__(
        self, target: ClusterClient, report_incident: ReportIncident, budget: VerificationBudget
    ) -> None:
        self.compared, self.differing = Counter[JobId](), Counter[JobId]()
        self.uncompared, self._owed = Counter[JobId](), Counter[JobId]()  # the latter wait
        self._unnoted = Counter[JobId]()  # of those at most so many came after the last note was made
        self.everything = False
        self._target = target
        self._report_incident = report_incident
        self._waiting: dict[TargetPartition, deque[ExpectedCopy]] = {}
        self._count = 0
        self._left_bytes: dict[TargetPartition, int] = {}  # of the run that each is in
        self._budget = budget
        self._by_records: set[TargetPartition] = set()  # as the destination changes the bytes of batches
        self._troubles: dict[TargetPartition, _Trouble] = {}

    def add(
        self, job: JobId, target: TargetPartition, base_offset: int, copy: VerbatimCopy, topic_id: str = ""
    ) -> None:
        """It was acknowledged, by the destination of this id. Left out when there is too much to compare."""
        left_bytes, trouble = self._left_bytes.get(target, 0), self._troubles.get(target)
        if trouble is not None and trouble.is_given_up and target in self._waiting:
            self.pass_by(job, copy.record_count)
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
            except Exception as error:  # noqa: BLE001 - whatever the decoder raises: the bytes went as they were
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
        self._owed[job] += copied.record_count
        self._unnoted[job] += copied.record_count
        self._budget.waiting += copied.weight

    def start_replica(self, job: JobId, uncompared: int) -> None:
        """A replica begins, maybe again: when its position was saved so many copies were not compared, by
        whomever; those that still wait here are among them, but for the last, which came after it."""
        noted = max(0, self._waits(job) - self._unnoted[job])
        self.uncompared[job] = max(0, uncompared - noted)

    def noted(self, job: JobId, acknowledged: int, covered: int | None) -> None:
        """A note of what the job owes was saved: when it was made, `covered` of the records were acknowledged
        (None: nobody knows); by now so many are."""
        if covered is not None:
            self._unnoted[job] = acknowledged - covered

    def pass_by(self, job: JobId, record_count: int) -> None:
        """So many copies of the job are not compared, and will not be."""
        if self.everything:
            self.uncompared[job] += record_count

    def owes(self, job: JobId) -> int:
        """Of all that was acknowledged so many copies would stay uncompared if this ended now."""
        return self.uncompared[job] + self._waits(job)

    def _waits(self, job: JobId) -> int:
        """Copies that are not left out, and not compared yet."""
        return self._owed[job] if self.everything else 0

    def is_comparing(self, job: JobId, target: TargetPartition) -> bool:
        """Nothing may be left out, and what waits will soon be compared."""
        return self.everything and self._owed[job] > 0 and target not in self._troubles

    @property
    def waiting(self) -> int:
        """Copies that are to be compared."""
        return self._count

    @property
    def is_behind(self) -> bool:
        """Nothing may be left out, and too many wait."""
        return self.everything and self._count >= MAX_BEHIND

    async def run(self) -> None:
        """For ever."""
        gets_on = True
        while True:
            hurries = gets_on and self.everything and self._count > MAX_BEHIND // 4
            await asyncio.sleep(0 if hurries else VERIFY_POLL_INTERVAL_S)
            gets_on = False
            for target in list(self._waiting):
                trouble = self._troubles.get(target)
                if target in self._waiting and not (trouble and time.monotonic() < trouble.retry_at_s):
                    gets_on = await self._verify(target) or gets_on

    async def _verify(self, target: TargetPartition) -> bool:
        """Compares all that waits now; what comes meanwhile waits for the next look: it would be asked for
        copy by copy. Returns whether anything could be read."""
        gets_on, last = False, self._waiting[target][-1].base_offset
        try:
            try:
                while target in self._waiting and self._waiting[target][0].base_offset <= last:
                    await self._compare_run(target)
                    gets_on = True
                    self._troubles.pop(target, None)
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                await self._failed(target, error)
        except Exception:
            log.exception("a copy could not be compared and is left out", target=target)
            if target in self._waiting:  # else it was the last, and is told already
                self._leave_out(target)
            self._troubles.pop(target, None)  # it was read
        return gets_on

    async def _failed(self, target: TargetPartition, error: Exception) -> None:
        """Copies cannot be read now."""
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
        if not any(one.is_told for (topic, _), one in self._troubles.items() if topic == target[0]):
            trouble.is_told = True
            remedy = "see whether the destination's brokers run; it is tried again by itself"
            self._report_incident(
                "verify-trouble",
                str(self._waiting[target][0].job),
                f"copies in {target[0]} of {self._target.name} could not be read back for "
                f"{now_s - trouble.since_s:.0f} s and are not compared meanwhile: {error or repr(error)}",
                error.remedy if isinstance(error, CopyUnreadable) else remedy,
            )
        self._drop(target)

    def close(self) -> None:
        """Nothing is compared any more."""
        if self.everything and self._count:
            log.warning("copies were not compared before their worker let go", records=self._owed.total())
        for target in list(self._waiting):
            self._drop(target)

    def _drop(self, target: TargetPartition) -> None:
        while target in self._waiting:
            self._leave_out(target)

    def _leave_out(self, target: TargetPartition) -> None:
        """The first that waits cannot be compared."""
        copied = self._pop(target)
        self.pass_by(copied.job, copied.record_count)

    def _pop(self, target: TargetPartition) -> ExpectedCopy:
        """The first that waits, which waits no longer."""
        waiting = self._waiting[target]
        copied = waiting.popleft()
        self._count -= 1
        self._owed[copied.job] -= copied.record_count
        self._budget.waiting -= copied.weight
        if not waiting:
            del self._waiting[target]
        return copied

    def _run(self, target: TargetPartition) -> tuple[int, int]:
        """The bytes of the copies that follow on each other, and how many they are."""
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
        asked = [(topic, [(partition, first.base_offset, size_bytes)])]
        request = FetchRequest(FETCH_WAIT_MS, 1, size_bytes, READ_UNCOMMITTED, asked)
        response = await self._target.send(node, request, CONNECTION)
        _, code, *rest = only_partition(response)
        if code == OFFSET_OUT_OF_RANGE:
            log_start = (await self._target.offsets([target], EARLIEST)).get(target)
            if log_start is None:
                raise ClusterUnreachable(f"{topic}-{partition} does not tell where it begins")
            # Else it was deleted since, as the topic's retention wants it.
            is_cut = first.base_offset >= log_start
            if is_cut and await self._is_gone(target):
                return
            if is_cut:
                self._pop(target)
                self._differs(target, first, "the copy's log ends before it")
            else:
                self._leave_out(target)
            return
        if code:
            self._target.client.force_metadata_update()
            spec = self._target.spec
            raise CopyUnreadable(refusal(code, spec, topic, partition), remedy_of(code, spec, topic))
        batches = list(iter_batches(rest[-1]))
        if not batches:
            raise ClusterUnreachable(f"{topic}-{partition} gives nothing at {first.base_offset}")
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
                self._by_records.add(target)  # from now on; this one cannot be compared
                self._leave_out(target)
                continue
            self._pop(target)
            if how:
                self._differs(target, copied, how)
            else:
                self.compared[copied.job] += copied.record_count

    async def _is_gone(self, target: TargetPartition) -> bool:
        """Whether the topic was deleted, or made anew, since the first that waits was copied: then all that
        were copied into that one wait no longer.

        Raises: ClusterUnreachable, KafkaError, OSError, TimeoutError: it cannot be known now.
        """
        topic, former = target[0], self._waiting[target][0].topic_id
        present = (await self._target.topic_ids([topic])).get(topic)
        if present is not None and not (present and former and present != former):
            return False
        while target in self._waiting and self._waiting[target][0].topic_id == former:
            self._leave_out(target)
        return True

    async def _may_be_compacted(self, topic: str) -> bool:
        """Also where nobody may know."""
        found = (await describe(self._target, [topic], [CLEANUP_POLICY])).get(topic)
        return not isinstance(found, TopicSettings) or COMPACT in found.config.get(CLEANUP_POLICY, COMPACT)

    def _differs(self, target: TargetPartition, copied: ExpectedCopy, how: str) -> None:
        self.differing[copied.job] += copied.record_count
        (topic, partition), end = target, copied.base_offset + copied.record_count
        self._report_incident(
            "copy-differs",
            str(copied.job),
            f"{topic}-{partition} in {self._target.name} is not what was sent to it: offsets "
            f"[{copied.base_offset}, {end}), copied from [{copied.source_start}, {copied.source_end}) of "
            f"{copied.job.topic}-{copied.job.partition}: {how}",
            "see whether the topic was made anew or truncated, or its brokers' disks; copy the range again",
        )
