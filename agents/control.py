"""Agent `control`: the single writer of the tables that people and Spark read of the control log.

What stands in a table is what stands in this worker's own fold of the log (`app.controllog.log`), as soon as
it has the event: what the log refused does not reach the tables. The fold may be ahead by then; a replay, or
another worker, writes the same in the end. The activity is a ring: see `tables.activity`. What was refused is
in it, and told as such, unless it was read so long ago that the fold does not remember.
Nothing here raises: an exception would skip the event anyway and stall the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from app import app
from app.controllog import codec
from app.controllog.alert_state import AlertState
from app.controllog.events import (
    AnyControlEvent,
    Assignment,
    AuditDeleted,
    AuditPut,
    LimitShares,
    RegionPulse,
    Released,
    RouteDeleted,
    RoutePut,
    StartRecorded,
    WorkloadDeleted,
    WorkloadPut,
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
    """Writes down what an event changed."""
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
            log.exception("a control event failed and is passed over", error=repr(error))


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
    is_told = (
        event.is_news
        if isinstance(event, AlertState)
        else not isinstance(event, StartRecorded | LimitShares | RegionPulse)
    )
    if is_told:
        key, entry = codec.activity_entry(offset, event, counted=counted(offset))
        activity[key] = entry


def _show(table: Any, key: str, stands: AnyControlEvent | None) -> None:
    if stands is not None:
        table[key.encode()] = codec.encode(stands)
    elif table.get(key.encode()) is not None:
        del table[key.encode()]
