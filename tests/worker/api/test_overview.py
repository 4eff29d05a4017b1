"""The console's figures from heartbeats: an unknown one is never 0, and only the owner's count."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog.codec import Heartbeat, JobStatus, WorkloadTrouble
from app.controllog.incident_log import IncidentLog
from app.controllog.state import ControlState
from app.kernel.job import JobId
from app.worker.api import overview
from tests.web.runtime_fake import ME, assigned, beat, definition, flowing, job, put

KEY = "billing/orders"
NOW_MS = 1_000_000


def state_of(*names: str, retry: int = 0) -> ControlState:
    state = ControlState()
    state.apply(put(definition(retry=[{"delay": "1m"}] * retry)))
    for name in names:
        state.apply(assigned(name))
    return state


def seen(state: ControlState, *beats: Heartbeat) -> overview.JobsOverview:
    return overview.JobsOverview(state, {b.worker: b for b in beats}, NOW_MS)


def test_lag_is_the_distance_from_the_commit_to_the_high_watermark() -> None:
    assert overview.lag_messages(flowing(job(0), committed=10, high_watermark=40)) == 30
    assert overview.lag_messages(flowing(job(0), committed=41, high_watermark=40)) == 0


@pytest.mark.parametrize("unknown", [{"committed": -1}, {"high_watermark": -1}])
def test_an_unmeasured_lag_is_unknown_not_zero(unknown: dict[str, int]) -> None:
    assert overview.lag_messages(flowing(job(0), **unknown)) is None
    shown = seen(state_of(job(0), job(1)), beat(flowing(job(0)), flowing(job(1), **unknown)))
    workload = shown.workload(shown.state.workloads[KEY])
    assert workload["lag_messages"] is None
    assert workload["lag_s"] is None


def test_lag_in_time_is_the_age_of_the_oldest_unfinished_message() -> None:
    assert overview.lag_s(flowing(job(0), oldest_ms=NOW_MS - 2500), NOW_MS) == 2.5
    assert overview.lag_s(flowing(job(0), oldest_ms=NOW_MS + 2500), NOW_MS) == 0.0  # clocks differ
    assert overview.lag_s(flowing(job(0), committed=40), NOW_MS) == 0.0
    assert overview.lag_s(flowing(job(0), committed=39), NOW_MS) is None


def test_a_workload_sums_its_partitions_and_lags_as_long_as_the_worst_of_them() -> None:
    jobs = [
        flowing(job(0), committed=10, oldest_ms=NOW_MS - 1000, delivered=5, in_flight=2),
        flowing(job(1), committed=30, oldest_ms=NOW_MS - 9000, delivered=7, dead_lettered=1),
        flowing(job(0, "orders__billing__retry_1"), committed=40, retried=3),
    ]
    state = state_of(*(status.job for status in jobs), retry=1)
    shown = seen(state, beat(*jobs)).workload(state.workloads[KEY])
    assert (shown["lag_messages"], shown["lag_s"]) == (40, 9.0)
    assert (shown["delivered"], shown["retried"], shown["dead_lettered"]) == (12, 3, 1)
    assert (shown["in_flight"], shown["partitions"], shown["waiting"]) == (2, 3, 0)


def test_only_the_owners_status_under_its_epoch_counts() -> None:
    state = state_of()
    state.apply(assigned(job(0), ME, epoch=4))
    zombie = beat(flowing(job(0), epoch=4, delivered=99), worker="zombie")
    late = beat(flowing(job(0), epoch=3, delivered=98))
    for others in ([zombie], [late], [zombie, late]):
        (only,) = seen(state, *others).partitions(KEY)
        assert only["delivered"] == 0
        assert only["state"] == "waiting"
    (only,) = seen(state, zombie, beat(flowing(job(0), epoch=4, delivered=1))).partitions(KEY)
    assert (only["delivered"], only["state"]) == (1, "flowing")


def test_a_partition_without_a_living_owner_is_shown_as_waiting_with_the_reason() -> None:
    state = state_of(job(0))
    (only,) = seen(state).partitions(KEY)
    assert only["state"] == "waiting"
    assert "its worker is silent" in only["trouble"]
    assert only["lag_messages"] is None
    assert seen(state).workload(state.workloads[KEY])["waiting"] == 1


def test_a_retry_tier_that_is_no_longer_defined_does_not_make_the_lag_unknown_for_ever() -> None:
    retry = job(0, "orders__billing__retry_1")
    state = state_of(job(0), retry=0)
    state.apply(assigned(retry, worker=""))
    shown = seen(state, beat(flowing(job(0), committed=38)))
    assert shown.workload(state.workloads[KEY])["lag_messages"] == 2
    state.apply(put(definition(retry=[{"delay": "1m"}])))  # defined again: it waits for an owner
    shown = seen(state, beat(flowing(job(0), committed=38)))
    assert shown.workload(state.workloads[KEY])["lag_messages"] is None


def test_partitions_are_listed_by_number_and_not_by_letter() -> None:
    state = state_of(*(job(number) for number in (10, 9, 0)))
    assert [p["partition"] for p in seen(state).partitions(KEY)] == [0, 9, 10]


def test_the_worst_breaker_of_all_workers_is_the_workloads() -> None:
    state = state_of(job(0), job(1))
    state.apply(assigned(job(1), "worker-b", epoch=2))
    other = beat(flowing(job(1), epoch=2), worker="worker-b", breaker="open")
    shown = seen(state, beat(flowing(job(0))), other)
    assert shown.workload(state.workloads[KEY])["breaker"] == "open"
    assert seen(state).workload(state.workloads[KEY])["breaker"] == "unknown"


def test_the_leaders_trouble_of_a_workload_says_why_it_has_no_job() -> None:
    why = "topic orders does not exist in east; create it; the workload starts by itself then"
    leader = msgspec.structs.replace(beat(), troubles=[WorkloadTrouble(key=KEY, why=why)])
    state = state_of()
    for beats, expected in (([beat()], "no partition of it is assigned yet"), ([beat(), leader], why)):
        shown = seen(state, *beats)
        workload, flow = shown.workload(state.workloads[KEY]), shown.flow(state.workloads[KEY])
        assert (workload["bound"], workload["why"]) == (flow.bound, flow.why) == ("worker", expected)
        assert workload["troubles"] == ([why] if leader in beats else [])
    running = msgspec.structs.replace(leader, jobs=[flowing(job(0), committed=40, trouble="no copy")])
    state = state_of(job(0))
    workload = seen(state, running).workload(state.workloads[KEY])
    assert workload["troubles"] == [why, "no copy"]
    assert workload["why"] != why, "its job has a more exact reason"


def test_only_the_first_troubles_are_listed() -> None:
    names = [job(number) for number in range(50)]
    jobs = [flowing(name, trouble=f"trouble {name}") for name in names]
    state = state_of(*names)
    troubles = seen(state, beat(*jobs)).workload(state.workloads[KEY])["troubles"]
    assert len(troubles) == overview.MAX_SHOWN_TROUBLES + 1
    assert troubles[-1] == f"and {50 - overview.MAX_SHOWN_TROUBLES} more"


def test_a_worker_that_fell_silent_is_dead_and_one_that_said_goodbye_is_stopped() -> None:
    state = state_of()
    heard = {"a": (10.0, beat(worker="a")), "b": (18.0, beat(worker="b"))}
    shown = {w["worker"]: w for w in overview.workers(state, heard, ["b"], 20.0)}
    assert (shown["a"]["state"], shown["a"]["silent_s"]) == ("dead", 10.0)
    assert (shown["b"]["state"], shown["b"]["silent_s"]) == ("running", 2.0)


def test_a_worker_that_said_goodbye_is_listed_for_half_a_minute() -> None:
    goodbye, silent = msgspec.structs.replace(beat(worker="a"), state="stopped"), beat(worker="b")
    heard = {"a": (10.0, goodbye), "b": (10.0, silent)}
    at = {now_s: [w["worker"] for w in overview.workers(state_of(), heard, [], now_s)] for now_s in (39, 40)}
    assert at == {39: ["a", "b"], 40: ["b"]}, "who only fell silent stays"


def test_a_throttled_worker_is_shown_as_one() -> None:
    heard = {"a": (10.0, msgspec.structs.replace(beat(worker="a"), cpu_throttled=0.49))}
    (shown,) = overview.workers(state_of(), heard, ["a"], 10.0)
    assert shown["cpu_throttled"] == 0.49


def test_an_empty_region_has_no_lag_and_an_unmeasured_one_has_an_unknown_lag() -> None:
    nothing = overview.overview("east", ControlState(), {}, {}, IncidentLog(), NOW_MS, 0.0)
    assert nothing["totals"]["lag_messages"] == 0
    unmeasured = overview.overview("east", state_of(job(0)), {}, {}, IncidentLog(), NOW_MS, 0.0)
    assert unmeasured["totals"]["lag_messages"] is None


def test_an_unreadable_definition_is_shown_with_its_known_fields() -> None:
    state = state_of()
    broken = put(definition())
    state.workloads[KEY] = type(broken)(at_ms=1, key=KEY, definition={"spec": 1}, etag="x", actor="a")
    state.apply(assigned(job(0), worker=""))
    assert seen(state).workload(state.workloads[KEY])["partitions"] == 1


def test_a_snapshot_costs_as_much_as_there_are_jobs_and_not_workloads_times_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is made in the loop that renews the lease: 300 workloads of 16 partitions once took 16 s."""
    state = ControlState()
    jobs = []
    for number in range(100):
        group = f"g{number}"
        state.apply(put(definition(group, "t")))
        for partition in range(8):
            name = job(partition, "t", f"{group}/t")
            state.apply(assigned(name))
            jobs.append(flowing(name))
    heartbeat = beat(*jobs)
    looked = 0
    real = overview.lag_messages

    def counting(status: JobStatus) -> int | None:
        nonlocal looked
        looked += 1
        return real(status)

    monkeypatch.setattr(overview, "lag_messages", counting)
    parsed: list[str] = []
    monkeypatch.setattr(JobId, "parse", parsed.append)
    shown = overview.overview(
        "east", state, {ME: (0.0, heartbeat)}, {ME: heartbeat}, IncidentLog(), NOW_MS, 0.0
    )
    assert shown["totals"]["lag_messages"] == 30 * len(jobs)
    assert looked <= 3 * len(jobs)
    assert not parsed


@given(st.lists(st.tuples(st.integers(-1, 50), st.integers(-1, 50)), min_size=1, max_size=6))
def test_the_sum_is_known_exactly_when_every_part_is(offsets: list[tuple[int, int]]) -> None:
    jobs = [flowing(job(n), committed=c, high_watermark=h) for n, (c, h) in enumerate(offsets)]
    state = state_of(*(status.job for status in jobs))
    lag_messages = seen(state, beat(*jobs)).workload(state.workloads[KEY])["lag_messages"]
    if any(c < 0 or h < 0 for c, h in offsets):
        assert lag_messages is None
    else:
        assert lag_messages == sum(max(0, h - c) for c, h in offsets)
