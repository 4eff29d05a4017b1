"""Failover runs leave the control log in the end, and the events that remain of a run never show it as
executing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.controllog.events import AnyControlEvent, FailoverRun, compaction_key
from app.controllog.failover_run import (
    ABORTED,
    DONE,
    ENDED_KEPT_MS,
    EXECUTING,
    EXPIRED_KEPT_MS,
    MAX_RUNS,
    PLANNED,
)
from tests.controllog.test_failover_run import RUN, folded


def a_run(name: str, *states: Any, at_ms: int = 1, **fields: Any) -> list[AnyControlEvent]:
    made = FailoverRun(
        at_ms=at_ms, id=name, to="west", workloads=RUN.workloads, state=PLANNED, made_ms=at_ms,
        expires_ms=at_ms + 600_000, plan={"rows": 1}, **fields,
    )  # fmt: skip
    later = [msgspec.structs.replace(made, state=state, plan=None) for state in states]
    return [made, *later]


def test_plans_that_expired_and_runs_of_long_ago_leave_the_log_in_the_order_of_their_states() -> None:
    ended = a_run("f1", EXECUTING, DONE)
    forced = [
        *a_run("f2", EXECUTING),
        *(msgspec.structs.replace(one, forced=True) for one in a_run("f2", EXECUTING, ABORTED)[1:]),
    ]
    events = [*a_run("f0"), *ended, *forced, *a_run("f3", EXECUTING)]
    state = folded(events)
    assert state.runs.outlived(600_000, set()) == []
    assert state.runs.outlived(600_002 + EXPIRED_KEPT_MS, set()) == ["failover-run/f0/planned"]
    keys = state.runs.outlived(2 + ENDED_KEPT_MS, {"f2"})
    assert keys == [
        "failover-run/f0/planned", "failover-run/f1/planned", "failover-run/f1/executing",
        "failover-run/f1/done",
    ], "a run that still moves a role, and an executing run, are needed"  # fmt: skip
    keys = state.runs.outlived(2 + ENDED_KEPT_MS, set())
    assert keys[4:] == [
        "failover-run/f2/planned", "failover-run/f2/executing", "failover-run/f2/executing/forced",
        "failover-run/f2/aborted/forced",
    ]  # fmt: skip
    for n, key in enumerate(keys):
        state.dropped(key)
        left = [event for event in events if compaction_key(event) not in keys[: n + 1]]
        states = [{run.id: run.state for run in view.runs} for view in (state, folded(left))]
        assert states[0] == states[1], "a reader of the remaining events knows as much"
        assert states[0].get("f1", DONE) == DONE
    assert [run.id for run in state.runs] == ["f3"]


def test_of_very_many_runs_the_newest_are_remembered_and_the_others_leave_the_log() -> None:
    count = MAX_RUNS + 40
    under_way = a_run("under-way", EXECUTING, at_ms=1)
    events = [event for n in range(2, count + 2) for event in a_run(f"f{n:04}", EXECUTING, ABORTED, at_ms=n)]
    state = folded(under_way + events)
    assert len(state.runs) == MAX_RUNS
    assert {"under-way", f"f{count + 1:04}"} <= {run.id for run in state.runs}
    assert list(state.stale)[:3] == [f"failover-run/f0002/{at}" for at in (PLANNED, EXECUTING, ABORTED)]
    assert len(state.stale) == 3 * (count + 1 - MAX_RUNS)
    for key in list(state.stale):
        state.dropped(key)
    assert (len(state.runs), state.stale) == (MAX_RUNS, {})
