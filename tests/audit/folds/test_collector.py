"""The collector's records recover from any mixture of ages that a killed writer leaves behind."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.audit.folds.collector import Collector, Event
from app.audit.folds.tier import CloseWindows, ForgetWindows, TierKey, TierRecord
from app.audit.folds.window import WindowKey, WindowRecord
from switchyard.audit.model.reports import Increment, Report, Scope, report_id, shards_of
from switchyard.audit.model.totals import Totals

SCOPE = Scope("topic", "regional", "east", 10)
State = tuple[dict[WindowKey, WindowRecord], dict[TierKey, TierRecord]]


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """Reports of readers, zombies and clients, in any order."""
    source = draw(st.sampled_from(["p/0", "p/9", "web@1"]))
    part, since = draw(st.integers(-1, 2)), draw(st.integers(0, 3))
    upto, final = since + draw(st.integers(0, 5)), draw(st.booleans())
    starts = draw(st.sets(st.sampled_from([-1, 0, 10, 20, 30]), max_size=3))
    return Report(
        report_id(SCOPE, source, part, since, upto, final=final),
        *SCOPE,
        source,
        at_ms=draw(st.integers(0, 60)),
        windows=tuple(Increment(start, Totals(upto - since)) for start in sorted(starts)),
        part=part,
        since=since,
        upto=upto,
        final=final,
        watermark_ms=draw(st.integers(-1, 60)),
        late_ms=draw(st.integers(0, 20)),
        shard=draw(st.sampled_from(sorted(shards_of(source)))),
        leaves=draw(st.integers(0, 9)) == 0,
    )


sweeps = st.builds(
    CloseWindows,
    *map(st.just, SCOPE[:3]),
    before_ms=st.integers(0, 4).map(lambda windows: 10 * windows),
    at_ms=st.integers(0, 60),
    without=st.sampled_from([(), (("p/9", 15),)]),
    given_up=st.sampled_from([(), ("p/9",)]),
)
forgets = st.builds(
    ForgetWindows, *map(st.just, SCOPE[:3]), before_ms=st.sampled_from([10, 20]), at_ms=st.just(1)
)
events = st.lists(reports() | reports() | reports() | sweeps | forgets, max_size=25)


def state_of(collector: Collector) -> State:
    return dict(collector.windows), dict(collector.tiers)


@given(events, st.data())
def test_a_replay_brings_records_of_any_ages_to_the_same_state(
    topic: list[Event], data: st.DataObject
) -> None:
    collector, states = Collector(), [({}, {})]
    for position, event in enumerate(topic):
        collector.apply(event, position)
        states.append(state_of(collector))
    committed = data.draw(st.integers(0, len(topic)))
    choose = random.Random(data.draw(st.integers(0, 1 << 30)))
    restored = Collector()
    for number, restore in enumerate((restored.restore_window, restored.restore_tier)):
        keys: set[Any] = {key for state in states[committed:] for key in state[number]}
        for key in sorted(keys):
            value = choose.choice(states[committed:])[number].get(key)
            if value is not None:
                restore(key, value)  # type: ignore[arg-type]
    for position in range(committed, len(topic)):
        restored.apply(topic[position], position)
    assert state_of(restored) == states[-1]


@given(events)
def test_a_closed_window_is_final(topic: list[Event]) -> None:
    collector = Collector()
    closed: dict[WindowKey, tuple[Totals, int]] = {}
    for position, event in enumerate(topic):
        written = collector.apply(event, position)
        for key in written.deleted:
            closed.pop(key, None)
        for key, record in collector.windows.items():
            if record.is_closed:
                content = record.totals, record.closed_ms
                assert closed.setdefault(key, content) == content
        assert closed.keys() <= collector.windows.keys()


@given(events)
def test_exactly_the_changed_records_are_written(topic: list[Event]) -> None:
    collector = Collector()
    for position, event in enumerate(topic):
        before = state_of(collector)
        written = collector.apply(event, position)
        after = state_of(collector)
        changed = {key for key in after[0] if before[0].get(key) != after[0][key]}
        assert changed <= set(written.windows) <= set(after[0])
        assert set(before[0]) - set(after[0]) == set(written.deleted)
        assert {key for key in after[1] if before[1].get(key) != after[1][key]} == set(written.tiers)
        assert collector.keys_of(SCOPE[:3]) == sorted(after[0])


def test_a_report_in_time_stays_in_time_in_a_replay_that_knows_the_closing() -> None:
    """The window's record was lost, the tier's was not."""
    report = Report(report_id(SCOPE, "p/0", 0, 0, 5, final=False), *SCOPE, "p/0", 7,
                    (Increment(0, Totals(5)),), part=0, since=0, upto=5)  # fmt: skip
    topic: list[Event] = [report, CloseWindows(*SCOPE[:3], before_ms=10, at_ms=9)]
    collector = Collector()
    for position, event in enumerate(topic):
        collector.apply(event, position)
    restored = Collector()
    for key, record in collector.tiers.items():
        restored.restore_tier(key, record)
    for position, event in enumerate(topic):
        restored.apply(event, position)
    (window,) = restored.windows.values()
    assert (window.totals.count, window.late.count, window.closed_ms) == (5, 0, 9)
    assert state_of(restored) == state_of(collector)
