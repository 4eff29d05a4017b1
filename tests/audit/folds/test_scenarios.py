"""Seeded scenarios: every fault is found and named where it was made, and nothing else is accused.

As many as Hypothesis tries, and at most a thousand (`HYPOTHESIS_PROFILE=soak`). Every kind comes at every
tier in turn, in half of the scenarios with another fault in another window. `SWITCHYARD_SCENARIOS` sets
another number.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from hypothesis import settings

from app.audit.drilldown.reconciliation import InvertibleBloomTable, cells_for
from app.audit.drilldown.strata_estimator import Strata
from app.audit.folds.comparison import WindowState, WindowVerdict
from switchyard.audit.model.fingerprint import ids_of
from tests.audit.folds.pipeline import END_MS, PAIRS, TICK_MS, TIERS, WIDTH_MS, WINDOWS, Fault, Kind, Pipeline

SCENARIOS = int(os.environ.get("SWITCHYARD_SCENARIOS") or min(1_000, settings().max_examples))
SHARE = 25  # scenarios a test
ACCUSATIONS = {WindowState.LOSSY, WindowState.DUPLICATED, WindowState.CORRUPTED}
NAMED = {
    Kind.LOSS: WindowState.LOSSY,
    Kind.DUPLICATION: WindowState.DUPLICATED,
    Kind.CORRUPTION: WindowState.CORRUPTED,
    Kind.LATE: WindowState.LATE,
}
OF_AUDIT = {Kind.SILENCE, Kind.DEATH, Kind.BEFORE}  # of which nothing is to be believed but that it is absent
KINDS = list(Kind)
WHOLE = 10_000  # more messages than a window has


def faults_of(seed: int) -> tuple[Fault, ...]:
    """All kinds at all tiers, by turns; and another in another window, now and then."""
    choose = random.Random(seed)
    kind, turn = KINDS[seed % len(KINDS)], seed // len(KINDS)
    first = 1 if kind in NAMED else 0  # nothing comes to the first tier
    windows = choose.sample(range(WINDOWS), 2)
    at_ms = choose.randrange(20_000, WINDOWS * WIDTH_MS)
    if kind is Kind.DEATH and choose.random() < 0.2:
        at_ms = 0
    some = choose.choice([1, 2, 3, 4, 5, WHOLE])
    one = Fault(kind, first + turn % (len(TIERS) - first), windows[0], some, at_ms)
    if kind is Kind.NONE or choose.random() < 0.5:
        return (one,)
    others = [one for one in NAMED if one is not Kind.LATE or kind is not Kind.LATE]
    other = choose.choice(
        others
    )  # what is late keeps other windows open until what is late there, too, comes
    return one, Fault(other, choose.randrange(1, len(TIERS)), windows[1], choose.randint(1, 5))


class Watched(Pipeline):
    """Looks at all windows after every tick: an accusation must be right the first time it is made."""

    @property
    def absent(self) -> set[str]:
        """Tiers that may be reported as absent."""
        return {TIERS[one.tier] for one in self.faults if one.kind in OF_AUDIT}

    def _collect(self) -> None:
        super()._collect()
        for pair in range(len(PAIRS)):
            for window in range(min(WINDOWS, self.now_ms // WIDTH_MS)):
                verdict = self.verdict(pair, window)
                fault = named_at(self.faults, pair, window)
                is_wrong = verdict.state in ACCUSATIONS and not is_named(fault, verdict)
                if is_wrong or not self.absent.issuperset(verdict.absent):
                    self.wrong.append((self.now_ms, str(PAIRS[pair]), window, verdict))


def named_at(faults: tuple[Fault, ...], pair: int, window: int) -> Fault | None:
    """The fault that hit the window's messages between these tiers."""
    cells = {(one.tier - 1, one.window): one for one in faults if one.kind in NAMED}
    return cells.get((pair, window))


def is_named(fault: Fault | None, verdict: WindowVerdict) -> bool:
    """Whether a verdict is what was done."""
    if fault is None:
        return verdict.state is WindowState.OK
    if fault.kind is Kind.LATE and verdict.state is WindowState.LOSSY:  # until they come
        return True
    return verdict.state is NAMED[fault.kind]


def check(seed: int) -> None:
    faults = faults_of(seed)
    run = Watched(seed, faults).run()
    assert run.now_ms == END_MS
    assert not run.wrong, (faults, run.wrong[0])
    absent_verdicts = 0
    for pair in range(len(PAIRS)):
        for window in range(WINDOWS):
            verdict, fault = run.verdict(pair, window), named_at(faults, pair, window)
            context = (seed, faults, PAIRS[pair], window, verdict)
            if run.absent.intersection(PAIRS[pair]):
                is_late = verdict.state is WindowState.LATE and faults[0].kind is Kind.BEFORE
                assert verdict.state is WindowState.ABSENT or is_late or is_named(fault, verdict), context
                if verdict.state is WindowState.ABSENT:
                    assert set(verdict.absent) == run.absent, context
                    absent_verdicts += 1
                continue
            if came_in_time(run, pair, window, verdict) or is_late_of_itself(run, pair, window, verdict):
                continue
            assert is_named(fault, verdict), context
            if fault is not None:
                is_counted(run, pair, window, verdict)
    if faults[0].kind in OF_AUDIT and faults[0].at_ms <= (WINDOWS - 1) * WIDTH_MS:
        assert absent_verdicts, faults


def lates(run: Pipeline, pair: int, window: int) -> list[int]:
    """How many records came late to each of the two tiers."""
    return [run.side(tier, window).late.count for tier in PAIRS[pair]]


def came_in_time(run: Pipeline, pair: int, window: int, verdict: WindowVerdict) -> bool:
    """Whether late records found the window still open, because a report was delayed: that is ok."""
    fault = named_at(run.faults, pair, window)
    if fault is None or fault.kind is not Kind.LATE or verdict.state is not WindowState.OK:
        return False
    return lates(run, pair, window)[1] == 0


def is_late_of_itself(run: Pipeline, pair: int, window: int, verdict: WindowVerdict) -> bool:
    """Whether no fault hit these tiers, but an earlier one explains late records. A delayed report held the
    window open in the first tier, and the second one had closed it already."""
    if named_at(run.faults, pair, window) is not None or verdict.state is not WindowState.LATE:
        return False
    before = any(
        one.window == window and (one.kind is Kind.OFFLINE or (one.kind is Kind.LATE and one.tier <= pair))
        for one in run.faults
    )
    late = lates(run, pair, window)
    return before and verdict.missing == verdict.extra == 0 and late[0] < late[1]


def is_counted(run: Pipeline, pair: int, window: int, verdict: WindowVerdict) -> None:
    """How many, and which."""
    before, after = run.seen[pair][window], run.seen[pair + 1][window]
    if verdict.state is not WindowState.CORRUPTED:  # of which counts say nothing
        assert verdict.missing == (before - after).total()
        assert verdict.extra == (after - before).total()
    late = lates(run, pair, window)
    if verdict.state is WindowState.LATE:
        done = named_at(run.faults, pair, window)
        assert done is not None
        assert late[1] - late[0] == min(done.messages, before.total())
    names_what_differs(before, after)


def names_what_differs(before: Counter[bytes], after: Counter[bytes]) -> None:
    """The drill-down: how many, then which."""
    one, other = (ids_of(list(side.elements())) for side in (before, after))
    strata = Strata(), Strata()
    strata[0].insert(one)
    strata[1].insert(other)
    cells = cells_for(2 * strata[0].difference(strata[1]))
    while True:
        tables = InvertibleBloomTable(cells), InvertibleBloomTable(cells)
        tables[0].insert(one)
        tables[1].insert(other)
        tables[0].subtract(tables[1])
        found = tables[0].peel()
        if found.is_complete:
            break
        cells = found.cells_needed
    assert found.missing == before - after
    assert found.extra == after - before


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(
            pytest.param(first, marks=pytest.mark.deep(minutes=0.1))
            for first in range(SHARE, SCENARIOS, SHARE)
        ),
    ],
)
def test_every_fault_is_found_and_named_and_nothing_else_is_accused(first: int) -> None:
    for seed in range(first, min(first + SHARE, SCENARIOS)):
        check(seed)


def test_most_late_records_are_reported_as_late() -> None:
    """Records that find their window still open are not late; the others must remain enough to show
    something."""
    faults = {seed: faults_of(seed)[0] for seed in range(KINDS.index(Kind.LATE), 200, len(KINDS))}
    states = [
        Pipeline(seed, faults_of(seed)).run().verdict(one.tier - 1, one.window).state
        for seed, one in faults.items()
    ]
    assert {one.kind for one in faults.values()} == {Kind.LATE}
    assert states.count(WindowState.LATE) > 0.8 * len(states), states


@pytest.mark.parametrize("seed", [195, 601])
def test_a_window_that_a_delayed_report_holds_open_in_one_tier_gets_the_right_verdict(seed: int) -> None:
    check(seed)


def test_the_time_of_a_scenario_suffices_for_all_windows_to_close() -> None:
    run = Pipeline(1, (Fault(Kind.NONE),)).run()
    assert all(record.is_closed for record in run.collector.windows.values())
    assert len({key[:5] for key in run.collector.windows}) == len(TIERS) * WINDOWS
    assert END_MS % TICK_MS == 0
