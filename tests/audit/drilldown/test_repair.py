"""Copying again: targets and refusals. tests/system makes the copies."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ProducerFenced

from app.audit.definition import AuditPlan
from app.audit.drilldown import partition_repair, repair
from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.findings import Finding, FindingKind, LossExclusions, ObservedRecord
from app.audit.drilldown.prints import EventTimeWindow
from app.audit.drilldown.repair import CopiedAgain, NotLeading, targets
from app.audit.drilldown.search import SearchResult
from app.audit.drilldown.sides import AuditedTopic, CopyRoute, NotReadable, Question, Sides
from tests.audit.api.plans import plan

HERE = ClusterPartition("east-regional", "orders", 1)
THERE = ClusterPartition("east", "orders", 1)


def answer(**there: Any) -> SearchResult:
    """An answer with one record missing in `east`, whose topic has these settings."""
    counted = AuditPlan.model_validate(plan())
    client: Any = None
    upstream = AuditedTopic(HERE.cluster, HERE.topic, client, "e-r", "t1", 2, counted)
    downstream = AuditedTopic(THERE.cluster, THERE.topic, client, "e", "t2", 2, counted)._replace(**there)
    sides = Sides(
        EventTimeWindow(0, 600_000), [], [upstream], [downstream],
        [CopyRoute(HERE.cluster, THERE.cluster, HERE.topic, THERE.topic)], LossExclusions(), [], {},
    )  # fmt: skip
    findings = [Finding(FindingKind.MISSING, ObservedRecord(HERE, 7, 1, 2, 3, 4))]
    question = Question("orders", "regional", "aggregate", 0)
    return SearchResult(question, sides.window, findings, {"missing": 1}, 1, 1, [], [], sides)


class Log:
    """Stands in for a partition's log. After `ends_after` transactions, the producer is fenced."""

    def __init__(self, ends_after: int) -> None:
        self.ends_after, self.appended = ends_after, list[Any]()
        self.looked: list[list[tuple[ClusterPartition, int]]] = []

    def stands_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("_fencing_producer", "_append", "_wait_until_visible"):
            monkeypatch.setattr(partition_repair, name, getattr(self, name))
        monkeypatch.setattr(partition_repair.PartitionRepair, "_copies_of_others", self._looked_at)
        monkeypatch.setattr(repair, "_records", self._records)
        monkeypatch.setattr(repair, "_part", self._part)
        monkeypatch.setattr(repair, "RECORDS_PER_TRANSACTION", 1)

        async def most(*_: Any) -> int:
            return 1_000

        monkeypatch.setattr(partition_repair, "_max_bytes", most)

    def _part(self, _: Any, place: ClusterPartition) -> Any:
        return SimpleNamespace(reader=SimpleNamespace(place=place), log_end=0)

    @contextlib.asynccontextmanager
    async def _fencing_producer(self, *_: Any) -> Any:
        yield self

    async def _looked_at(self, seen: Any) -> list[ObservedRecord]:
        self.looked.append([(one.place, one.offset) for one in seen])
        return []

    async def _records(self, _: Any, left: Any) -> Any:
        for offset in left:
            yield [SimpleNamespace(offset=offset, timestamp=1, key=None, value=b"v", headers=())], 0

    async def _append(self, producer: Any, place: ClusterPartition, batches: Any) -> list[int]:
        if len(self.appended) >= self.ends_after:
            raise ProducerFenced
        self.appended.append(place)
        return [len(self.appended)]

    async def _wait_until_visible(self, client: Any, place: ClusterPartition, offset: int) -> None:
        assert offset == len(self.appended), "the last one"

    async def copy(self, answer: SearchResult) -> CopiedAgain:
        async def get(_: str) -> Any:
            return SimpleNamespace(client=None)

        runtime: Any = SimpleNamespace(leader=SimpleNamespace(leads=True), clusters=SimpleNamespace(get=get))
        return await repair.copy_again(runtime, answer, lambda _: None)


def several() -> SearchResult:
    """An answer with two regional clusters that lack two records each in one partition."""
    found, west = answer(), HERE._replace(cluster="west-regional")
    copier = found.sides.copiers[0]
    found.sides.copiers.append(copier._replace(source=west.cluster))
    found.sides.upstream.append(found.sides.upstream[0]._replace(cluster=west.cluster))
    found.findings[:] = [
        Finding(FindingKind.MISSING, ObservedRecord(place, offset, 1, 2, 3, 4))
        for place in (HERE, west)
        for offset in (7, 9)
    ]
    return found


async def test_existing_copies_of_two_sources_are_searched_before_either_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (log := Log(99)).stands_in(monkeypatch)
    assert await log.copy(several()) == CopiedAgain(4, 0, 0, 0, ())
    west = HERE._replace(cluster="west-regional")
    assert log.looked == [[(HERE, 7), (HERE, 9), (west, 7), (west, 9)]]


async def test_a_fenced_worker_reports_how_many_records_it_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    (log := Log(3)).stands_in(monkeypatch)
    with pytest.raises(NotLeading, match="3 of 4 records were copied here"):
        await log.copy(several())


def test_a_record_goes_to_the_partition_of_the_same_number() -> None:
    assert targets(answer())[HERE].place == THERE


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"is_compacted": True}, "is compacted, so an old value would become the newest of its key"),
        ({"partitions": 1}, "add as many as orders in east-regional has"),
    ],
)
def test_a_harmful_copy_is_refused(there: dict[str, Any], why: str) -> None:
    with pytest.raises(NotReadable, match=why):
        targets(answer(**there))
