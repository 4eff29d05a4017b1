"""Agent `audit_reports`: the single writer of the tables of windows and tiers. It writes what an event of the
audit topic has changed in this worker's fold of it (`app.control.audit_books`).

A partition that comes to this worker is taken over from the tables: Faust commits an event once what was made
of it stands in the changelogs, so that all values are at least as old as the first event that comes, and what
is replayed of it changes nothing (`app.core.audit.collect`).
Nothing here raises: an exception would skip the event anyway and stall the agent.
"""

from __future__ import annotations

from typing import Any

import structlog

from app import app, wire
from app.core.audit.collect import Written
from app.core.audit.reports import BadReport
from tables.audit_tiers import audit_tiers
from tables.audit_windows import audit_windows
from tables.options import items_of

log = structlog.get_logger(__name__)

source = app.raw_topic(app.topics_declared.audit)


@app.agent(source, name="audit_reports")
async def collect_reports(stream: Any) -> None:
    """Folds each event in, and writes the records that it changed."""
    async for event in stream.events():
        partition, offset = event.message.partition, event.message.offset
        books = (await app.started_runtime()).audit_books
        try:
            if not books.goes_on_at(partition, offset):
                await books.restore(
                    partition, offset, items_of(audit_windows, partition), items_of(audit_tiers, partition)
                )
            _write(books.fold(partition, offset, event.value), books.encoded(partition))
        except (wire.BadEvent, BadReport) as error:
            log.error("an event of the audit topic is passed over", offset=offset, error=str(error))
        except Exception as error:
            books.forget(partition)  # what was written of it is read anew, with the next event
            log.exception("an event of the audit topic failed and is passed over", error=repr(error))


def _write(written: Written, encoded: Any) -> None:
    for window in written.windows:
        audit_windows[str(window).encode()] = encoded(window)
    for tier in written.tiers:
        audit_tiers[str(tier).encode()] = encoded(tier)
    for window in written.deleted:
        del audit_windows[str(window).encode()]
