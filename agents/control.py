"""Agent `control`: the single writer of the tables of the control log that people and Spark read.

A row is the state of this worker's own fold (`app.controllog.log`) once it has the event, so refused
events do not reach the tables. The fold may be ahead; a replay, or another worker, writes the same row in
the end. The activity table (`tables.activity`) also has refused events, marked as refused unless they are
too old for the fold to know.

Nothing here raises, because an exception would skip the event and stall the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from app import app
from app.controllog import codec
from app.controllog.events import (
    AnyControlEvent,
    Assignment,
    AuditDeleted,
    AuditPut,
    Released,
    RouteDeleted,
    RoutePut,
    WorkloadDeleted,
    WorkloadPut,
    is_activity,
)
from app.controllog.state import ControlState
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kernel.job import names_a_job
from tables.activity import activity
from tables.assignments import assignments
from tables.audit_plans import audit_plans
from tables.routes import routes
from tables.workloads import workloads

log = structlog.get_logger(__name__)

unreadable = UnreadableRecords("records of the control log are no events, and in no table")

source = app.raw_topic(app.topics_declared.control)


@app.agent(source, name="control")
async def write_control_tables(stream: Any) -> None:
    """Writes the rows that an event changed."""
    async for event in stream.events():
        offset = event.message.offset
        try:
            if event.value is not None:
                runtime = await app.started_runtime()
                view = await runtime.control.up_to(offset)
                _write(codec.control_event(event.value), offset, view, runtime.control.counted)
        except codec.BadEvent as error:
            unreadable.add_for_later(offset, error)
        except Exception as error:
            log.exception("a control event failed and was skipped", error=repr(error))


def _write(event: AnyControlEvent, offset: int, view: ControlState, counted: Callable[[int], bool]) -> None:
    match event:
        case WorkloadPut() | WorkloadDeleted():
            _show(workloads, event.key, view.standing(event))
        case RoutePut() | RouteDeleted():
            _show(routes, event.key, view.standing(event))
        case AuditPut() | AuditDeleted():
            _show(audit_plans, event.key, view.standing(event))
        case Assignment() | Released() if names_a_job(event.job):
            _show(assignments, event.job, view.assignments.get(event.job))
        case _:
            pass
    if is_activity(event):
        key, entry = codec.activity_entry(offset, event, counted=counted(offset))
        activity[key] = entry


def _show(table: Any, key: str, stands: AnyControlEvent | None) -> None:
    if stands is not None:
        table[key.encode()] = codec.encode(stands)
    elif table.get(key.encode()) is not None:
        del table[key.encode()]
