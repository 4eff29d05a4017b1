"""Copies are read back and compared with what was sent, while copying goes on.

    acknowledged copy -> (where it is said to be, how many records, checksum of their bytes) -> waiting
                                                     the destination's log, a little at a time -> the same?

Of a slow flow everything is compared; of a fast one runs of `RUN_BYTES` of each partition in turn, as many as
`BYTES_PER_S` allow, so that it costs a few percent of what copying costs. The source's side of it is the
checksum that its own batches come with (`app.kafka.fetch`), and the bytes that were handed on. Where the
destination compresses anew, the counts are compared.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.util import calc_crc32c

from app.core.job import JobId
from app.core.rate import TokenBucket
from app.core.record_batch import HEADER_BYTES, BatchHeader, iter_batches
from app.core.verbatim import Copy
from app.kafka.append_seek import OFFSET_OUT_OF_RANGE
from app.kafka.clusters import EARLIEST, READ_UNCOMMITTED, ClusterClient, ClusterUnreachable

log = structlog.get_logger(__name__)

BYTES_PER_S = 2 * 1024 * 1024  # of a worker
RUN_BYTES = 128 * 1024
MAX_WAITING = 4_096  # copies
LOOK_S, RETRY_S = 0.5, 2.0
FETCH_WAIT_MS = 50
CONNECTION = "verify"
_CODEC = 0x07

checksum: Callable[..., int] = calc_crc32c
Tell = Callable[[str, str, str, str], None]  # kind, subject, message, remedy


class Copied(NamedTuple):
    """What is said to be in the destination at `base_offset`; `crc` is of the bytes of its records."""

    job: JobId
    base_offset: int
    record_count: int
    size_bytes: int
    crc: int
    codec: int
    source_start: int
    source_end: int


Target = tuple[str, int]  # topic, partition


def new_budget() -> TokenBucket:
    """A worker's."""
    return TokenBucket(BYTES_PER_S, BYTES_PER_S)


class Verifier:
    """See the module; of the replicas of one route on this worker. `budget`: bytes that all of them share.

    Attributes: `compared`, `differing` (records).
    """

    def __init__(self, target: ClusterClient, tell: Tell, budget: TokenBucket) -> None:
        self.compared = self.differing = 0
        self._target = target
        self._tell = tell
        self._waiting: dict[Target, deque[Copied]] = {}
        self._count = 0
        self._left_bytes: dict[Target, int] = {}  # of the run that each is in
        self._budget = budget

    def add(self, job: JobId, target: Target, base_offset: int, copy: Copy) -> None:
        """It was acknowledged. Left out when there is too much to compare."""
        left_bytes = self._left_bytes.get(target, 0)
        if left_bytes <= 0:
            now_s = time.monotonic()
            if self._count >= MAX_WAITING or self._budget.wait_s(now_s, RUN_BYTES):
                return
            self._budget.take(now_s, RUN_BYTES)
            left_bytes = RUN_BYTES
        size_bytes = len(copy.data)
        self._left_bytes[target] = left_bytes - size_bytes
        with memoryview(copy.data) as view, view[HEADER_BYTES:] as records:
            crc = checksum(records)
        copied = Copied(
            job, base_offset, copy.record_count, size_bytes, crc, copy.data[22] & _CODEC,
            copy.source_start, copy.source_end,
        )  # fmt: skip
        self._waiting.setdefault(target, deque()).append(copied)
        self._count += 1

    @property
    def waiting(self) -> int:
        """Copies that are to be compared."""
        return self._count

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            for target in list(self._waiting):
                try:
                    while target in self._waiting:
                        await self._compare_run(target)
                except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                    log.debug("copies cannot be compared now", target=target, error=repr(error))
                    await asyncio.sleep(RETRY_S)
                except Exception:
                    log.exception("a copy could not be compared and is left out", target=target)
                    self._take(target)

    def _take(self, target: Target) -> Copied:
        """The first that waits, which waits no longer."""
        waiting = self._waiting[target]
        copied = waiting.popleft()
        self._count -= 1
        if not waiting:
            del self._waiting[target]
        return copied

    def _run(self, target: Target) -> tuple[int, int]:
        """The bytes of the copies that follow on each other, and how many they are."""
        size_bytes = count = 0
        end = -1
        for copied in self._waiting[target]:
            if end not in {-1, copied.base_offset} or size_bytes > RUN_BYTES:
                break
            size_bytes, count = size_bytes + copied.size_bytes, count + 1
            end = copied.base_offset + copied.record_count
        return size_bytes, count

    async def _compare_run(self, target: Target) -> None:
        (topic, partition), first = target, self._waiting[target][0]
        node = await self._target.leader(topic, partition)
        if node is None:
            raise ClusterUnreachable(f"{topic}-{partition} has no leader")
        size_bytes, count = self._run(target)
        asked = [(topic, [(partition, first.base_offset, size_bytes)])]
        request = FetchRequest(FETCH_WAIT_MS, 1, size_bytes, READ_UNCOMMITTED, asked)
        response = await self._target.send(node, request, CONNECTION)
        ((_, ((_, code, *rest),)),) = response.topics
        if code == OFFSET_OUT_OF_RANGE:
            log_start = (await self._target.offsets([target], EARLIEST)).get(target)
            if log_start is None:
                raise ClusterUnreachable(f"{topic}-{partition} does not tell where it begins")
            self._take(target)
            if first.base_offset >= log_start:  # else it was deleted since, as the topic's retention wants it
                self._differs(target, first, "the copy's log ends before it")
            return
        if code:
            self._target.client.force_metadata_update()
            raise ClusterUnreachable(f"{topic}-{partition}: error {code}")
        found: dict[int, tuple[BatchHeader, int]] = {}
        end = first.base_offset
        for batch in iter_batches(rest[-1]):
            with batch.data[HEADER_BYTES:] as records:
                found[batch.header.base_offset] = batch.header, checksum(records)
            end = batch.header.next_offset
        if not found:
            raise ClusterUnreachable(f"{topic}-{partition} gives nothing at {first.base_offset}")
        while count and self._waiting[target][0].base_offset < end:
            count -= 1
            self._compare(target, self._take(target), found)

    def _compare(self, target: Target, copied: Copied, found: dict[int, tuple[BatchHeader, int]]) -> None:
        header, crc = found.get(copied.base_offset, (None, 0))
        if header is None:
            self._differs(target, copied, "no batch begins there")
        elif header.record_count != copied.record_count:
            self._differs(
                target, copied, f"{header.record_count} records are there instead of {copied.record_count}"
            )
        elif header.compression == copied.codec and crc != copied.crc:
            self._differs(target, copied, "its records are others")
        else:
            self.compared += copied.record_count

    def _differs(self, target: Target, copied: Copied, how: str) -> None:
        self.differing += copied.record_count
        (topic, partition), end = target, copied.base_offset + copied.record_count
        self._tell(
            "copy-differs",
            str(copied.job),
            f"{topic}-{partition} in {self._target.name} is not what was sent to it: offsets "
            f"[{copied.base_offset}, {end}), copied from [{copied.source_start}, {copied.source_end}) of "
            f"{copied.job.topic}-{copied.job.partition}: {how}",
            "see whether the topic was made anew or truncated, or its brokers' disks; copy the range again",
        )
