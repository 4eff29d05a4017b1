"""Events of any worker: none is too large for a broker, and nothing is left out."""

from __future__ import annotations

import random

import msgspec
import pytest

from app.controllog import codec
from app.controllog.codec import MAX_EVENT_BYTES, Heartbeat, JobStatus, WorkloadStatus
from app.kernel.fencing import LogId, SnapshotItem, Snapshots, TakeoverAnswer
from app.kernel.ranges import Snapshot
from app.kernel.tracker import Tracker
from app.worker.members.membership import FORGET_WORKER_AFTER_S, MAX_SILENT, STOPPED, Members
from app.worker.runtime.progress_saver import MAX_SNAPSHOT_BYTES, limited
from switchyard.audit.model.reports import Increment, Report
from switchyard.audit.model.totals import Totals

JOB = "dispatch:billing-service/orders.created:orders.created:{}"


def beat(
    jobs: int, *, worker: str = "w", at_ms: int = 1, state: str = "running", trouble: str = ""
) -> Heartbeat:
    """A heartbeat of a worker with this many jobs, and as many receivers."""
    statuses = [
        JobStatus(job=JOB.format(n), epoch=3, state="flowing", committed=10**9, trouble=trouble)
        for n in range(jobs)
    ]
    receivers = [WorkloadStatus(key=f"g/t{n}", breaker="closed", in_flight=1, limit=100) for n in range(jobs)]
    return Heartbeat(worker=worker, at_ms=at_ms, started_ms=1, url="http://h:1", state=state, term=0,
                     jobs=statuses, workloads=receivers)  # fmt: skip


@pytest.mark.parametrize("jobs", [0, 10, 20_000])
def test_a_heartbeat_of_any_size_is_heard_as_it_was_sent(jobs: int) -> None:
    sent = beat(jobs, trouble="x" * 100)
    events = codec.heartbeat_events(sent)
    assert max(len(event) for event in events) <= MAX_EVENT_BYTES
    members = Members(3.0)
    for event in random.Random(1).sample(events, len(events)):
        members.observe(codec.heartbeat(event), 1.0)
    received = members.live(1.0)["w"]
    assert sorted(received.jobs, key=lambda s: s.job) == sorted(sent.jobs, key=lambda s: s.job)
    assert sorted(received.workloads, key=lambda s: s.key) == sorted(sent.workloads, key=lambda s: s.key)


def test_until_all_parts_have_arrived_a_worker_lives_with_its_last_complete_jobs() -> None:
    members = Members(3.0)
    first, second = beat(20_000), beat(20_000, at_ms=2, state="draining")
    for event in codec.heartbeat_events(first):
        members.observe(codec.heartbeat(event), 1.0)
    members.observe(codec.heartbeat(codec.heartbeat_events(second)[0]), 3.5)
    received = members.live(6.0)["w"]
    assert (received.state, len(received.jobs)) == ("draining", 20_000)


def test_snapshots_of_many_jobs_are_split_and_all_of_them_arrive() -> None:
    items = [SnapshotItem(JOB.format(n), 1, bytes(200_000), 0, LogId("c", "t")) for n in range(20)]
    events = codec.snapshots_events("w", 7, items)
    assert max(len(event) for event in events) <= MAX_EVENT_BYTES
    decoded = [codec.tracker_event(event) for event in events]
    assert [item for event in decoded if isinstance(event, Snapshots) for item in event.items] == items


def test_the_largest_snapshot_fits_an_event_an_answer_and_a_record() -> None:
    largest = bytes(MAX_SNAPSHOT_BYTES)
    item = SnapshotItem(JOB.format(0), 1, largest, 0, LogId("c" * 22, "t" * 22))
    assert [len(e) <= MAX_EVENT_BYTES for e in codec.snapshots_events("w", 7, [item])] == [True]
    answer = TakeoverAnswer(
        job=JOB, epoch=1, worker="w", nonce="n", granted=True, known_epoch=1, snapshot=largest
    )
    assert len(codec.encode(answer)) <= MAX_EVENT_BYTES


def test_a_snapshot_that_does_not_fit_keeps_the_oldest_finished_offsets_and_adds_none() -> None:
    tracker = Tracker(0, 10_000)
    for number in range(10_000):
        tracker.fetched(number * 100, number * 100 + 1)
    tracker.ack_many([number * 100 for number in range(1, 10_000, 2)])
    whole = tracker.snapshot()
    packed, cut = limited(whole, 2_000)
    kept = Snapshot.from_bytes(packed)
    assert cut
    assert len(packed) <= 2_000
    assert kept.base == whole.base
    assert kept.finished == whole.finished[: len(kept.finished)]
    assert kept.finished
    assert limited(whole) == (whole.to_bytes(), False)


def test_every_worker_forgets_workers_that_left_long_ago() -> None:
    members = Members(3.0)
    for number in range(5_000):
        members.observe(beat(0, worker=f"w-{number}", state=STOPPED), float(number * 10))
    assert len(members.heard) <= FORGET_WORKER_AFTER_S / 10 + 1
    members = Members(3.0)
    for number in range(5_000):
        members.observe(beat(0, worker=f"w-{number}", state=STOPPED), 1_000.0)
    members.observe(beat(0, worker="last"), 1_100.0)
    assert len(members.heard) <= MAX_SILENT + 1
    assert "last" in members.live(1_100.0)


def test_a_report_of_many_windows_is_split_and_only_the_last_part_has_the_watermark() -> None:
    windows = tuple(Increment(start * 1000, Totals(1, latencies=b"x" * 200)) for start in range(5_000))
    report = Report("i", "orders", "regional", "home", 1000, "t/0", 5, windows, watermark_ms=9, upto=5)
    events = codec.report_events(report)
    parts = [codec.audit_event(event) for event in events]
    assert len(parts) > 1
    assert max(map(len, events)) <= codec.MAX_EVENT_BYTES
    reports = [part for part in parts if isinstance(part, Report)]
    assert tuple(one for part in reports for one in part.windows) == windows
    assert [part.watermark_ms for part in reports] == [-1] * (len(reports) - 1) + [9]
    assert {msgspec.structs.replace(part, windows=(), watermark_ms=0) for part in reports} == {
        msgspec.structs.replace(report, windows=(), watermark_ms=0)
    }
    assert codec.report_events(msgspec.structs.replace(report, windows=windows[:2]))[1:] == []


def test_a_record_that_none_of_our_clients_can_have_written_is_not_decoded() -> None:
    """A few kB compressed can be 100 MB of one record, which would block the loop and stay in memory."""
    large = codec.encode(beat(1, trouble="x" * codec.MAX_READ_BYTES))
    with pytest.raises(codec.BadEvent, match=f"at most {codec.MAX_READ_BYTES} are read"):
        codec.heartbeat(large)
