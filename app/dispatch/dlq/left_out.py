"""Finds the value that a dead letter lacks, in the record that has it (`DeadLetter.left_out_bytes`).

Headers are untrusted, so only records in the workload's own topics count. Otherwise a merge would deliver
records of any topic that the worker may read. The record found must have the letter's key and a value of
the same length. The original record must also have the original timestamp. The headers of a copy must name
the same original record. Topic ids must match if both are known: workers of an earlier version wrote none.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from app.dispatch.definition import Workload
from app.dispatch.dlq.letter import DeadLetter
from app.dispatch.dlq.reader import NoQueue, QueueReader, queue_ends, reading
from app.dispatch.dlq.rules import MergeVerdict, PastOperation, Span
from app.dispatch.model.retry_headers import (
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
    PREFIX,
    ValuePlace,
)
from app.kafka.client.cluster import ClusterClient


class LeftOutReader:
    """Made by `reading_left_out`; keeps one consumer for each topic."""

    def __init__(self, client: ClusterClient, workload: Workload, stack: AsyncExitStack) -> None:
        self._client = client
        topic, group = workload.metadata.topic, workload.metadata.group
        self._own = {topic, workload.delayed_topic(), workload.merge_topic()}
        self._tier = re.compile(rf"{re.escape(f'{topic}__{group}__retry_')}\d{{1,2}}")  # removed tiers, too
        self._stack = stack
        self._topics: dict[str, tuple[str, dict[int, Span], QueueReader] | None] = {}

    async def judge(
        self, letter: DeadLetter, verdict: str, certain: Iterable[PastOperation]
    ) -> tuple[DeadLetter, str]:
        """The letter with its value, if one was needed and found, and its verdict.

        Args:
            verdict: The letter's verdict if it lacked nothing.
            certain: Earlier operations, without partitions where a letter got no copy.

        Raises:
            KafkaError, ClusterUnreachable, TimeoutError: The place cannot be read now.
        """
        if letter.left_out_bytes is None or verdict not in {MergeVerdict.MERGE, MergeVerdict.BEFORE}:
            return letter, verdict
        if verdict == MergeVerdict.BEFORE and any(merge.took(letter) for merge in certain):
            return letter, verdict
        whole = await self.complete(letter)
        return (letter, MergeVerdict.LEFT_OUT) if whole is None else (whole, verdict)

    async def complete(self, letter: DeadLetter) -> DeadLetter | None:
        """The letter with its key, value and the producer's headers, from the first of its `value_places`
        that has them; None: none has.

        Raises:
            KafkaError, ClusterUnreachable, TimeoutError: A place cannot be read now.
        """
        for place in letter.value_places if not letter.raw else ():
            found = await self._record_at(place)
            if found is not None and _is_same_message(found, letter, place):
                kept = [header for header in letter.headers if header[0].startswith(PREFIX)]
                original = [header for header in found.headers if not header[0].startswith(PREFIX)]
                return replace(
                    letter, key=found.key, value=found.value, headers=(*original, *kept), left_out_bytes=None
                )
        return None

    async def _record_at(self, place: ValuePlace) -> DeadLetter | None:
        """The record there, if it is in one of the workload's topics and still in the log."""
        if place.topic not in self._own and not self._tier.fullmatch(place.topic):
            return None
        if place.topic not in self._topics:
            self._topics[place.topic] = await self._open(place.topic)
        opened = self._topics[place.topic]
        if opened is None:
            return None
        topic_id, ends, reader = opened
        first, end = ends.get(place.partition, (0, 0))
        if not first <= place.offset < end or (place.topic_id and topic_id and place.topic_id != topic_id):
            return None
        async for found, _ in reader.chunks(place.partition, (place.offset, place.offset + 1), 1):
            for record in found:
                return record
        return None

    async def _open(self, topic: str) -> tuple[str, dict[int, Span], QueueReader] | None:
        try:
            ends = await queue_ends(self._client, topic)
        except NoQueue:
            return None
        topic_id = (await self._client.topic_ids([topic])).get(topic, "")
        reader = await self._stack.enter_async_context(reading(self._client, topic))
        return topic_id, ends, reader


def _is_same_message(found: DeadLetter, letter: DeadLetter, place: ValuePlace) -> bool:
    if len(found.value or b"") != letter.left_out_bytes:
        return False
    if letter.left_out_key_bytes is None:
        if found.key != letter.key:
            return False
    elif len(found.key or b"") != letter.left_out_key_bytes:
        return False
    origin = [letter.header_text(name) for name in (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET)]
    if origin == [place.topic, str(place.partition), str(place.offset)]:
        return letter.header_text(ORIGIN_TIMESTAMP) in (None, str(found.timestamp_ms))
    names = (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_TIMESTAMP)
    return all(found.header_text(name) == letter.header_text(name) for name in names)


@asynccontextmanager
async def reading_left_out(client: ClusterClient, workload: Workload) -> AsyncIterator[LeftOutReader]:
    """Makes a reader for the workload's letters, and closes its consumers."""
    async with AsyncExitStack() as stack:
        yield LeftOutReader(client, workload, stack)
