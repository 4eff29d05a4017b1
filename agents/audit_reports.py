"""Agent `audit_reports`: the single writer of the tables of windows and tiers. It writes the rows that an
event of the audit topic changed in this worker's fold (`app.audit.jobs.books`).

When a partition comes to this worker, the fold is restored from the tables. Faust may commit an event
before its rows are in the changelogs, so the rows are completed from the topic's last events. Each row
knows which events it contains (`app.audit.folds.collector`).

Nothing here raises, because an exception would skip the event and stall the agent. A record that is not an
event is counted, logged and skipped.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from app import app
from app.audit.folds.collector import TableChanges
from app.controllog import codec
from app.kafka.client.cluster import ClusterUnreachable
from app.kernel.seals import HEADER
from switchyard.audit.model.reports import BadReport
from tables.audit_tiers import audit_tiers
from tables.audit_windows import audit_windows
from tables.options import items_of

log = structlog.get_logger(__name__)

WRITE_RETRY_INTERVAL_S = 1.0

source = app.raw_topic(app.topics_declared.audit)


@app.agent(source, name="audit_reports")
async def collect_reports(stream: Any) -> None:
    """Folds each event, and writes the rows that it changed."""
    async for event in stream.events():
        partition, offset = event.message.partition, event.message.offset
        books = (await app.started_runtime()).audit_books
        try:
            while not books.can_fold(partition, offset):
                await _take_over(books, partition, offset)
            recorded_ms = round(event.message.timestamp * 1000)  # the brokers' time, by the topic's settings
            seal = dict(event.message.headers or ()).get(HEADER, b"")
            written = books.fold(partition, offset, event.value, recorded_ms, seal)
            _write(written, books.encoded(partition))
        except (codec.BadEvent, BadReport) as error:
            books.pass_over(partition, offset, error)
        except Exception as error:
            books.forget(partition)  # the next event restores the partition
            log.exception("an event of the audit topic failed", offset=offset, error=repr(error))
            books.pass_over(partition, offset, error)


async def _take_over(books: Any, partition: int, offset: int) -> None:
    windows, tiers = items_of(audit_windows, partition), items_of(audit_tiers, partition)
    try:
        lacked = await books.restore(partition, offset, windows, tiers)
    except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
        log.warning("the audit topic cannot be read again yet", partition=partition, error=repr(error))
        await asyncio.sleep(WRITE_RETRY_INTERVAL_S)
    else:
        _write(lacked, books.encoded(partition))


def _write(written: TableChanges, encoded: Any) -> None:
    for window in written.windows:
        audit_windows[str(window).encode()] = encoded(window)
    for tier in written.tiers:
        audit_tiers[str(tier).encode()] = encoded(tier)
    for window in written.deleted:
        del audit_windows[str(window).encode()]
