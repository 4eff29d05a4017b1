"""Before a failover, the planner finds regions that define other regions for a topic, from the copies of
their logs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.controllog import codec
from app.controllog.events import FailoverDeleted, FailoverPut
from app.failover.plan.document import Check
from app.failover.plan.region_agreement import RegionDefinitions
from app.offsets.store.records import ROUTES, ChangelogOrigin
from app.offsets.store.tables import RegionAtlas, RegionTables
from tests.failover.run.region_fakes import KEY, FakeRegion, failover, workload


class Case:
    """The west plans. It has its own definition, and may have received other definitions of the east's."""

    def __init__(self, path: Path, *ours: FailoverPut) -> None:
        nothing: Any = SimpleNamespace(specs={})
        self.west = FakeRegion("west", *ours, workload())
        self.tables = RegionTables(RegionAtlas("west", {}, {}), nothing, path)

    async def receive(self, *events: FailoverPut | FailoverDeleted, complete: bool = True) -> None:
        records: dict[bytes, bytes | None] = {
            f"failover/{event.key}".encode(): codec.encode(event) for event in events
        }
        origin = ChangelogOrigin(cluster="west-regional", topic_id="t", complete=complete)
        await self.tables.ask(lambda store: store.write(ROUTES, "east", records, origin))

    async def check(self) -> Check:
        runtime: Any = SimpleNamespace(
            regions=SimpleNamespace(tables=self.tables),
            failover=SimpleNamespace(derived_routes=self.west.failovers),
        )
        planned = self.west._workload(KEY)
        assert planned is not None
        return await RegionDefinitions(runtime).same_regions(planned, "east")


@pytest.mark.parametrize(
    ("theirs", "level", "words"),
    [
        (failover("east", "west"), "ok", "shared between the same regions as in region east"),
        (failover("west", "east"), "warn", "the Failover definition of topic orders in region east differs"),
        (failover("east", "west", name="a"), "warn", "of topic orders in region east differs (a)"),
        (failover("east", "north", "west"), "blocked", "between east, north, west (orders), this one between "
         "east, west: two regions could then issue the same epoch"),
        (failover("east", "north"), "blocked", "between east, north (orders)"),
    ],
)  # fmt: skip
async def test_other_regions_of_the_topic_block_and_are_not_to_be_forced(
    tmp_path: Path, theirs: FailoverPut, level: str, words: str
) -> None:
    case = Case(tmp_path, failover("east", "west"))
    try:
        await case.receive(theirs)
        check = await case.check()
    finally:
        await case.tables.close()
    assert (check.name, check.level, check.may_force) == ("regions", level, False)
    assert words in check.detail
    assert ("deploy the same file in both" in check.remedy) is (level != "ok")


async def test_unknown_definitions_of_a_region_do_not_block_and_their_absence_is_known(
    tmp_path: Path,
) -> None:
    case = Case(tmp_path, failover("east", "west"))
    try:
        assert "are unknown here" in (await case.check()).detail
        await case.receive(complete=False)
        assert "are unknown here" in (await case.check()).detail
        theirs = failover("east", "west")
        await case.receive(FailoverDeleted(at_ms=2, key=theirs.key, actor="me"))
        check = await case.check()
        assert check.level == "warn"
        assert "has no Failover definition of topic orders" in check.detail
    finally:
        await case.tables.close()
