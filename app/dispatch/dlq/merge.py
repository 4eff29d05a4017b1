"""Merges a DLQ back to its workload: copies letters into the workload's merge topic, exactly once.

    chunk of letters -> judge each -> [ copies + next offset with counts ] in one Kafka transaction

Rules (tests/dispatch/dlq/test_merge.py)
1. The offsets to merge are fixed at the start. Letters that arrive later wait for another merge.
2. One transaction holds the copies and the progress that counts them, and all in-sync replicas acknowledge
   it. A killed merge resumes after its last committed transaction. Copies of an open transaction are never
   delivered, because dispatch reads committed records only.
3. A queue has one merge at a time, because all its merges share a transactional id. A merge that begins
   fences the running one, and then reads its committed progress.
4. After any error the state is read from Kafka again: the transaction in memory may have been aborted.
5. If the broker refuses a copy for its size or by a topic setting, the letter stays and is counted. The
   merge continues with the other letters.
6. A letter that lacks its value gets its own transaction, because several such values may not fit into
   memory together.
7. A purge by query (`purge`) is a merge that copies nothing: it counts the letters that it takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from app.dispatch.definition import Workload
from app.dispatch.dlq.left_out import reading_left_out
from app.dispatch.dlq.letter import DeadLetter
from app.dispatch.dlq.operation_history import merges_of
from app.dispatch.dlq.operation_progress import (
    EXPIRED,
    REFUSED,
    OperationProgress,
    OperationTerms,
    PartitionProgress,
    check_operation,
    pack,
    stem,
)
from app.dispatch.dlq.query import BadQuery
from app.dispatch.dlq.reader import CHUNK_LETTERS, QueueReader, queue_ends, reading
from app.dispatch.dlq.rules import DEFAULT_RATE, MergeVerdict, PastOperation, Span, copy_headers
from app.kafka.append import any_size
from app.kafka.append.errors import RECORD_INVALID, TOO_LARGE_ERRORS
from app.kafka.append.transactions import one_transaction, transactional
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.needed_settings import DELETE, KEPT_MS, MOST_BYTES, POLICY
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kernel.clock import now_ms

log = structlog.get_logger(__name__)

MAX_RATE = 1_000_000.0
MAX_COPY_BYTES = 32 * 1024 * 1024  # above a DLQ's limit, because a copy's headers may be longer
RETENTION_MS = 7 * 24 * 3_600_000
SENT_AT_ONCE = 50  # before the event loop, which also delivers messages, gets a turn
QUIET_CHUNKS = 20  # chunks without a copy before their progress is committed
MAX_FAILURES = 6  # in a row, without progress in between
BACKOFF_S = 0.5
# Errors about timestamps are not included: a copy gets the present time, so the letter is not to blame.
REFUSALS = (*TOO_LARGE_ERRORS, *RECORD_INVALID)

ReportOperation = Callable[[OperationProgress], None]


class MergeSuperseded(RuntimeError):
    """Another merge of the same queue has begun, and fenced this one."""


class UnknownOperation(LookupError):
    """Kafka has no record of the operation that is to be resumed."""


class Merger:
    """One operation on one queue. `state` is None until it has been read or recorded."""

    def __init__(
        self,
        client: ClusterClient,
        workload: Workload,
        operation: str,
        *,
        rate: float = DEFAULT_RATE,
        report: ReportOperation | None = None,
    ) -> None:
        if not 0 < rate <= MAX_RATE:
            raise BadQuery(f"rate: must be above 0 and at most {MAX_RATE:.0f} letters a second")
        self.operation = check_operation(operation)
        self.state: OperationProgress | None = None
        self._client = client
        self._workload = workload
        self._rate = rate
        self._report = report
        self._group = f"{stem(workload)}.{operation}"
        self._queue = workload.dlq_topic()
        self._topic = workload.merge_topic()
        self._partitions = 1
        self._other_operations: frozenset[str] | None = None
        self._single_until: dict[int, int] = {}  # partition -> one letter a transaction below this offset
        self._refused: set[tuple[int, int]] = set()

    async def run(
        self, terms: OperationTerms | None = None, spans: Mapping[int, Span] | None = None
    ) -> OperationProgress:
        """Resumes a recorded operation under its own terms and bounds, else begins with `terms` over `spans`.

        Raises:
            NoQueue; UnknownOperation: There is no record, and `terms` or `spans` is missing; MergeSuperseded
            ClusterUnreachable, KafkaError, TimeoutError: All retries failed; it can be resumed later.
        """
        failures = 0
        while True:
            before = self._done_so_far()
            try:
                await self._attempt(terms, spans)
            except ProducerFenced as error:
                raise self._superseded() from error
            except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
                failures = 1 if self._done_so_far() > before else failures + 1
                if failures > MAX_FAILURES:
                    raise
                log.warning("a merge failed and is retried", operation=self.operation, error=repr(error))
                await asyncio.sleep(BACKOFF_S * failures)
            else:
                assert self.state is not None
                return self.state

    def _done_so_far(self) -> int:
        parts = self.state.parts.values() if self.state else ()
        return len(self._refused) + len(self._single_until) + sum(part.next_offset for part in parts)

    def _superseded(self) -> MergeSuperseded:
        return MergeSuperseded(
            f"another merge or purge of {self._workload.key} began and stopped this one. "
            f"What this one has done counts. Resume operation {self.operation} when the other has ended"
        )

    async def _prepare_topic(self, count: int) -> None:
        limits = {KEPT_MS: str(RETENTION_MS), MOST_BYTES: str(MAX_COPY_BYTES)}
        config = {POLICY: DELETE, **limits}
        await ensure_topics(self._client, [TopicSpec(self._topic, count, config=config)])
        self._partitions = await self._client.partitions(self._topic) or 1

    # -- one attempt -----------------------------------------------------------------------------

    async def _attempt(self, terms: OperationTerms | None, spans: Mapping[int, Span] | None) -> None:
        async with _transactional(self._client, stem(self._workload)) as producer:
            # The producer's start has fenced a running merge and ended its transaction (rule 3).
            ends = await queue_ends(self._client, self._queue)
            operations = await merges_of(self._client, self._workload, ends)
            other_operations = frozenset(operations) - {self.operation}
            if self._other_operations is not None and other_operations - self._other_operations:
                raise self._superseded()
            self._other_operations = other_operations
            self.state = operations.get(self.operation)
            if self.state is None:
                if terms is None or spans is None:
                    raise UnknownOperation(
                        f"{self._workload.key} has no record of operation {self.operation}; begin a new one"
                    )
                self.state = await self._start(producer, terms, spans)
            self._report_progress(self.state)
            if not self.state.terms.purge:
                await self._prepare_topic(len(ends))
            past = self.state.terms.past_of(operations[name] for name in sorted(other_operations))
            certain = [operations[name].past(certain=True) for name in sorted(other_operations)]
            async with (
                reading(self._client, self._queue) as reader,
                reading_left_out(self._client, self._workload) as left_out,
            ):

                async def judge(letter: DeadLetter) -> tuple[DeadLetter, str]:
                    return await left_out.judge(letter, self._judge(letter, past), certain)

                for partition in sorted(self.state.parts):
                    first = ends.get(partition, (0, 0))[0]
                    await self._partition(producer, reader, judge, partition, first)

    async def _start(
        self, producer: AIOKafkaProducer, terms: OperationTerms, spans: Mapping[int, Span]
    ) -> OperationProgress:
        parts = {partition: PartitionProgress(start, end, start) for partition, (start, end) in spans.items()}
        state = OperationProgress(self.operation, terms, parts)
        if parts:
            async with one_transaction(producer):
                commits = {
                    TopicPartition(self._queue, number): OffsetAndMetadata(part.start, pack(terms, part))
                    for number, part in parts.items()
                }
                await producer.send_offsets_to_transaction(commits, self._group)
        return state

    async def _partition(
        self,
        producer: AIOKafkaProducer,
        reader: QueueReader,
        judge: Callable[[DeadLetter], Awaitable[tuple[DeadLetter, str]]],
        partition: int,
        first: int,
    ) -> None:
        assert self.state is not None
        part = self.state.parts[partition]
        expired = min(first, part.end) - part.next_offset
        if expired > 0:
            part = replace(part.plus(EXPIRED, expired), next_offset=part.next_offset + expired)
            await self._transaction(producer, partition, part, [])
        single_until = min(self._single_until.get(partition, 0), part.end)
        limit = max(1, min(CHUNK_LETTERS, int(self._rate)))
        steps = [(part.next_offset, single_until, 1), (max(part.next_offset, single_until), part.end, limit)]
        idle_chunks = 0
        for start, end, chunk_letters in steps:
            if start >= end:
                continue
            async for found, found_end in reader.chunks(partition, (start, end), chunk_letters):
                for letters, next_offset in _pieces(found, found_end):
                    began_s = time.monotonic()
                    verdicts = [await judge(letter) for letter in letters]
                    part = part.after(next_offset, [verdict for _, verdict in verdicts])
                    copies = [letter for letter, verdict in verdicts if verdict == MergeVerdict.MERGE]
                    idle_chunks = 0 if copies or part.done or idle_chunks >= QUIET_CHUNKS else idle_chunks + 1
                    if not idle_chunks:
                        await self._transaction(producer, partition, part, copies)
                    await asyncio.sleep(max(0.0, len(copies) / self._rate - (time.monotonic() - began_s)))

    def _judge(self, letter: DeadLetter, past: list[PastOperation]) -> str:
        assert self.state is not None
        if (letter.partition, letter.offset) in self._refused:
            return REFUSED
        return self.state.terms.judge(letter, past)

    async def _transaction(
        self, producer: AIOKafkaProducer, partition: int, part: PartitionProgress, copies: list[DeadLetter]
    ) -> None:
        assert self.state is not None
        progress = OffsetAndMetadata(part.next_offset, pack(self.state.terms, part))
        try:
            async with one_transaction(producer):
                sent = []
                for number, letter in enumerate(copies, 1):
                    headers, target = copy_headers(letter, now_ms()), letter.partition % self._partitions
                    sent.append(
                        await any_size.send(
                            producer, self._topic, target, letter.key, letter.value, headers,
                            most_bytes=MAX_COPY_BYTES, is_transactional=True,
                        )
                    )  # fmt: skip
                    if number % SENT_AT_ONCE == 0:
                        await asyncio.sleep(0)
                await asyncio.gather(*sent)
                await producer.send_offsets_to_transaction(
                    {TopicPartition(self._queue, partition): progress}, self._group
                )
        except REFUSALS:
            if len(copies) == 1:
                self._refused.add((copies[0].partition, copies[0].offset))
            else:
                self._single_until[partition] = part.next_offset
            raise  # its sequence has a gap, so the next attempt needs a new producer
        self.state = replace(self.state, parts={**self.state.parts, partition: part})
        self._report_progress(self.state)

    def _report_progress(self, state: OperationProgress) -> None:
        if self._report is not None:
            self._report(state)


def _pieces(letters: list[DeadLetter], end: int) -> Iterator[tuple[list[DeadLetter], int]]:
    """The letters in order, cut for rule 6; each piece with the offset that follows it."""
    piece: list[DeadLetter] = []
    for letter in letters:
        if letter.left_out_bytes is not None or (piece and piece[-1].left_out_bytes is not None):
            if piece:
                yield piece, letter.offset
            piece = []
        piece.append(letter)
    yield piece, end


async def end_merges(client: ClusterClient, workload: Workload) -> None:
    """Ends a running merge or purge of the workload's queue (rule 3); its committed results count.

    Raises:
        KafkaError, TimeoutError: It may still run.
    """
    async with _transactional(client, stem(workload)):
        pass


def _transactional(
    client: ClusterClient, transactional_id: str
) -> AbstractAsyncContextManager[AIOKafkaProducer]:
    return transactional(
        client,
        transactional_id,
        max_request_bytes=MAX_COPY_BYTES,
        value_serializer=any_size.serialized,
    )
