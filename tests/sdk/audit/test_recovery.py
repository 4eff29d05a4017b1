"""How frames of the write-ahead log are read, and how the next process continues from them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit.folds.collector import Collector
from switchyard.audit import recovery
from switchyard.audit.model.client_counter import ClientAudit, ClientState
from switchyard.audit.model.reports import Report, Scope
from switchyard.audit.model.tally import RecordArrays
from switchyard.audit.recovery import Position, WalChange, WalSnapshot, moved

IDLE_MS = 1_000


def client_with(topic: str, *times: int, source: str = "web@1") -> ClientAudit:
    found = ClientAudit(Scope(topic, "consumer", "east", 100), source, IDLE_MS)
    found.add(RecordArrays(np.array(times, dtype=np.int64), np.full(len(times), 10)), 1_000)
    return found


def counted_records(*reports: Report) -> int:
    collector = Collector()
    for position, report in enumerate(reports):
        collector.apply(report, position)
    return sum(record.totals.count for record in collector.windows.values())


def encoded(*frames: WalSnapshot | WalChange) -> list[bytes]:
    return [recovery.encode(frame) for frame in frames]


def test_later_frames_replace_what_earlier_ones_say() -> None:
    one, other = client_with("a", 5), client_with("b", 5)
    backlog = (*client_with("c", 7).reports(9), *client_with("d", 7).reports(9))
    first = WalSnapshot((one.state(), other.state()), backlog, {"a": {0: (5, 1)}})
    one.add(RecordArrays(np.array([6]), np.array([10])), 1_000)
    second = WalChange((one.state(),), (backlog[0].id,), {"a": {1: (7, 1)}, "b": {0: (1, 1)}})
    found = recovery.read(encoded(first, second))
    assert found.clients == (one.state(), other.state())
    assert found.backlog == backlog[1:]
    assert found.positions == {"a": {0: (5, 1), 1: (7, 1)}, "b": {0: (1, 1)}}


def test_an_empty_log_gives_an_empty_snapshot() -> None:
    assert recovery.read([]) == WalSnapshot()
    assert recovery.resumed(WalSnapshot(), 1, IDLE_MS) == ((), {})


def test_a_report_that_a_former_version_did_not_see_acknowledged_counts_once() -> None:
    """The older version reported into the only shard of its time; this version reports its logged counts
    again."""
    one = client_with("a", 5, source="client-7@1")
    tree = msgspec.msgpack.decode(recovery.encode(WalSnapshot((one.state(),))))
    (state,) = (client_with for client_with in tree["clients"])
    assert state.pop("shard"), "the shard differs from that of older versions"
    (sent,) = one.reports(1_000)
    before = msgspec.structs.replace(sent, shard=0)
    (repeated,), _ = recovery.resumed(recovery.read([msgspec.msgpack.encode(tree)]), 2_000, IDLE_MS)
    assert repeated.id == before.id
    assert counted_records(before, repeated) == 1


def test_a_continued_client_reports_in_the_shard_of_its_earlier_reports() -> None:
    one = client_with("a", 5, source="client-7@1")
    (sent,) = one.reports(1_000)
    (_, more) = ClientAudit.restored(one.state(), IDLE_MS).reports(2_000)
    assert sent.shard == more.shard != 0


def test_frames_of_another_version_are_reported() -> None:
    with pytest.raises(recovery.UnreadableFrames, match="frame 0 of the log"):
        recovery.read([msgspec.msgpack.encode({"type": "unheard-of"})])


def test_the_earlier_incarnation_is_ended_with_its_logged_counts() -> None:
    before = client_with("a", 5, 6)
    (pending,) = before.reports(1_000)
    before.add(RecordArrays(np.array([7, 8, 150]), np.full(3, 10)), 1_000)
    resumed = recovery.resumed(WalSnapshot((before.state(),)), 2_000, IDLE_MS)
    assert resumed.backlog[0] == pending
    assert [(report.source, report.part, report.leaves) for report in resumed.backlog] == [
        ("web@1", 0, False), ("web@1", 1, True),
    ]  # fmt: skip
    assert counted_records(*resumed.backlog) == 5


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_where_the_end_of_the_log_was_lost_nothing_is_counted_twice(
    adds: list[int], draw: st.DataObject
) -> None:
    """Reports that are missing from the log were sent, so the reports in their place carry the same
    numbers."""
    one, states, sent = client_with("a"), list[ClientState](), list[Report]()
    for many in adds:
        states.append(one.state())
        one.add(RecordArrays(np.full(many, 5), np.full(many, 10)), 1_000)
        (report,) = one.reports(1_000)
        one.acknowledged(report)
        sent.append(report)
    lost_from = draw.draw(st.integers(0, len(states) - 1))
    resumed = recovery.resumed(WalSnapshot((states[lost_from],)), 2_000, IDLE_MS)
    arrived = [*sent, *resumed.backlog]
    assert counted_records(*draw.draw(st.permutations(arrived))) <= sum(adds)
    assert counted_records(*arrived) == sum(adds)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 12)), min_size=1, max_size=12))
def test_a_record_counts_once_however_often_a_partition_is_read_again(reads: list[tuple[int, int]]) -> None:
    """Each read starts at or below the end of the reads before it."""
    position: Position | None = None
    seen: list[int] = []
    end = 0
    for back, many in reads:
        begin = max(0, end - back)
        for offset in range(begin, begin + many):
            new = moved(position, offset, 1_000 + offset)
            if new is not None:
                position = new
                seen.append(offset)
        end = max(end, begin + many)
    assert seen == list(range(end))


def test_younger_records_at_old_offsets_are_of_another_topic_with_the_same_name() -> None:
    position = moved((500, 9_000), 0, 9_001)
    assert position == (1, 9_001)
    assert moved(position, 1, 8_000) == (2, 9_001)
    assert moved((500, 9_000), 499, 9_000) is None
