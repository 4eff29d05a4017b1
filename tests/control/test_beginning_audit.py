"""Where an audit begins: where its part began if that is still there, and what is cut is known as such."""

from __future__ import annotations

from typing import Any

import pytest

from app.audit.pump import Note
from app.control.beginning import Anew
from app.control.beginning_audit import AuditBeginning, find_audit_beginning
from app.core.audit.reports import PART_OFFSETS
from app.core.fencing import LogId, TakeoverAnswer
from app.core.job import JobId
from app.core.ranges import Snapshot

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
    anew: Anew | None = None,
    log: LogId = LOG,
    counting: int = COUNTING,
) -> tuple[AuditBeginning, list[str]]:
    told: list[str] = []
    snapshot = b"" if base is None else Snapshot(base).to_bytes()
    answer = TakeoverAnswer(
        job=str(JOB), epoch=2, worker="me", nonce="", granted=True, known_epoch=2, snapshot=snapshot,
        lineage=4, log=log, note=note,
    )  # fmt: skip
    cluster: Any = OneLog(first)
    found = await find_audit_beginning(
        JOB, cluster, answer, counting=counting, anew=anew, tell=lambda kind, *_: told.append(kind)
    )
    return found, told


@pytest.mark.parametrize(("first", "is_cut"), [(0, False), (700, True)])
async def test_without_a_position_it_begins_at_the_logs_start(first: int, is_cut: bool) -> None:
    found, _ = await begin(first)
    assert (found.next_offset, found.beginning.snapshot.base, found.is_cut) == (first, first, is_cut)


BASE = PART_OFFSETS + 1_000
PLACES = [
    # the log's start, where the part began (-1: not said) -> where it begins
    (0, PART_OFFSETS, PART_OFFSETS),
    (PART_OFFSETS + 10, PART_OFFSETS + 10, PART_OFFSETS + 10),
    (PART_OFFSETS + 20, PART_OFFSETS + 10, BASE),  # that has gone
    (BASE + 5, PART_OFFSETS + 10, BASE + 5),
    (0, 5, PART_OFFSETS),  # of a part before
]


@pytest.mark.parametrize(("first", "since", "starts"), PLACES)
async def test_a_successor_begins_where_the_part_began_if_that_is_there(
    first: int, since: int, starts: int
) -> None:
    found, told = await begin(first, BASE, Note(since, COUNTING, False).to_bytes())
    assert (found.next_offset, told) == (starts, [])
    assert found.is_cut == (first > BASE), "what nobody had counted has gone"
    assert found.beginning.snapshot.base == max(BASE, starts), "a position never goes back"
    assert found.beginning.lineage == 4


@pytest.mark.parametrize("note", [b"", b"no note", Note(0, COUNTING, True).to_bytes()])
async def test_what_may_be_cut_is_known_as_such(note: bytes) -> None:
    found, _ = await begin(0, 10, note)
    assert (found.next_offset, found.is_cut) == (0, True)


async def test_who_counts_otherwise_goes_on_where_the_former_owner_had_come() -> None:
    found, _ = await begin(0, BASE, Note(PART_OFFSETS, COUNTING + 1, False).to_bytes())
    assert (found.next_offset, found.is_cut, found.beginning.known) == (BASE, True, False)


async def test_another_log_begins_a_new_lineage_and_is_told() -> None:
    found, told = await begin(7, BASE, log=LogId("c", "another"))
    assert (found.next_offset, found.beginning.lineage, told) == (7, 5, ["log-begun-anew"])
    again, _ = await begin(7, BASE, anew=Anew(2, 9, 42))
    assert (again.next_offset, again.beginning.lineage, again.is_cut) == (42, 9, True)
