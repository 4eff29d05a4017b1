"""Seeded scenarios: every fault is found and named where it was made, and nothing else is accused.

`SWITCHYARD_SCENARIOS` says how many.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from app.core.audit.compare import State, Verdict
from app.core.audit.fingerprint import ids_of
from app.core.audit.reconcile import Table, cells_for
from app.core.audit.strata import Strata
from tests.core.audit.pipeline import END_MS, PAIRS, TICK_MS, TIERS, WIDTH_MS, WINDOWS, Fault, Kind, Pipeline

SCENARIOS = int(os.environ.get("SWITCHYARD_SCENARIOS", "100"))
SHARE = 20  # scenarios a test
ACCUSATIONS = {State.LOSSY, State.DUPLICATED, State.CORRUPTED}
NAMED = {
    Kind.LOSS: State.LOSSY,
    Kind.DUPLICATION: State.DUPLICATED,
    Kind.CORRUPTION: State.CORRUPTED,
    Kind.LATE: State.LATE,
}
HARMLESS = {Kind.NONE, Kind.SLOW, Kind.STALL}


def fault_of(seed: int) -> Fault:
    """All kinds at all tiers, by turns."""
    kinds = list(Kind)
    choose = random.Random(seed)
    return Fault(
        kinds[seed % len(kinds)],
        1 + seed // len(kinds) % (len(TIERS) - 1),
        choose.randrange(WINDOWS),
        choose.randint(1, 5),
        choose.randrange(20_000, WINDOWS * WIDTH_MS),
    )


class Watched(Pipeline):
    """Looks at all windows after every tick: an accusation must be right the first time it is made."""

    def _collect(self) -> None:
        super()._collect()
        for pair in range(len(PAIRS)):
            for window in range(min(WINDOWS, self.now_ms // WIDTH_MS)):
                verdict = self.verdict(pair, window)
                if verdict.state in ACCUSATIONS and not is_named(self.fault, pair, window, verdict):
                    self.wrong.append((self.now_ms, str(PAIRS[pair]), window, verdict))


def is_named(fault: Fault, pair: int, window: int, verdict: Verdict) -> bool:
    """Whether that is what was done to this window, between these tiers."""
    if (pair + 1, window) != (fault.tier, fault.window):
        return False
    if fault.kind is Kind.LATE:  # lossy until they come
        return verdict.state in (State.LATE, State.LOSSY)
    return verdict.state is NAMED.get(fault.kind)


def check(seed: int) -> None:
    fault = fault_of(seed)
    run = Watched(seed, fault).run()
    assert run.now_ms == END_MS
    assert not run.wrong, (fault, run.wrong[0])
    hit = 0
    for pair in range(len(PAIRS)):
        for window in range(WINDOWS):
            before, after = run.seen[pair][window], run.seen[pair + 1][window]
            verdict = run.verdict(pair, window)
            told = (fault, PAIRS[pair], window, verdict)
            if fault.kind in (Kind.SILENCE, Kind.DEATH):
                assert verdict.state in (State.OK, State.ABSENT), told
                if verdict.state is State.ABSENT:
                    assert verdict.absent == (TIERS[fault.tier],), told
                    hit += 1
                continue
            missing, extra = before - after, after - before
            if (pair + 1, window) != (fault.tier, fault.window) or fault.kind in HARMLESS:
                assert verdict.state is State.OK, told
                continue
            assert verdict.state is NAMED[fault.kind], told
            hit += 1
            if fault.kind is Kind.LOSS:
                assert verdict.missing == sum(missing.values()), told
            if fault.kind is Kind.DUPLICATION:
                assert verdict.extra == sum(extra.values()), told
            names_what_differs(before, after)
    can_be_seen = fault.kind not in HARMLESS and not (
        fault.kind in (Kind.SILENCE, Kind.DEATH) and fault.at_ms > (WINDOWS - 1) * WIDTH_MS
    )
    assert hit or not can_be_seen, fault


def names_what_differs(before: Counter[bytes], after: Counter[bytes]) -> None:
    """The drill-down: how many, then which."""
    one, other = (ids_of(list(side.elements())) for side in (before, after))
    strata = Strata(), Strata()
    strata[0].insert(one)
    strata[1].insert(other)
    cells = cells_for(2 * strata[0].difference(strata[1]))
    while True:
        tables = Table(cells), Table(cells)
        tables[0].insert(one)
        tables[1].insert(other)
        tables[0].subtract(tables[1])
        found = tables[0].peel()
        if found.is_complete:
            break
        cells = found.cells_needed
    assert found.missing == before - after
    assert found.extra == after - before


@pytest.mark.parametrize("first", range(0, SCENARIOS, SHARE))
def test_every_fault_is_found_and_named_and_nothing_else_is_accused(first: int) -> None:
    for seed in range(first, min(first + SHARE, SCENARIOS)):
        check(seed)


def test_the_time_of_a_scenario_suffices_for_all_windows_to_close() -> None:
    run = Pipeline(1, Fault(Kind.NONE)).run()
    assert all(record.is_closed for record in run.collector.windows.values())
    assert len(run.collector.windows) == len(TIERS) * WINDOWS
    assert END_MS % TICK_MS == 0
