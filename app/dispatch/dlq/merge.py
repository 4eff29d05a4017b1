"""Merges a DLQ back to its workload: copies into the workload's merge topic, exactly once.

    chunk of letters -> judge each -> [ copies + next offset with counts ] in one Kafka transaction

Rules
1. What is merged is fixed at the start: letters that arrive later are left for a later merge.
2. Copies and the progress that counts them are one transaction, acknowledged by all in-sync replicas. A
   merge that is killed goes on from its last transaction; of an open one nobody ever sees a copy, since
   the data plane reads committed records only.
3. One merge a queue: the transactional id is the queue's, so that a merge which begins ends (fences) one
   that is still at work, and then reads what that one has done.
4. After any trouble the state is read back from Kafka: what is in memory may not have happened.
5. A letter whose copy the broker refuses, for its size or by the topic's settings, is left and counted; the
   others go on.
6. A letter whose value was left out has a transaction of its own: several such values may not fit into memory
   together.
7. A purge by query (`purge`) is a merge that copies nothing; it counts what it takes.
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
MAX_COPY_BYTES = 32 * 1024 * 1024  # above what a DLQ takes: a copy's headers may be longer
RETENTION_MS = 7 * 24 * 3_600_000
SENT_AT_ONCE = 50  # before the loop, which pushes messages too, gets its turn
QUIET_CHUNKS = 20  # chunks without a copy before their progress is committed
MAX_FAILURES = 6  # in a row, without a transaction between
BACKOFF_S = 0.5
REFUSALS = (*TOO_LARGE_ERRORS, *RECORD_INVALID)  # no timestamp's: it is this moment, not the letter's

ReportOperation = Callable[[OperationProgress], None]


class MergeSuperseded(RuntimeError):
    """Another merge of the same queue began; this one has stopped."""


class UnknownOperation(LookupError):
    """Nothing is remembered of the operation that is to go on."""


class Merger:
    """One operation on one queue. `state` is None until it is known."""

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
            raise BadQuery(f"rate: must be above 0 and at most {MAX_RATE:.0f} a second")
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
        self._others: frozenset[str] | None = None
        self._careful: dict[int, int] = {}  # partition -> up to here one letter a transaction
        self._refused: set[tuple[int, int]] = set()

    async def run(
        self, terms: OperationTerms | None = None, spans: Mapping[int, Span] | None = None
    ) -> OperationProgress:
        """Begins with `terms` over `spans`, or goes on with what is remembered of this operation.

        An operation that is remembered goes on under its own terms and bounds, whatever is given here.

        Raises:
            NoQueue; UnknownOperation: nothing is remembered and nothing given; Superseded
            ClusterUnreachable, KafkaError, TimeoutError: tried again in vain; it can go on later.
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
                log.warning("a merge is tried again", operation=self.operation, error=repr(error))
                await asyncio.sleep(BACKOFF_S * failures)
            else:
                assert self.state is not None
                return self.state

    def _done_so_far(self) -> int:
        parts = self.state.parts.values() if self.state else ()
        return len(self._refused) + len(self._careful) + sum(part.next_offset for part in parts)

    def _superseded(self) -> MergeSuperseded:
        return MergeSuperseded(
            f"another merge or purge of {self._workload.key} began and ended this one; what it did counts. "
            f"Go on with operation {self.operation} when the other has ended"
        )

    async def _prepare_topic(self, count: int) -> None:
        limits = {KEPT_MS: str(RETENTION_MS), MOST_BYTES: str(MAX_COPY_BYTES)}
        config = {POLICY: DELETE, **limits}
        await ensure_topics(self._client, [TopicSpec(self._topic, count, config=config)])
        self._partitions = await self._client.partitions(self._topic) or 1

    # -- one attempt -----------------------------------------------------------------------------

    async def _attempt(self, terms: OperationTerms | None, spans: Mapping[int, Span] | None) -> None:
        async with _transactional(self._client, stem(self._workload)) as producer:
            # The producer has started: whoever was at work before is fenced, and all it did is decided.
            ends = await queue_ends(self._client, self._queue)
            known = await merges_of(self._client, self._workload, ends)
            others = frozenset(known) - {self.operation}
            if self._others is not None and others - self._others:
                raise self._superseded()
            self._others = others
            self.state = known.get(self.operation)
            if self.state is None:
                if terms is None or spans is None:
                    raise UnknownOperation(
                        f"nothing is remembered of operation {self.operation} on {self._workload.key}"
                    )
                self.state = await self._start(producer, terms, spans)
            self._report_progress(self.state)
            if not self.state.terms.purge:
                await self._prepare_topic(len(ends))
            past = self.state.terms.heeded(known[name] for name in sorted(others))
            certain = [known[name].past(certain=True) for name in sorted(others)]
            async with (
                reading(self._client, self._queue) as reader,
                reading_left_out(self._client, self._workload) as left_out,
            ):

                async def judged(letter: DeadLetter) -> tuple[DeadLetter, str]:
                    return await left_out.judged(letter, self._judge(letter, past), certain)

                for partition in sorted(self.state.parts):
                    first = ends.get(partition, (0, 0))[0]
                    await self._partition(producer, reader, judged, partition, first)

    async def _start(
        self, producer: AIOKafkaProducer, terms: OperationTerms, spans: Mapping[int, Span]
    ) -> OperationProgress:
        parts = {partition: PartitionProgress(start, end, start) for partition, (start, end) in spans.items()}
        begun = OperationProgress(self.operation, terms, parts)
        if parts:
            async with one_transaction(producer):
                commits = {
                    TopicPartition(self._queue, number): OffsetAndMetadata(part.start, pack(terms, part))
                    for number, part in parts.items()
                }
                await producer.send_offsets_to_transaction(commits, self._group)
        return begun

    async def _partition(
        self,
        producer: AIOKafkaProducer,
        reader: QueueReader,
        judged: Callable[[DeadLetter], Awaitable[tuple[DeadLetter, str]]],
        partition: int,
        first: int,
    ) -> None:
        assert self.state is not None
        part = self.state.parts[partition]
        gone = min(first, part.end) - part.next_offset
        if gone > 0:
            part = replace(part.plus(EXPIRED, gone), next_offset=part.next_offset + gone)
            await self._transaction(producer, partition, part, [])
        careful = min(self._careful.get(partition, 0), part.end)
        most = max(1, min(CHUNK_LETTERS, int(self._rate)))
        steps = [(part.next_offset, careful, 1), (max(part.next_offset, careful), part.end, most)]
        quiet = 0
        for start, end, at_once in steps:
            if start >= end:
                continue
            async for found, found_end in reader.chunks(partition, (start, end), at_once):
                for letters, next_offset in _pieces(found, found_end):
                    began_s = time.monotonic()
                    verdicts = [await judged(letter) for letter in letters]
                    part = part.after(next_offset, [verdict for _, verdict in verdicts])
                    copies = [letter for letter, verdict in verdicts if verdict == MergeVerdict.MERGE]
                    quiet = 0 if copies or part.done or quiet >= QUIET_CHUNKS else quiet + 1
                    if not quiet:
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
        """Rule 2."""
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
                self._careful[partition] = part.next_offset
            raise  # the producer cannot be used on (its sequence has a hole): all begins with a new one
        self.state = replace(self.state, parts={**self.state.parts, partition: part})
        self._report_progress(self.state)

    def _report_progress(self, state: OperationProgress) -> None:
        if self._report is not None:
            self._report(state)


def _pieces(letters: list[DeadLetter], end: int) -> Iterator[tuple[list[DeadLetter], int]]:
    """The letters in order, and the offset behind each piece: rule 6."""
    piece: list[DeadLetter] = []
    for letter in letters:
        if letter.left_out_bytes is not None or (piece and piece[-1].left_out_bytes is not None):
            if piece:
                yield piece, letter.offset
            piece = []
        piece.append(letter)
    yield piece, end


async def end_merges(client: ClusterClient, workload: Workload) -> None:
    """Ends a merge or purge that is at work on the workload's queue (rule 3); what it has done counts.

    Raises:
        KafkaError, TimeoutError: that is not certain.
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
