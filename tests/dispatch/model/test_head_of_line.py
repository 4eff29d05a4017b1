"""Head-of-line blocking: a blocking head is found; a slow one, or one of a broken receiver, stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.dispatch.model.head_of_line import (
    CREDIT_MAX,
    BlockingRule,
    HeadLimits,
    HeadOfLineDetector,
    StashVerdict,
    WhyNot,
    shared_tokens,
)
from app.kernel.tracker import Tracker

NOW_S = 1000.0


def look(
    head: HeadOfLineDetector,
    now_s: float = NOW_S,
    *,
    base: int = 7,
    capacity: int = 10_000,
    unfinished: int = 1,
    finished_above: int = 100,
    out_s: float | None = 400.0,
    delivered: int = 100,
    serving: bool = True,
    renewed: bool = False,
) -> StashVerdict | None:
    return head.evaluate(
        now_s,
        base=base,
        capacity=capacity,
        unfinished=unfinished,
        finished_above=finished_above,
        head_sent_s=None if out_s is None else now_s - out_s,
        delivered=delivered,
        serving=serving,
        renewed=renewed,
    )


def test_an_old_head_is_found_while_newer_ones_finish() -> None:
    verdict = look(HeadOfLineDetector(HeadLimits(300.0)), unfinished=5)
    assert verdict is not None
    assert (verdict.offset, verdict.rule, verdict.age_s) == (7, BlockingRule.AGE, 400.0)
    assert verdict.reason == (
        "head of line: not finished after 400.0 s (limit 300 s); 100 newer finished, 4 did not"
    )


def test_a_young_head_stays_and_its_numbers_are_reported() -> None:
    head = HeadOfLineDetector(HeadLimits(300.0))
    assert look(head, out_s=300.0) is None
    assert head.why_not == "the head at 7 has been out for 300.0 s; 1% in use, 1.0% of it unfinished"
    assert head.why_not_code is WhyNot.YOUNG


def test_a_full_tracker_of_finished_messages_is_found_by_uforwarders_thresholds() -> None:
    verdict = look(HeadOfLineDetector(HeadLimits(300.0)), unfinished=180, finished_above=8900, out_s=2.0)
    assert verdict is not None
    assert verdict.rule is BlockingRule.FULL
    assert "90.8% of the tracker in use (limit 90%), 1.98% of it unfinished (limit 2%)" in verdict.reason


@pytest.mark.parametrize("finished_above", [0, -5])
def test_there_is_no_verdict_while_nothing_newer_finishes(finished_above: int) -> None:
    head = HeadOfLineDetector(HeadLimits(300.0))
    assert look(head, unfinished=20, finished_above=finished_above, capacity=10, out_s=500.0) is None
    assert head.why_not_code is WhyNot.BROKEN


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50))
def test_a_lowered_capacity_counts_no_unfinished_message_as_finished(high: int, low: int, acked: int) -> None:
    tracker = Tracker(0, high)
    tracker.fetched(0, high)
    tracker.ack_range(1, 1 + acked)
    tracker.capacity = low
    assert tracker.tracked - tracker.unfinished == min(acked, high - 1)
    assert 0 < tracker.utilisation <= 1


@pytest.mark.parametrize(
    ("unfinished", "finished_above", "out_s"),
    [
        (100, 8900, 2.0),  # 90 % in use is not above 90 %
        (200, 9800, 2.0),  # 2 % unfinished is not below 2 %
        (100, 9900, 0.9),  # a window that passes in 100 ms makes no blocker of a message of 900 ms
    ],
)
def test_at_a_threshold_nothing_is_stashed(unfinished: int, finished_above: int, out_s: float) -> None:
    head = HeadOfLineDetector(HeadLimits(300.0))
    assert look(head, unfinished=unfinished, finished_above=finished_above, out_s=out_s) is None
    assert head.why_not_code is WhyNot.YOUNG


def test_a_single_unfinished_head_blocks_a_small_full_tracker() -> None:
    verdict = look(HeadOfLineDetector(HeadLimits(300.0)), capacity=10, finished_above=9, out_s=2.0)
    assert verdict is not None
    assert verdict.rule is BlockingRule.FULL


def test_a_receiver_that_finishes_nothing_newer_is_broken_and_flushes_nothing() -> None:
    head = HeadOfLineDetector(HeadLimits(300.0))
    assert look(head, finished_above=0, unfinished=500, delivered=100) is None
    assert head.why_not_code is WhyNot.BROKEN
    assert "the receiver itself is failing" in head.why_not


def test_acknowledgements_before_the_receiver_hung_do_not_make_the_head_a_blocker() -> None:
    head = HeadOfLineDetector(HeadLimits(300.0))
    assert look(head, NOW_S, unfinished=50, out_s=1.0) is None
    for later_s in range(1, 2000, 10):  # nothing is acknowledged any more
        assert look(head, NOW_S + later_s, unfinished=50, out_s=1.0 + later_s) is None
    assert head.why_not_code is WhyNot.BROKEN


def test_a_quiet_topic_is_freed_when_one_newer_message_finishes() -> None:
    head = HeadOfLineDetector(HeadLimits(60.0))
    assert look(head, NOW_S, finished_above=0, delivered=50, out_s=1.0) is None
    assert look(head, NOW_S + 500, finished_above=0, delivered=50, out_s=501.0) is None
    assert look(head, NOW_S + 900, finished_above=1, delivered=51, out_s=901.0) is not None


def test_an_outage_does_not_age_the_head() -> None:
    head = HeadOfLineDetector(HeadLimits(300.0))
    assert look(head, NOW_S, out_s=299.0) is None
    assert look(head, NOW_S + 5000, out_s=5299.0, serving=False) is None
    assert head.why_not_code is WhyNot.AWAY
    assert look(head, NOW_S + 5300, out_s=5599.0, delivered=200) is None
    assert head.why_not_code is WhyNot.YOUNG
    assert look(head, NOW_S + 5301, out_s=5600.0, delivered=300) is not None


def test_a_head_that_is_not_with_the_receiver_stays() -> None:
    head = HeadOfLineDetector(HeadLimits(300.0))
    assert look(head, out_s=None) is None
    assert head.why_not == "the head at 7 is not with the receiver"
    assert look(head, unfinished=0, finished_above=0) is None
    assert head.why_not == "nothing is unfinished"


def test_jobs_that_share_tokens_stash_no_more_than_these_allow() -> None:
    tokens = shared_tokens(per_minute=60)
    jobs = [HeadOfLineDetector(HeadLimits(300.0), tokens) for _ in range(50)]
    assert sum(look(job) is not None for job in jobs) == 10
    assert "60 verdicts a minute are spent; the next is allowed in 1.0 s" in jobs[-1].why_not
    assert sum(look(job, NOW_S + 5.0, delivered=200) is not None for job in jobs) == 5


def test_stuck_messages_in_a_full_tracker_are_freed_one_by_one_though_nothing_more_can_be_fetched() -> None:
    """Forty neighbours are stuck; each one freed makes room for a single healthy message."""
    head = HeadOfLineDetector(HeadLimits(300.0), shared_tokens(per_minute=6000))
    tracker, delivered, freed, now_s = Tracker(0, 1000), 0, 0, NOW_S
    tracker.fetched(0, 1000)
    delivered += tracker.ack_range(40, 1000)
    for _ in range(200):
        now_s += 1.0
        verdict = head.evaluate(
            now_s,
            base=tracker.base,
            capacity=tracker.capacity,
            unfinished=tracker.unfinished,
            finished_above=tracker.capacity - tracker.room - tracker.unfinished,
            head_sent_s=NOW_S - 1000,
            delivered=delivered,
        )
        if verdict is None:
            continue
        assert tracker.nack(verdict.offset)
        freed += 1
        start, room = tracker.end, tracker.room
        tracker.fetched(start, start + room)
        delivered += tracker.ack_range(start, start + room)
    assert freed == 40
    assert tracker.idle


@pytest.mark.parametrize("full", [0.1, 0.5, 0.9, 1.0])
def test_by_age_a_head_leaves_a_full_tracker_without_progress_and_not_one_with_room(full: float) -> None:
    """Whatever share of it the definition calls full."""
    for finished, goes in ((9_998, True), (5_000, False)):
        head = HeadOfLineDetector(HeadLimits(300.0, full_share=full, patience_s=1e9))
        assert look(head, 1.0, finished_above=finished, out_s=0.5) is None, "it earns its credit"
        assert (look(head, 1_000.0, finished_above=finished, out_s=999.0) is not None) == goes


def test_a_head_with_more_time_leaves_by_its_age_only() -> None:
    head = HeadOfLineDetector(HeadLimits(300.0))
    assert look(head, finished_above=9_500, out_s=200.0, renewed=True) is None
    assert look(head, finished_above=9_500, out_s=301.0, renewed=True) is not None
    assert look(head, finished_above=9_500, out_s=200.0) is not None


def test_a_tracker_that_was_made_smaller_is_no_more_than_full() -> None:
    head = HeadOfLineDetector(HeadLimits(300.0, full_share=1.0))
    assert look(head, capacity=10, finished_above=90, out_s=60.0) is None
    assert "100% in use" in head.why_not


@given(st.floats(0.1, 3600), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.data())
def test_every_look_gives_a_verdict_or_says_why_not(
    after_s: float, capacity: int, unfinished: int, finished_above: int, data: st.DataObject
) -> None:
    head = HeadOfLineDetector(HeadLimits(after_s))
    for _ in range(3):
        verdict = look(
            head,
            capacity=capacity,
            unfinished=unfinished,
            finished_above=finished_above,
            out_s=data.draw(st.none() | st.floats(0, 7200)),
            delivered=data.draw(st.integers(0, 5)),
            serving=data.draw(st.booleans()),
        )
        assert (verdict is None) == bool(head.why_not)
        if verdict is not None:
            assert verdict.offset == 7
            assert verdict.age_s >= min(after_s, head.limits.patience_s)


class StuckMessages(RuleBasedStateMachine):
    """A receiver that acknowledges some, hangs on some, dies and comes back: nothing is flushed."""

    @initialize(capacity=st.integers(1, 40))
    def start(self, capacity: int) -> None:
        self.tracker = Tracker(0, capacity)
        self.head = HeadOfLineDetector(HeadLimits(10.0), shared_tokens(per_minute=600))
        self.sent: dict[int, float] = {}
        self.now_s = NOW_S
        self.delivered = self.verdicts = 0
        self.serving = True

    @rule()
    def fetch(self) -> None:
        start, room = self.tracker.end, self.tracker.room
        self.tracker.fetched(start, start + room)
        for offset in range(start, start + room):
            self.sent[offset] = self.now_s

    @rule(pick=st.integers(0, 10**6))
    def ack(self, pick: int) -> None:
        if self.sent and self.serving:
            offset = sorted(self.sent)[pick % len(self.sent)]
            del self.sent[offset]
            self.delivered += self.tracker.ack(offset)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(serving=st.booleans())
    def breaker(self, serving: bool) -> None:
        self.serving = serving

    @rule()
    def look(self) -> None:
        tracker, base = self.tracker, self.tracker.base
        verdict = self.head.evaluate(
            self.now_s,
            base=base,
            capacity=tracker.capacity,
            unfinished=tracker.unfinished,
            finished_above=tracker.capacity - tracker.room - tracker.unfinished,
            head_sent_s=self.sent.get(base),
            delivered=self.delivered,
            serving=self.serving,
        )
        if verdict is not None:
            assert self.serving
            assert verdict.offset == base
            assert self.now_s - self.sent.pop(base) >= 1.0
            assert tracker.nack(base)
            self.verdicts += 1

    @invariant()
    def no_more_is_stashed_than_gets_through(self) -> None:
        assert self.verdicts <= self.delivered

    @invariant()
    def a_dead_receiver_costs_at_most_the_credit(self) -> None:
        assert 0 <= self.head._credit <= CREDIT_MAX


TestStuckMessages = StuckMessages.TestCase
