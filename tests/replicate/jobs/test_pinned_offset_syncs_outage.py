"""The published needs of groups that cannot be read for a while stay. Brokers are simulated, so that the test
decides which of them answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog.events import Assignment, Claim
from app.controllog.state import ControlState
from app.kafka.client.cluster import ClusterSpec, ClusterUnreachable
from app.kafka.client.commits import CommittedPosition, OffsetCommitter, TopicAndPartition
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import (
    MAX_BARRIERS,
    Barrier,
    BarrierItem,
    NeedItem,
    PinnedOffsets,
    after,
    needs_of,
    with_pins,
)
from app.replicate.jobs import pinned_offset_syncs as module
from app.replicate.jobs.pinned_offset_syncs import ClusterPositions, PinnedOffsetSyncs
from app.replicate.topics.catalog import RoutesCatalog
from app.replicate.topics.readable_routes import ReadableRoutes
from tests.web.runtime_fake import put_route, route

AT = "orders", 0


class Played:
    """A cluster with its groups' commits; some groups cannot be read. `silent`: the coordinator of a group
    does not answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client = self.committer = self
        self.groups_of: dict[str, int] = {}
        self.unread: set[str] = set()
        self.silent: set[str] = set()

    async def cluster_id(self) -> str:
        return self.name

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id")

    async def groups(self, *, every_broker: bool = False) -> list[str]:
        if self.silent and every_broker:
            raise ClusterUnreachable(self.name)
        return sorted(self.groups_of.keys() - self.silent)

    async def positions(self, group: str, tries: int = 20) -> dict[TopicAndPartition, CommittedPosition]:
        if group in self.unread:
            raise ClusterUnreachable(group)
        return {AT: CommittedPosition(self.groups_of[group], "")}


class Rig:
    """A leader that reads the groups' positions."""

    def __init__(self) -> None:
        self.east, self.west = Played("east"), Played("west")
        self.published: list[NeedItem] = []
        view = ControlState()
        control: Any = SimpleNamespace(view=view)
        clusters: Any = self
        sender: Any = self
        self.specs = {name: ClusterSpec(name, ("127.0.0.1:1",)) for name in ("east", "west")}
        catalog = RoutesCatalog(control, clusters, lambda *_: None, ReadableRoutes(control, lambda *_: None))
        self.needed = PinnedOffsetSyncs(control, catalog, clusters, sender, lambda: True)
        view.apply(put_route(route("mirror", "east", "west", "orders")))
        view.apply(Claim(at_ms=0, term=1, worker="w"))
        job = "replicate:mirror:orders:0"
        view.apply(Assignment(at_ms=0, job=job, worker="w", epoch=1, term=1, reason=""))

    async def get(self, name: str) -> Played:
        return {"east": self.east, "west": self.west}[name]

    async def ask(self, items: Iterable[NeedItem]) -> list[Awaitable[Any]]:
        self.published += items
        return []

    async def published_needs(self, times: int = 1) -> list[PinnedOffsets]:
        self.published.clear()
        for _ in range(times):
            await self.needed.publish_changes()
        return [item.needs for item in self.published]


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.west.groups_of = {"idle": 7, "other": 30}
    assert await rig.published_needs(2) == [PinnedOffsets([7, 30], [])]
    return rig


async def test_a_group_whose_coordinator_restarts_keeps_what_it_needs(rig: Rig) -> None:
    rig.west.silent = {"idle"}
    rig.west.groups_of["other"] = 40
    assert await rig.published_needs(3) == []
    rig.west.silent = set()
    assert await rig.published_needs(2) == [PinnedOffsets([7], []), PinnedOffsets([7, 40], [])]


async def test_a_group_that_cannot_be_read_counts_with_its_last_position_and_affects_no_other(
    rig: Rig,
) -> None:
    rig.west.unread = {"idle", "never-read"}
    rig.west.groups_of |= {"other": 40, "never-read": 3}
    assert await rig.published_needs(2) == [PinnedOffsets([7], []), PinnedOffsets([7, 40], [])]


async def test_needs_that_were_published_before_their_line_existed_are_published_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLLS_BEFORE_RESEND", 5)
    assert await rig.published_needs(5) == [PinnedOffsets([7, 30], [])]


class Brokers:
    """Two brokers; the second may not answer."""

    name = "played"

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers

    async def metadata(self, _topics: object) -> Any:
        return SimpleNamespace(brokers=[(1, "a", 1, None), (2, "b", 1, None)])

    async def send(self, node: int, *_: object) -> Any:
        if node == 2 and not self.answers:
            raise TimeoutError
        return SimpleNamespace(error_code=0, groups=[(f"of-{node}", "consumer")])


async def test_groups_are_listed_without_a_silent_broker_unless_every_broker_must_answer() -> None:
    silent: Any = Brokers(answers=False)
    heard: Any = Brokers(answers=True)
    assert await OffsetCommitter(silent).groups() == ["of-1"]
    with pytest.raises(ClusterUnreachable, match="cannot be listed"):
        await OffsetCommitter(silent).groups(every_broker=True)
    assert await OffsetCommitter(heard).groups(every_broker=True) == ["of-1", "of-2"]


APART, A_LOOK, LOOKS = 1_000, 40, 40  # offsets between barriers; barriers between two looks
FEW_PERCENT = 0.06
moves = st.sampled_from([0, 0, 0, 1, 700, 30_000])


@given(
    st.lists(st.tuples(st.integers(0, 200_000), st.lists(moves, min_size=LOOKS, max_size=LOOKS)), max_size=8)
)
def test_thinning_costs_unmoved_groups_nothing_and_the_lowest_moving_group_a_few_percent(
    groups: list[tuple[int, list[int]]],
) -> None:
    """Groups of one copy, some unmoved, some moving, while the line grows to several times its capacity."""
    line = after(None, _grown(0, 300))
    before: ClusterPositions | None = None
    was: dict[str, int] = {}
    kept: dict[str, tuple[int, int | None]] = {}  # unmoved group -> position, and its translation
    for look in range(LOOKS):
        at = {f"g{n}": start + sum(steps[:look]) for n, (start, steps) in enumerate(groups)}
        seen = ClusterPositions({group: {AT: position} for group, position in at.items()}, "c", {})
        assert line is not None
        still = module._unmoved(before, seen).get(AT, []) if before is not None else []
        item = NeedItem("r", "orders", 0, LogId("c", "t"), needs_of(still, []))
        line, before = with_pins(line, item) or line, seen
        newest = line.barriers[-1].target_end
        for group, position in at.items():
            found = line.read_up_to(position)
            assert found is not None
            exact = min(position // APART * APART, newest)
            assert exact - found <= max(APART, FEW_PERCENT * (newest - found))
            if kept.get(group, (-1, None))[0] == position:
                assert found == kept[group][1], "it lies still"
        rests = {group: position for group, position in at.items() if was.get(group) == position}
        kept = {group: (position, line.read_up_to(position)) for group, position in rests.items()}
        was = at
        line = after(line, _grown(300 + look * A_LOOK, A_LOOK)) or line
        assert len(line.barriers) <= MAX_BARRIERS


def _grown(start: int, count: int) -> BarrierItem:
    log, ends = LogId("c", "t"), range(start * APART, (start + count) * APART, APART)
    return BarrierItem("r", "orders", 0, 1, 0, log, log, "orders", 0, [Barrier(end, end) for end in ends])
