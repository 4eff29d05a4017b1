"""The last events of a partition of the audit topic before an offset: who takes its tables over folds them in
once more, since the last values that were made of them may not have arrived in the changelogs.
"""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from app.clock import now_ms
from app.control.tail import STOP_S, bounded

MARGIN_MS = 60_000  # what was sent to a changelog so long ago has arrived
MARGIN_EVENTS = 1_000  # and these at least: the topic is idle, or a clock is wrong
POLL_MS = 500

Events = list[tuple[int, bytes | None]]  # offsets and values


class Margin:
    """See the module. Raises KafkaError, OSError: they cannot be read now."""

    def __init__(self, topic: str, kafka_options: dict[str, Any]) -> None:
        self._topic = topic
        self._options = kafka_options

    async def before(self, partition: int, offset: int) -> Events:
        """The events of the last minute below `offset`, a thousand at least."""
        at, found = TopicPartition(self._topic, partition), Events()
        consumer = AIOKafkaConsumer(enable_auto_commit=False, auto_offset_reset="earliest", **self._options)
        await consumer.start()
        try:
            consumer.assign([at])
            start = (await consumer.beginning_offsets([at]))[at]
            lately = (await consumer.offsets_for_times({at: now_ms() - MARGIN_MS}))[at]
            first = offset - MARGIN_EVENTS if lately is None else min(lately.offset, offset - MARGIN_EVENTS)
            consumer.seek(at, max(start, first))
            while await consumer.position(at) < offset:
                for record in (await consumer.getmany(at, timeout_ms=POLL_MS)).get(at, []):
                    if record.offset < offset:
                        found.append((record.offset, record.value))
        finally:
            await bounded(consumer.stop(), STOP_S, "reader of the audit topic")
        return found
