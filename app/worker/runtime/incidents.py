"""The incidents of all workers of the region: written to a topic, which every console reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog
from mode import Service

from app.controllog import codec
from app.controllog.codec import IncidentRecord
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.topic_tail import TopicTail, bounded
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.records.record import PlacedRecord
from app.kernel.clock import now_ms

log = structlog.get_logger(__name__)

MAX_KEPT_INCIDENTS = 500
INCIDENT_TIMEOUT_S = 10.0


class Incidents(Service):
    """Reports this worker's incidents, and reads everybody's.

    Attributes:
        latest: The latest incidents, oldest first.
    """

    def __init__(self, worker: str, topic: str, kafka_options: ClientOptions) -> None:
        super().__init__()
        self._worker = worker
        self._topic = topic
        self.latest: deque[IncidentRecord] = deque(maxlen=MAX_KEPT_INCIDENTS)
        self._pending: set[asyncio.Task[object]] = set()
        self._producer = ReplaceableProducer("incidents", kafka_options, enable_idempotence=False)
        self._unreadable = UnreadableRecords("the incidents topic has records that are no incidents")
        self._tail = TopicTail(topic, kafka_options, self._on_records, from_start=True)

    async def on_start(self) -> None:
        await self._producer.start_patiently()
        await self.add_runtime_dependency(self._tail)

    async def on_shutdown(self) -> None:
        await self._producer.stop()

    def report(self, kind: str, subject: str, message: str, remedy: str) -> None:
        """Logs an incident, and writes it to the topic."""
        log.warning(message, incident=kind, subject=subject, remedy=remedy)
        incident = IncidentRecord(
            at_ms=now_ms(), worker=self._worker, kind=kind, subject=subject, message=message, remedy=remedy
        )
        sent = self._producer.send_and_wait(self._topic, codec.encode(incident), partition=0)
        task = asyncio.get_running_loop().create_task(bounded(sent, INCIDENT_TIMEOUT_S, "incident"))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def report_own(self, kind: str, message: str, remedy: str) -> None:
        """Reports an incident of this worker itself."""
        self.report(kind, self._worker, message, remedy)

    async def report_and_wait(self, kind: str, message: str, remedy: str) -> None:
        """As `report_own`; waits until the incident is in the topic, or `INCIDENT_TIMEOUT_S`."""
        self.report_own(kind, message, remedy)
        await asyncio.wait(list(self._pending), timeout=INCIDENT_TIMEOUT_S)

    def _on_records(self, records: Sequence[PlacedRecord]) -> None:
        for record in records:
            try:
                self.latest.append(codec.incident(record.value))
            except codec.BadEvent as error:
                self._unreadable.add_for_later(record.offset, error)
