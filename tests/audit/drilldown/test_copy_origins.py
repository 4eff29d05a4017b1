"""The bounds of a copy's origin always include its true source offset, whatever happened to its lane."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.audit.drilldown.copy_origins import ClusterPartition, CopyOrigin, CopyOrigins
from app.kafka.records.leader_epochs import ENDLESS
from app.kafka.records.producer_sequences import SEQUENCES, ProducerStamp
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, OffsetMapLine
from tests.offsets.model.stamped_sources import Batch, World
from tests.offsets.model.test_source_frontier import by_chance, histories, sequences, sources

COPY = LogId("d", "t")


def of_world(world: World) -> list[tuple[ClusterPartition, OffsetMapLine]]:
    return [(ClusterPartition("c", line.name, 0), line.line) for line in world.lines(world.into_a)]  # type: ignore[misc]


def check(batch: Batch, origin: CopyOrigin | None) -> None:
    for at, (name, offset) in enumerate(batch.records):
        if origin is not None:
            assert origin.behind(at).may_be(ClusterPartition("c", name, 0), offset), (batch, origin)


@given(histories, sources, sequences, st.data())
def test_the_true_offset_is_always_within_the_bounds(
    acts: list[tuple[int, int, int]], hidden: list[int], sequence: int, chance: st.DataObject
) -> None:
    world = World(hidden, sequence)
    world.play(acts)
    lines = of_world(world)
    coin = st.booleans()
    some = [
        (source, msgspec.structs.replace(line, barriers=[b for b in line.barriers if chance.draw(coin)]))
        for source, line in lines
    ]
    for known in (lines, some):
        origins = CopyOrigins(known, 0, COPY)
        for batch in world.a.batches:
            check(batch, origins.of(batch.start, batch.end, *batch.stamp))


def test_most_origins_are_exact_if_no_offset_is_skipped() -> None:
    exact = total = 0
    for seed in range(40):
        world = World([0, 0], SEQUENCES - 7 if random.Random(seed).random() < 0.5 else 0)
        world.play(by_chance(seed))
        origins = CopyOrigins(of_world(world), 0, COPY)
        for batch in world.a.batches:
            origin = origins.of(batch.start, batch.end, *batch.stamp)
            check(batch, origin)
            total += 1
            exact += origin is not None and origin.is_exact
    assert exact / total > 0.7


def line(*barriers: Barrier, target: LogId = COPY) -> OffsetMapLine:
    return OffsetMapLine(
        target_topic="orders", target_partition=0, epoch=1, lineage=0, source=LogId("c", "s"), target=target,
        barriers=list(barriers),
    )  # fmt: skip


HOME, OTHER = ClusterPartition("c", "orders", 0), ClusterPartition("c", "orders", 1)
BARRIERS = Barrier(100, 20, 0, ProducerStamp(7, 0, 0)), Barrier(130, 50, 0, ProducerStamp(7, 0, 28))


def test_an_origin_between_barriers_that_skip_offsets_has_bounds() -> None:
    origins = CopyOrigins([(HOME, line(*BARRIERS))], 0, COPY)
    assert origins.of(20, 25, 7, 0, 0) == CopyOrigin(HOME, 100, 102)
    assert origins.of(48, 50, 7, 0, 26) == CopyOrigin(HOME, 126, 128)
    assert origins.of(60, 65, 7, 0, 30) == CopyOrigin(HOME, 132, ENDLESS), "no later barrier yet"
    assert CopyOrigin(HOME, 5, ENDLESS).behind(2) == CopyOrigin(HOME, 7, ENDLESS)


def test_foreign_and_contradictory_barriers_give_no_origin() -> None:
    mine = (HOME, line(*BARRIERS))
    assert CopyOrigins([mine], 0, COPY).of(20, 25, 8, 0, 0) is None, "another producer"
    assert CopyOrigins([mine], 1, COPY).of(20, 25, 7, 0, 0) is None, "another partition"
    assert CopyOrigins([mine], 0, LogId("d", "anew")).of(20, 25, 7, 0, 0) is None, "another copy"
    assert CopyOrigins([mine, (OTHER, line(*BARRIERS))], 0, COPY).of(20, 25, 7, 0, 0) is None, "two claim it"
    assert CopyOrigins([mine], 0, COPY).source_of(7, 0) == HOME
    contradicts = line(BARRIERS[0], Barrier(105, 50, 0, ProducerStamp(7, 0, 28)))
    assert CopyOrigins([(HOME, contradicts)], 0, COPY).of(20, 25, 7, 0, 0) is None
