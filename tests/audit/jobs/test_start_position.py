"""Where an audit begins: where its former owner had come, if the log has that; cut windows are marked."""

from __future__ import annotations

from typing import Any

import pytest

from app.audit.counts.handover import AuditNote, CountsFrom
from app.audit.counts.partition_counter import PartState
from app.audit.jobs.start_position import AuditStart, find_audit_start
from app.audit.pump.partition import PART_OFFSETS
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.worker.jobs.start_position import LineageReset

JOB = JobId.parse("audit:all//east:orders:3")
COUNTING = 60_000
LOG = LogId("c", "t")


class OneLog:
    """A cluster with one log, which begins at `first`."""

    def __init__(self, first: int) -> None:
        self.first, self.name = first, "east"
        self.client: Any = self
        self.fetch: Any = self

    async def topic_ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, LOG.topic_id)

    async def cluster_id(self) -> str:
        return LOG.cluster_id

    async def offsets_at(self, *_: object) -> int:
        return self.first


async def begin(
    first: int,
    base: int | None = None,
    note: bytes = b"",
    reset: LineageReset | None = None,
    log: LogId = LOG,
    counting: int = COUNTING,
) -> tuple[AuditStart, list[str]]:
    incidents: list[str] = []
    snapshot = b"" if base is None else Snapshot(base).to_bytes()
    answer = TakeoverAnswer(
        job=str(JOB), epoch=2, worker="me", nonce="", granted=True, known_epoch=2, snapshot=snapshot,
        lineage=4, log=log, note=note,
    )  # fmt: skip
    cluster: Any = OneLog(first)
    found = await find_audit_start(
        JOB,
        cluster,
        answer,
        counting=counting,
        reset=reset,
        report_incident=lambda kind, *_: incidents.append(kind),
    )
    return found, incidents


@pytest.mark.parametrize(("first", "is_cut"), [(0, False), (700, True)])
async def test_without_a_position_it_begins_at_the_logs_start(first: int, is_cut: bool) -> None:
    found, _ = await begin(first)
    assert (found.start.snapshot.base, found.counts) == (first, CountsFrom(first, None, is_cut))


BASE = PART_OFFSETS + 1_000
SINCE = PART_OFFSETS + 10
PLACES = [
    # the log's start, what is counted up to which offset -> where it begins, what is finished
    (0, BASE + 50, BASE + 50, BASE),
    (0, BASE, BASE, BASE),
    (SINCE, SINCE, SINCE, BASE),  # the note does not say what was counted
    (SINCE + 10, SINCE, BASE, BASE),  # that has gone
    (BASE + 5, SINCE, BASE + 5, BASE + 5),
    (BASE + 5, BASE + 50, BASE + 50, BASE),
    (BASE + 55, BASE + 50, BASE + 55, BASE + 55),
]


def left(upto: int, counting: int = COUNTING, *, is_cut: bool = False) -> AuditNote:
    """The note of a former owner."""
    return AuditNote(counting, is_cut, (PartState(1, SINCE, upto, False, ()),))


@pytest.mark.parametrize(("first", "upto", "starts", "finished"), PLACES)
async def test_a_successor_continues_where_its_predecessor_had_come_if_the_log_has_it(
    first: int, upto: int, starts: int, finished: int
) -> None:
    found, incidents = await begin(first, BASE, left(upto).to_bytes())
    counts = found.counts
    assert (counts.next_offset, found.start.snapshot.base, incidents) == (starts, finished, [])
    assert (counts.former, found.start.known) == (left(upto), starts == upto)
    assert counts.is_cut == (first > max(BASE, upto)), "uncounted records are gone"
    assert found.start.lineage == 4


@pytest.mark.parametrize(
    ("note", "lineage"), [(b"no note", 5), (b"65536 60000 0", 5), (left(BASE, is_cut=True).to_bytes(), 4)]
)
async def test_windows_that_may_be_cut_are_marked(note: bytes, lineage: int) -> None:
    found, _ = await begin(0, BASE, note)
    assert (found.counts.next_offset, found.start.lineage, found.counts.is_cut) == (BASE, lineage, True)


async def test_a_job_with_other_settings_begins_where_the_former_owners_reports_end() -> None:
    found, _ = await begin(0, BASE, left(BASE + 50, COUNTING + 1).to_bytes())
    assert found.counts == CountsFrom(BASE, None, is_cut=True)
    assert not found.start.known


async def test_another_log_begins_a_new_lineage_and_is_reported() -> None:
    found, incidents = await begin(7, BASE, log=LogId("c", "another"))
    assert (found.counts.next_offset, found.start.lineage, incidents) == (7, 5, ["log-begun-anew"])
    again, _ = await begin(7, BASE, reset=LineageReset(2, 9, 42))
    assert (again.counts, again.start.lineage) == (CountsFrom(42, None, is_cut=True), 9)
