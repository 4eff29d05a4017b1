"""Agent `trackers`: the single writer of the tracker table. Takeovers are answered by those who follow the
topic in memory (`app.control.tracker_follower`), and begin with what this one writes.

One event carries snapshots of many jobs. Nothing here raises: a bad event is told and passed over, since
an exception would skip the event anyway and stall the agent.
"""

from __future__ import annotations

from typing import Any

import structlog

from app import app, wire
from app.core.fencing import Snapshots, Takeover, TrackerRecord, on_snapshot, on_takeover
from app.core.tracker import CorruptSnapshot
from tables.trackers import trackers

log = structlog.get_logger(__name__)

source = app.raw_topic(app.topics_declared.trackers)


@app.agent(source, name="trackers")
async def write_trackers(stream: Any) -> None:
    """Folds tracker events into the table."""
    async for value in stream:
        try:
            match wire.tracker_event(value):
                case Takeover() as takeover:
                    record, _ = on_takeover(_record(takeover.job), takeover)
                    trackers[takeover.job.encode()] = wire.encode(record)
                case Snapshots() as event:
                    _fold(event)
        except Exception as error:
            log.exception("a tracker event failed and is passed over", error=repr(error))


def _fold(event: Snapshots) -> None:
    for item in event.items:
        try:
            record = on_snapshot(_record(item.job), item, worker=event.worker, at_ms=event.at_ms)
        except CorruptSnapshot as error:
            log.error("a snapshot is corrupt and is passed over", job=item.job, error=str(error))
            continue
        if record is not None:
            trackers[item.job.encode()] = wire.encode(record)


def _record(job: str) -> TrackerRecord | None:
    stored = trackers.get(job.encode())
    if stored is None:
        return None
    try:
        return wire.tracker_record(stored)
    except wire.BadEvent as error:
        log.error("a tracker record cannot be read and starts afresh", job=job, error=str(error))
        return None
