"""A group moves between regions at random: nothing is lost, and only unknown records are read again.

`tests.offsets.model.simulation.world` has the checks.
`SWITCHYARD_HISTORIES=10000 pytest -s tests/offsets/model/test_three_regions.py` plays that many histories
and prints what they read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from app.kafka.records.leader_epochs import ENDLESS, NOWHERE
from app.kafka.records.producer_sequences import later
from app.kernel.fencing import LogId
from app.offsets.model import offset_map, source_frontier, translation
from app.offsets.model.offset_map import LineEnd, OffsetMapLine
from tests.offsets.model.simulation import logs
from tests.offsets.model.simulation.handover import Closing, Left
from tests.offsets.model.simulation.history import history, play
from tests.offsets.model.simulation.world import Broken, World

HISTORIES = int(os.environ.get("SWITCHYARD_HISTORIES", "200"))


@dataclass
class Tally:
    """Counts over all histories.

    Attributes:
        again: By failover, the records that were finished before and delivered again.
        unknown: By failover, the records of `again` that no copied tracker record knew.
        spared: By failover, the records that frontiers passed over.
        open_ended: By failover, the records of `again` behind the last barrier of a lane that has ended.
        written, absent: All records, and those that a reader could never get.
    """

    again: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    spared: list[int] = field(default_factory=list)
    open_ended: list[int] = field(default_factory=list)
    written: int = 0
    absent: int = 0

    def add(self, world: World) -> None:
        self.written += len(world.where)
        self.absent += len(world.absent - world.delivered.keys())
        for stint in world.stints:
            if stint.is_failover:
                self.again.append(len(stint.again))
                self.unknown.append(len(stint.unknown))
                self.spared.append(len(stint.passed - stint.again))
                self.open_ended.append(len(stint.open_ended & stint.again))

    def __str__(self) -> str:
        known = [again - unknown for again, unknown in zip(self.again, self.unknown, strict=True)]
        without = [one + spared for one, spared in zip(self.again, self.spared, strict=True)]
        return (
            f"{self.written} records, {len(self.again)} failovers; {self.absent} records were gone where the "
            f"group read\nread again: {_spread(self.again)}; not known across: {_spread(self.unknown)}; "
            f"known: {_spread(known)}; of lanes that ended: {_spread(self.open_ended)}\n"
            f"without frontiers: {_spread(without)}"
        )


def _spread(counts: Sequence[int]) -> str:
    ordered = sorted(counts) or [0]
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    return f"mean {sum(ordered) / len(ordered):.2f}, p99 {p99}, most {ordered[-1]}"


def played(seed: int) -> World:
    """One history to its end; every second one has short lines, which are thinned. Raises Broken."""
    with ExitStack() as patched:
        if seed % 2:
            patched.enter_context(patch.object(offset_map, "MAX_BARRIERS", 8))
            patched.enter_context(patch.object(offset_map, "THINNED_TO", 6))
        world = World(seed)
        play(world, history(seed, calm=seed % 3 == 0, routes=seed % 3 == 1))
        left = world.drain()
        if left:
            one = min(left)
            raise Broken(f"{len(left)} records were never delivered, as {one}: {world.where[one]}")
    return world


@pytest.mark.timeout(300 + HISTORIES)
def test_any_chain_of_failovers_loses_nothing_and_rereads_no_known_record() -> None:
    """Also: a mapped position never goes back, and lost offset syncs only move it back."""
    calm, routes, wild = kinds = Tally(), Tally(), Tally()
    for seed in range(HISTORIES):
        try:
            world = played(seed)
        except Broken as broken:
            raise Broken(f"history {seed}: {broken}") from broken
        kinds[seed % 3].add(world)
    print(  # noqa: T201
        f"\nlogs keep what they have: {calm}\nwith all that may happen: {wild}\n"
        f"and routes are deleted: {routes}"
    )
    assert not calm.absent, "nothing was deleted"
    assert wild.absent < wild.written / 10, "otherwise the histories show little"
    assert routes.absent < routes.written / 4, "likewise"
    for tally in kinds:
        assert len(tally.again) > HISTORIES, "there are failovers"
        known = sum(tally.again) - sum(tally.unknown)
        assert sum(tally.spared) > known / 2, "frontiers spare much of what was known"


@pytest.mark.deep(minutes=0.3)
def test_successors_close_former_owners_lanes_whose_last_records_are_passed_over() -> None:
    tallies = {}
    for closes in (False, True):
        tallies[closes] = Tally()
        with patch.object(logs, "closing", CLOSING if closes else lambda *_: None):
            for seed in range(0, 300, 3):
                tallies[closes].add(played(seed))
    # The rest are records of lanes whose barriers were lost, or whose copies were unsure.
    assert sum(tallies[True].open_ended) < 0.7 * sum(tallies[False].open_ended)


def closing_as(change: Callable[[Closing], Closing]) -> Callable[..., Closing | None]:
    """A `closing` that changes the barrier behind a former owner's lane, where there is one."""

    def changed_closing(left: Left, *found: Any) -> Closing | None:
        one = CLOSING(left, *found)
        return None if one is None else change(one)

    return changed_closing


CLOSING = logs.closing
READ_UP_TO = OffsetMapLine.read_up_to
AS_NOTICED = {False: ENDLESS, True: NOWHERE}
WRONG: dict[str, tuple[object, str, object]] = {
    "the next record counts as read": (
        OffsetMapLine,
        "read_up_to",
        lambda line, at: READ_UP_TO(line, at + 1),
    ),
    "the most of the sources": (translation, "min", max),
    "a number too far": (source_frontier, "later", lambda one, other: later(one, other) + 1),
    "what the source lost unnoticed": (
        OffsetMapLine,
        "agrees_below",
        lambda one, other: AS_NOTICED[one.is_of_another(other)],
    ),
    "a deleted route holds back nobody": (
        logs,
        "LineEnd",
        lambda epoch, target, _source_end, since, until: LineEnd(epoch, target, 0, since, until),
    ),
    "a deleted route has copied what was told": (
        logs,
        "LineEnd",
        lambda epoch, target, source_end, _since, until: LineEnd(epoch, target, source_end, 0, until),
    ),
    "what is not shown yet is none of a deleted route": (
        logs.CopyLog,
        "leader_end",
        property(lambda log: log.shown),
    ),
    "a former owner copied one more": (
        logs,
        "closing",
        closing_as(lambda one: one._replace(source_end=one.source_end + 1)),
    ),
    "a former owner numbered one less": (
        logs,
        "closing",
        closing_as(lambda one: one._replace(stamp=one.stamp.behind(-1))),
    ),
    "of whatever log": (LogId, "is_another", lambda _one, _other: False),
}


@pytest.mark.deep(minutes=0.3)
@pytest.mark.parametrize("wrong", WRONG)
def test_neighbouring_rules_break_a_promise(wrong: str) -> None:
    """The histories find each of these wrong rules."""
    of, name, rule = WRONG[wrong]
    with patch.object(of, name, rule, create=True):
        for seed in range(500):
            try:
                played(seed)
            except Broken:
                return
    pytest.fail("nothing was seen of it")
