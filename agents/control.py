"""Agent `control`: the single writer of the tables that people and Spark read of the control log.

The same fold as every worker's (`ControlState`), written down: what the log refused does not reach the
tables. Every update is a function of the event and its offset, so that a replay changes nothing.
The activity is a ring: see `tables.activity`.
"""

from __future__ import annotations

from typing import Any

import structlog

from app import app, wire
from app.core.control_events import (
    Assignment,
    Begun,
    RegionPulse,
    RouteDeleted,
    RoutePut,
    WorkloadDeleted,
    WorkloadPut,
)
from app.core.job import names_a_job
from tables.activity import activity
from tables.assignments import assignments
from tables.routes import routes
from tables.workloads import workloads

log = structlog.get_logger(__name__)

source = app.raw_topic(app.topics_declared.control)


@app.agent(source, name="control")
async def write_control_tables(stream: Any) -> None:
    """Folds control events into the tables."""
    async for event in stream.events():
        try:
            _write(event.value, event.message.offset)
        except Exception as error:
            log.exception("a control event failed and is passed over", error=repr(error))


def _write(value: bytes | None, offset: int) -> None:
    if value is None:
        return
    try:
        decoded = wire.control_event(value)
    except wire.BadEvent as error:
        log.error("a record of the control log is no event", offset=offset, error=str(error))
        return
    match decoded:
        case WorkloadPut():
            workloads[decoded.key.encode()] = value
        case WorkloadDeleted():
            workloads.pop(decoded.key.encode(), None)
        case RoutePut():
            routes[decoded.key.encode()] = value
        case RouteDeleted():
            routes.pop(decoded.key.encode(), None)
        case Assignment() if names_a_job(decoded.job):
            stored = assignments.get(decoded.job.encode())
            if stored is not None:
                current = wire.control_event(stored)
                if isinstance(current, Assignment) and current.epoch > decoded.epoch:
                    return
            assignments[decoded.job.encode()] = value
        case _:
            pass
    if not isinstance(decoded, Begun | RegionPulse):
        key, entry = wire.activity_entry(offset, decoded)
        activity[key] = entry
