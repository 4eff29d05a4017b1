"""A worker's share of an answer is bounded, and no topic crowds out another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.audit.folds.collector import Collector
from app.audit.folds.window import WindowKey
from app.audit.query.book_share import kept_since, share_of
from app.audit.query.view import RegionCounts, WindowQuery, joined
from switchyard.audit.model.reports import Scope, client_report
from switchyard.audit.model.tally import UNTIMED
from switchyard.audit.model.totals import Totals

WIDTH_MS = 1_000


def counted(**starts: range) -> Collector:
    collector = Collector()
    for position, (topic, numbers) in enumerate(starts.items()):
        for tier in ("regional", "aggregate"):
            windows = {number * WIDTH_MS: Totals(1) for number in numbers} | {UNTIMED: Totals(1)}
            report = client_report(
                Scope(topic, tier, "east", WIDTH_MS), "a", 0, windows, at_ms=5, watermark_ms=5
            )
            collector.apply(report, position)
    return collector


def known(collector: Collector, most: int, wanted: WindowQuery = WindowQuery()) -> RegionCounts:  # noqa: B008
    return joined([share_of({0: (3, collector)}, wanted, most)], lambda _: 0)


def test_a_large_topic_crowds_out_no_other_and_begins_at_the_same_time_in_all_tiers() -> None:
    collector = counted(large=range(1_000), small=range(5))
    found = known(collector, 100)
    assert len(found.windows) <= 102, "with those of records without a time"
    of = {name: {key for key in found.windows if key.topic == name} for name in ("large", "small")}
    assert len(of["small"]) == 12
    assert {key.tier for key in of["large"]} == {"regional", "aggregate"}
    starts = {
        tier: {key.start_ms for key in of["large"] if key.tier == tier} for tier in ("regional", "aggregate")
    }
    assert starts["regional"] == starts["aggregate"]
    assert min(starts["regional"] - {UNTIMED}) == found.since["large"] - 1 + WIDTH_MS
    assert [note.split()[1] for note in found.notes] == ["large"]
    alone = known(collector, 100, WindowQuery(topic="large", from_ms=10_000, before_ms=30_000))
    assert (len(alone.windows), alone.notes) == (42, [])


@given(
    sizes=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 60), min_size=1),
    most=st.integers(0, 150),
)
def test_there_is_room_for_each_topic_alike(sizes: dict[str, int], most: int) -> None:
    keys = [
        WindowKey(topic, "t", "c", WIDTH_MS, number * WIDTH_MS)
        for topic, size in sizes.items()
        for number in range(size)
    ]
    since = kept_since(keys, most)
    kept = {
        topic: sum(key.start_ms >= since.get(topic, 0) for key in keys if key.topic == topic)
        for topic in sizes
    }
    assert sum(kept.values()) == min(most, len(keys))
    fair = most // len(sizes)
    assert all(kept[topic] >= min(size, fair) for topic, size in sizes.items())
    assert since.keys() == {topic for topic, size in sizes.items() if kept[topic] < size}
