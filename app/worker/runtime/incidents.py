"""The incidents of all workers of the region: written to a topic, which every console reads.

Rules
1. A report with `is_over` is open until that is true, which is looked at about once a second, for at most
   `CHECKED_AT_ONCE` incidents in a row. Then its end is written. The same problem (kind, subject and message)
   that is reported meanwhile is the same incident, and is not written again. Another message is another
   incident, because a subject may have several problems at once, such as a route whose topics vanished.
2. A record that was not written, because no broker answered, is written later.
3. A worker that stops in order writes the ends of all that are open. Its jobs move, and their next worker
   reports what still is wrong there. After any other end of a worker, its readers know that it is gone
   (`app.controllog.incident_log`).
4. While `MAX_OPEN` are open, others are reported as events of a moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog import codec
from app.controllog.codec import IncidentRecord
from app.controllog.incident_log import IncidentLog
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.topic_tail import TopicTail, bounded
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.records.record import PlacedRecord
from app.kernel.clock import now_ms
from app.kernel.incidents import IsOver

log = structlog.get_logger(__name__)

INCIDENT_TIMEOUT_S = 10.0
CHECK_INTERVAL_S = 1.0
CHECKED_AT_ONCE = 100
MAX_OPEN = 500
MAX_UNWRITTEN = 1_000  # records; while no broker answers, the oldest are dropped
LAST_ENDS_TIMEOUT_S = 2.0
WORKER_STOPPED = "its worker stopped"

Problem = tuple[str, str, str]  # kind, subject and message


@dataclass(frozen=True, slots=True)
class _Open:
    record: IncidentRecord
    is_over: IsOver


class Incidents(Service):
    """Reports this worker's incidents, and reads everybody's into `known`."""

    def __init__(self, worker: str, topic: str, kafka_options: ClientOptions) -> None:
        super().__init__()
        self._worker = worker
        self._topic = topic
        self.known = IncidentLog()
        self._open: dict[Problem, _Open] = {}
        self._unwritten: deque[IncidentRecord] = deque(maxlen=MAX_UNWRITTEN)
        self._pending: set[asyncio.Task[object]] = set()
        self._producer = ReplaceableProducer("incidents", kafka_options, enable_idempotence=False)
        self._unreadable = UnreadableRecords("the incidents topic has records that are no incidents")
        self._tail = TopicTail(topic, kafka_options, self._on_records, from_start=True)

    async def on_start(self) -> None:
        await self._producer.start_patiently()
        await self.add_runtime_dependency(self._tail)

    async def on_stop(self) -> None:
        self._end_all()
        await bounded(self._write_ends(), LAST_ENDS_TIMEOUT_S, "ends of incidents")

    async def on_shutdown(self) -> None:
        await self._producer.stop()

    # -- reports ---------------------------------------------------------------------------------

    def report(
        self, kind: str, subject: str, message: str, remedy: str, is_over: IsOver | None = None
    ) -> None:
        """Logs an incident, and writes it to the topic (`app.kernel.incidents.ReportIncident`)."""
        log.warning(message, incident=kind, subject=subject, remedy=remedy)
        problem = kind, subject, message
        known = self._open.get(problem)
        lasts = is_over is not None and (known is not None or len(self._open) < MAX_OPEN)
        record = IncidentRecord(
            at_ms=now_ms(), worker=self._worker, kind=kind, subject=subject, message=message, remedy=remedy,
            lasts=lasts,
        )  # fmt: skip
        if is_over is not None and lasts:
            self._open[problem] = _Open(record if known is None else known.record, is_over)
            if known is not None:
                return
        self._write_soon(record)

    def report_own(self, kind: str, message: str, remedy: str, is_over: IsOver | None = None) -> None:
        """Reports an incident of this worker itself."""
        self.report(kind, self._worker, message, remedy, is_over)

    async def report_and_wait(
        self, kind: str, message: str, remedy: str, is_over: IsOver | None = None
    ) -> None:
        """As `report_own`; waits until the incident is in the topic, or `INCIDENT_TIMEOUT_S`."""
        self.report_own(kind, message, remedy, is_over)
        if self._pending:
            await asyncio.wait(list(self._pending), timeout=INCIDENT_TIMEOUT_S)

    # -- ends ------------------------------------------------------------------------------------

    @Service.task
    async def _check_for_ever(self) -> None:
        while not self.should_stop:
            await self.sleep(CHECK_INTERVAL_S)
            try:
                self._check()
                await self._write_unwritten()
            except Exception:
                log.exception("the ends of incidents could not be written; the worker tries again")

    def _check(self) -> None:
        """Looks at the next open incidents, those first that were not looked at for longest."""
        for problem, one in list(islice(self._open.items(), CHECKED_AT_ONCE)):
            del self._open[problem]
            try:
                if why := one.is_over():
                    self._write_soon(_ended(one.record, why))
                    continue
            except Exception:
                log.exception("an incident stays open, because its end cannot be determined", problem=problem)
                self._open[problem] = _Open(one.record, _never)
            else:
                self._open[problem] = one

    def _end_all(self) -> None:
        """Applies rule 3."""
        for problem, one in list(self._open.items()):
            del self._open[problem]
            why: bool | str = WORKER_STOPPED
            try:
                why = one.is_over() or WORKER_STOPPED
            except Exception:
                log.exception("the end of an incident cannot be determined", problem=problem)
            self._unwritten.append(_ended(one.record, why))

    async def _write_ends(self) -> None:
        if self._pending:
            await asyncio.wait(list(self._pending))
        await self._write_unwritten()

    # -- the topic -------------------------------------------------------------------------------

    def _write_soon(self, record: IncidentRecord) -> None:
        task = asyncio.get_running_loop().create_task(self._write(record))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _write(self, record: IncidentRecord) -> bool:
        """Writes a record, or keeps it for later (rule 2); returns whether it was written."""
        try:
            async with asyncio.timeout(INCIDENT_TIMEOUT_S):
                await self._producer.send_and_wait(self._topic, codec.encode(record), partition=0)
        except Exception as error:  # noqa: BLE001 - the reporter must not fail for it
            heals = isinstance(error, (OSError, TimeoutError)) or (
                isinstance(error, KafkaError) and error.retriable
            )
            is_lost = not heals
            log.warning("an incident was not written", kind=record.kind, subject=record.subject,
                        is_tried_again=not is_lost, error=repr(error))  # fmt: skip
            if is_lost:
                return True
            self._unwritten.append(record)
            return False
        return True

    async def _write_unwritten(self) -> None:
        """Writes what is left; ends with the first record that cannot be written now."""
        for _ in range(len(self._unwritten)):
            if not self._unwritten or not await self._write(self._unwritten.popleft()):
                return

    def _on_records(self, records: Sequence[PlacedRecord]) -> None:
        for record in records:
            try:
                self.known.add(codec.incident(record.value))
            except codec.BadEvent as error:
                self._unreadable.add_for_later(record.offset, error)


def _ended(record: IncidentRecord, why: bool | str) -> IncidentRecord:
    ended_ms, ended_why = max(now_ms(), record.at_ms), why if isinstance(why, str) else ""
    return msgspec.structs.replace(record, ended_ms=ended_ms, ended_why=ended_why)


def _never() -> bool:
    return False
