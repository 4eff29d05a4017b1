"""Each incident is shown once, open until its end, whatever order its records come in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog import codec, incident_log
from app.controllog.codec import IncidentRecord
from app.controllog.incident_log import WORKER_GONE, IncidentLog, is_open

LIVE = {"w-1", "w-2"}
REPORTS = st.builds(
    IncidentRecord,
    at_ms=st.integers(0, 3),
    worker=st.sampled_from(sorted(LIVE)),
    kind=st.sampled_from(["fetch-trouble", "clock"]),
    subject=st.just("orders"),
    message=st.sampled_from(["away", "refused"]),
    lasts=st.booleans(),
)


def report(at_ms: int = 1, *, worker: str = "w-1", lasts: bool = True) -> IncidentRecord:
    return IncidentRecord(
        at_ms=at_ms, worker=worker, kind="fetch-trouble", subject="orders", message="away", remedy="look",
        lasts=lasts,
    )  # fmt: skip


def ended(record: IncidentRecord, ended_ms: int = 9) -> IncidentRecord:
    return msgspec.structs.replace(record, ended_ms=ended_ms)


def log_of(*records: IncidentRecord) -> IncidentLog:
    log = IncidentLog()
    for record in records:
        log.add(record)
    return log


@given(st.sets(REPORTS), st.data())
def test_each_incident_is_kept_once_and_an_end_never_opens_again(
    reports: set[IncidentRecord], data: st.DataObject
) -> None:
    ends = {ended(one) for one in reports if one.lasts and data.draw(st.booleans())}
    written = sorted([*reports, *ends], key=repr)
    repeated = data.draw(st.lists(st.sampled_from(written))) if written else []
    records = data.draw(st.permutations([*written, *repeated]))
    shown = log_of(*records).newest_first(LIVE)
    still_open = [one for one in reports if one.lasts and ended(one) not in ends]
    assert len(shown) == len(reports)
    assert set(shown) == {ended(one) if ended(one) in ends else one for one in reports}
    count = len(still_open)
    assert [is_open(one) for one in shown] == [True] * count + [False] * (len(reports) - count)


def test_open_incidents_come_first_and_then_the_newest() -> None:
    old, new, over, moment = report(at_ms=1), report(at_ms=5), report(at_ms=6), report(at_ms=7, lasts=False)
    shown = log_of(moment, old, over, new, ended(over)).newest_first(LIVE)
    assert shown == [new, old, moment, ended(over)]


def test_the_same_problem_at_a_later_time_is_another_incident() -> None:
    first, second = report(at_ms=1), report(at_ms=5)
    assert log_of(first, ended(first), second).newest_first(LIVE) == [second, ended(first)]


def test_an_incident_has_ended_when_its_worker_is_gone() -> None:
    log = log_of(report(worker="gone"), report(at_ms=2))
    here, gone = log.newest_first(LIVE)
    assert (is_open(here), is_open(gone), gone.ended_why, gone.ended_ms) == (True, False, WORKER_GONE, 0)
    assert all(map(is_open, log.newest_first({*LIVE, "gone"}))), "it was only silent for a while"
    assert all(map(is_open, log.newest_first(()))), "this worker has read no heartbeat yet"


def test_many_moments_do_not_drive_an_open_incident_off_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_log, "MAX_KEPT", 3)
    log = log_of(report(), *(report(at_ms=at, lasts=False) for at in range(2, 9)))
    assert [one.at_ms for one in log.newest_first(LIVE)] == [1, 8, 7, 6]
    for at in range(10, 19):
        log.add(report(at_ms=at))
    assert [one.at_ms for one in log.newest_first(LIVE)] == [18, 17, 16, 8, 7, 6]


def test_a_record_of_an_earlier_version_is_a_moment() -> None:
    former = codec.incident(b'{"at_ms":1,"worker":"w-1","kind":"clock","subject":"w-1","message":"wrong"}')
    assert not is_open(former)
    assert log_of(former).newest_first(LIVE) == [former]
