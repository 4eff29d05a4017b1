"""When alerts fire and resolve: by examples, and against a model over any history.

A history has verdicts, times, dead leaders, and channels that take notices late or never.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.alerts import rules as alerts_rules
from app.alerts.rules import AlertThreshold, NoticeOutcome, Rule, due, seen, step
from app.controllog import codec
from app.controllog.alert_state import AlertState, AlertSubject, LastNotice
from app.controllog.events import Claim, compaction_key
from app.controllog.state import ControlState

WIDTH_MS = 60_000
STATES = ["ok", "provisional", "lossy", "duplicated", "corrupted", "late", "absent-audit"]


LAG = AlertThreshold("ms", 500)


def row(start: int, state: str, topic: str = "orders", **changes: Any) -> dict[str, Any]:
    """A verdict on the `start`th window."""
    counts = {"lossy": (100, 98, 2, 0), "duplicated": (100, 103, 0, 3), "late": (100, 95, 5, 0)}
    before, after, missing, extra = counts.get(state, (100, 100, 0, 0))
    unknown = state == "corrupted"
    return {
        "topic": topic, "group": None, "from_tier": "regional", "to_tier": "aggregate",
        "start_ms": start * WIDTH_MS, "end_ms": (start + 1) * WIDTH_MS, "state": state,
        "from_count": before, "to_count": after,
        "missing": None if unknown else missing, "extra": None if unknown else extra,
        "absent": ["aggregate"] if state == "absent-audit" else [], "lag_ms": None, "behind_ms": 0, **changes,
    }  # fmt: skip


def make_rule(*on: str, **fields: Any) -> Rule:
    return Rule("r", frozenset(on or ("loss",)), lambda topic: topic != "other", **fields)


class Leaders:
    """The control log and its successive leaders; a leader's step depends only on the log."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = {rule.name: rule for rule in rules}
        self.state = ControlState()
        self.term = 0
        self.next()

    def next(self) -> None:
        """The leader dies; another leader starts from the log."""
        self.term += 1
        self.state.apply(Claim(at_ms=0, term=self.term, worker=f"w{self.term}"))

    @property
    def states(self) -> dict[str, AlertState]:
        return self.state.alert_states.states

    def step(
        self,
        now_ms: int,
        rows: list[dict[str, Any]] | None,
        *outcomes: NoticeOutcome,
        term: int | None = None,
    ) -> list[AlertState]:
        at = self.term if term is None else term
        changed = step(self.states, self.rules, self.rules, rows, outcomes, now_ms, at)
        for one in changed:
            event = codec.control_event(codec.encode(one))  # as it comes back from the topic
            assert event == one
            assert self.state.apply(event) == (at == self.term)
        return changed

    def summary(self) -> list[tuple[str, str, int, int]]:
        """Topic, state, notice and windows of each alert."""
        return [(s.topic, s.state, s.notice, len(s.windows)) for s in self.states.values()]


@pytest.mark.parametrize(
    ("rule", "rows", "fires"),
    [
        (make_rule("loss"), [row(1, "lossy")], True),
        (make_rule("loss"), [row(1, state) for state in STATES if state != "lossy"], False),
        (make_rule("absent-audit"), [row(1, "absent-audit")], True),
        (make_rule("duplication", "corruption"), [row(1, "corrupted")], True),
        (make_rule("duplication", above=AlertThreshold("records", 3)), [row(1, "duplicated")], False),
        (make_rule("duplication", above=AlertThreshold("records", 2)), [row(1, "duplicated")], True),
        (make_rule("loss", above=AlertThreshold("share", 0.02)), [row(1, "lossy")], False),
        (make_rule("loss", above=AlertThreshold("share", 0.0199)), [row(1, "lossy")], True),
        (make_rule("late"), [row(1, "late")], True),
        (make_rule("late"), [row(1, "late", missing=0, to_count=100)], False),  # no record is missing
        (make_rule("loss"), [row(1, "lossy", "other")], False),
        (make_rule("loss", tiers=("aggregate", "consumer")), [row(1, "lossy")], False),
        (make_rule("loss", tiers=("regional", "aggregate")), [row(1, "lossy")], True),
        (make_rule("loss", within_ms=WIDTH_MS), [row(-1, "lossy")], False),  # before the period `within`
        (make_rule("lag", above=LAG), [row(1, "ok", lag_ms=501.0)], True),
        (make_rule("lag", above=LAG), [row(1, "ok", lag_ms=501.0), row(2, "ok", lag_ms=3)], False),
        (make_rule("lag", above=LAG), [row(1, "provisional", lag_ms=501.0)], False),
        (make_rule("lag", above=LAG), [row(1, "ok")], False),
    ],
)  # fmt: skip
def test_an_alert_fires_for_the_named_tiers_and_from_its_threshold_on(
    rule: Rule, rows: list[dict[str, Any]], fires: bool
) -> None:
    leaders = Leaders(rule)
    leaders.step(2 * WIDTH_MS, rows)

    assert [state.state for state in leaders.states.values()] == ["firing"] * fires


def test_one_alert_has_all_windows_of_a_topic_and_pair() -> None:
    leaders = Leaders(make_rule())
    leaders.step(1, [row(n, "lossy") for n in range(30)] + [row(3, "lossy", "payments")])
    assert sorted(leaders.summary()) == [("orders", "firing", 1, 20), ("payments", "firing", 1, 1)]
    (of_orders,) = (state for state in leaders.states.values() if state.topic == "orders")
    assert (of_orders.more, of_orders.windows[-1].start_ms) == (10, 29 * WIDTH_MS)


def test_groups_that_consume_have_alerts_of_their_own() -> None:
    """A group without loss or lag does not hide the loss or lag of another group."""
    leaders = Leaders(make_rule(), make_rule("lag", above=LAG)._replace(name="slow"))
    slow, quick = (
        row(1, state, group=group, to_tier="consumer", lag_ms=lag_ms)
        for group, state, lag_ms in (("billing", "lossy", 900.0), ("web", "ok", 3.0))
    )
    leaders.step(1, [slow, quick])
    assert sorted((s.rule, s.reader, s.tiers) for s in leaders.states.values()) == [
        (name, "billing", "regional to consumer (group billing)") for name in ("r", "slow")
    ]
    leaders.step(2, [slow, {**slow, "group": "web"}])
    assert sorted((s.rule, s.reader, len(s.windows)) for s in leaders.states.values()) == [
        (name, group, 1) for name in ("r", "slow") for group in ("billing", "web")
    ]
    assert len({alerts_rules.fingerprint(s.group) for s in leaders.states.values()}) == 4


def test_an_alert_fires_and_resolves_only_after_the_rules_duration() -> None:
    leaders = Leaders(make_rule(for_ms=1_000))
    lossy, fine = [row(1, "lossy")], [row(1, "ok")]
    leaders.step(10_000, lossy)
    leaders.next()  # the time continues under another leader
    leaders.step(10_999, lossy)
    assert leaders.summary() == [("orders", "pending", 0, 1)]
    leaders.step(11_000, lossy)
    assert leaders.summary() == [("orders", "firing", 1, 1)]
    leaders.step(12_000, fine)
    leaders.step(12_500, lossy)  # the alert had not resolved
    leaders.step(13_000, fine)
    leaders.next()
    leaders.step(13_999, fine)
    assert leaders.summary() == [("orders", "firing", 1, 1)]
    leaders.step(14_000, fine)
    assert leaders.summary() == [("orders", "resolved", 2, 1)]
    leaders.step(15_000, lossy)
    leaders.step(15_500, fine)
    assert leaders.summary() == [("orders", "resolved", 2, 1)], "a pending alert left something behind"
    leaders.step(14_000 + alerts_rules.KEEP_RESOLVED_MS, fine)
    assert leaders.summary() == []


@pytest.mark.parametrize(("rows", "aged"), [([], True), ([row(1, "ok")], False)])
def test_an_alert_that_ends_because_its_windows_aged_says_so(rows: list[dict[str, Any]], aged: bool) -> None:
    leaders = Leaders(make_rule(within_ms=WIDTH_MS))
    leaders.step(2 * WIDTH_MS, [row(1, "lossy")])
    at_ms = 3 * WIDTH_MS + 1 if aged else 2 * WIDTH_MS + 1
    leaders.step(at_ms, rows or [row(1, "lossy")])
    (state,) = leaders.states.values()
    assert (state.state, state.aged) == ("resolved", aged)


@pytest.mark.parametrize("unsure", ["provisional", "absent-audit"])
def test_an_unknown_comparison_neither_resolves_nor_fires(unsure: str) -> None:
    leaders = Leaders(make_rule())
    leaders.step(1, [row(1, "lossy")])
    leaders.step(2, [row(1, unsure)])
    leaders.step(3, None)
    assert leaders.summary() == [("orders", "firing", 1, 1)]
    leaders.step(4, [row(1, "ok"), row(2, unsure)])  # the alert does not include the second window
    assert leaders.summary() == [("orders", "resolved", 2, 1)]


def test_windows_that_are_too_many_to_list_do_not_resolve_an_alert() -> None:
    leaders = Leaders(make_rule())
    (state,) = leaders.step(1, [row(1, "lossy")])
    assert step(leaders.states, leaders.rules, {"r"}, [], (), 2, 1, {"orders": 2 * WIDTH_MS}) == []
    (over,) = step(leaders.states, leaders.rules, {"r"}, [], (), 2, 1, {"orders": WIDTH_MS})
    assert (over.id, over.state) == (state.id, "resolved")


def test_a_channel_is_due_until_it_took_the_newest_notice_of_which_each_change_has_one() -> None:
    leaders = Leaders(make_rule(channels=("a", "b")))
    lossy = [row(1, "lossy")]
    leaders.step(0, lossy)
    (state,) = leaders.states.values()
    assert list(due(state, leaders.rules["r"])) == ["a", "b"]
    leaders.step(500, lossy, NoticeOutcome(state.id, "a", 1, 500))
    (state,) = leaders.states.values()
    assert (list(due(state, leaders.rules["r"])), state.told) == (["b"], {"a": LastNotice(1, 500)})
    month_ms = 30 * 24 * 3_600_000
    leaders.step(month_ms, None, NoticeOutcome(state.id, "b", 1, 900, "answered 503"))
    (state,) = leaders.states.values()
    assert (state.notice, list(due(state, leaders.rules["r"]))) == (1, ["b"]), "a reminder was sent"
    assert state.told["b"] == LastNotice(0, 0, 900, "answered 503")
    leaders.step(month_ms, [row(1, "ok")])
    (state,) = leaders.states.values()
    assert (state.notice, list(due(state, leaders.rules["r"]))) == (2, ["a", "b"])
    leaders.step(month_ms, None, NoticeOutcome(state.id, "b", 2, 1_050))
    (state,) = leaders.states.values()
    assert state.told["b"] == LastNotice(2, 1_050)
    stale = NoticeOutcome(state.id, "b", 1, 1_150), NoticeOutcome(state.id, "a", 9, 1_150)
    assert leaders.step(month_ms, None, *stale) == []


def test_an_alert_that_an_earlier_version_sent_reminders_of_is_resolved_with_the_next_number() -> None:
    leaders = Leaders(make_rule(channels=("a",)))
    (state,) = leaders.step(0, [row(1, "lossy")])
    stored = {**msgspec.to_builtins(state), "notice": 7, "noticed_ms": 5, "told": {"a": [7, 6]}}
    assert leaders.state.apply(codec.control_event(msgspec.json.encode(stored)))
    leaders.step(1, [row(1, "ok")])
    (state,) = leaders.states.values()
    assert (state.state, state.notice, list(due(state, leaders.rules["r"]))) == ("resolved", 8, ["a"])


def test_a_deposed_leader_fires_and_resolves_nothing() -> None:
    leaders = Leaders(make_rule())
    leaders.next()
    leaders.step(1, [row(1, "lossy")], term=1)
    assert leaders.summary() == []
    leaders.step(2, [row(1, "lossy")])
    leaders.step(3, [row(1, "ok")], term=1)
    assert leaders.summary() == [("orders", "firing", 1, 1)]


def test_alerts_of_a_deleted_rule_go_and_those_of_an_unreadable_one_stay() -> None:
    leaders = Leaders(make_rule())
    leaders.step(1, [row(1, "lossy")])
    assert step(leaders.states, {}, {"r"}, [], (), 2, 1) == []
    (gone,) = step(leaders.states, {}, set(), [], (), 2, 1)
    assert gone.state == "gone"
    assert leaders.state.apply(gone)
    assert leaders.state.stale == {compaction_key(gone): None}
    leaders.state.dropped(compaction_key(gone))
    assert (leaders.states, leaders.state.stale) == ({}, {})


def test_alerts_are_bounded_and_the_excess_is_reported() -> None:
    leaders = Leaders(make_rule())
    rows = [row(1, "lossy", f"t{n}") for n in range(alerts_rules.MOST_LIVE + 5)]
    leaders.step(1, rows)
    assert len(leaders.states) == alerts_rules.MOST_LIVE
    assert alerts_rules.left_out(leaders.states, seen(leaders.rules.values(), rows, 1)) == 5
    assert leaders.step(2, rows) == []


def test_of_two_alerts_that_a_failed_write_left_only_the_first_stays() -> None:
    leaders = Leaders(make_rule())
    (first,) = leaders.step(5, [row(1, "lossy")])
    twin = msgspec.structs.replace(first, id=f"{first.id}f", since_ms=9)
    assert leaders.state.apply(twin)
    leaders.step(10, [row(1, "lossy")])
    assert list(leaders.states) == [first.id]


def test_growing_figures_are_not_written_at_every_evaluation() -> None:
    leaders = Leaders(make_rule())
    leaders.step(0, [row(1, "lossy")])
    assert leaders.step(1_000, [row(1, "lossy", missing=3)]) == []
    assert leaders.step(1_000, [row(1, "lossy"), row(2, "lossy")]), "a new window was not written"
    (later,) = leaders.step(1_000 + alerts_rules.UPDATE_MS, [row(1, "lossy", missing=3), row(2, "lossy")])
    assert later.windows[0].missing == 3


@given(
    st.lists(st.sampled_from(STATES), max_size=8), st.sampled_from(sorted(set(alerts_rules.KIND_OF.values())))
)
def test_an_alert_has_only_final_windows_of_its_kind(states: list[str], kind: str) -> None:
    found = seen([make_rule(kind)], [row(n, state) for n, state in enumerate(states)], 0)
    for one in found.values():
        assert {alerts_rules.KIND_OF[window.state] for window in one.windows} <= {kind}
        assert "provisional" not in {window.state for window in one.windows}


class Model:
    """The expected state of one group's alert, from every evaluation."""

    def __init__(self, for_ms: int) -> None:
        self.for_ms = for_ms
        self.state = "none"
        self.since_ms = self.over_ms = 0
        self.bad: set[int] = set()
        self.fired = 0

    def look(self, rows: dict[int, str], now_ms: int) -> None:
        bad = {n for n, state in rows.items() if state == "lossy"}
        unsure = {n for n, state in rows.items() if state in {"provisional", "absent-audit"}}
        if bad:
            if self.state == "none":
                self.state, self.since_ms = "pending", now_ms
            self.bad, self.over_ms = bad, 0
            if self.state == "pending" and now_ms - self.since_ms >= self.for_ms:
                self.state, self.fired = "firing", self.fired + 1
        elif not self.bad & unsure and self.state == "pending":
            self.state = "none"
        elif not self.bad & unsure and self.state == "firing":
            self.over_ms = self.over_ms or now_ms
            if now_ms - self.over_ms >= self.for_ms:
                self.state = "none"


class AlertsOfTwoTopics(RuleBasedStateMachine):
    """Evaluations, leaders, deposed leaders that still write, and a channel; with a model of each topic."""

    topics = ("orders", "payments")

    @initialize(for_ms=st.sampled_from([0, 50, 500]))
    def begin(self, for_ms: int) -> None:
        self.rule = make_rule(for_ms=for_ms, channels=("c",))
        self.leaders = Leaders(self.rule)
        self.model = {topic: Model(for_ms) for topic in self.topics}
        self.now_ms = 1_000
        self.sent: dict[tuple[str, int], str] = {}  # the state in a notice, by id and number
        self.kept: list[NoticeOutcome] = []  # accepted notices that are not recorded yet

    @rule(
        rows=st.dictionaries(
            st.sampled_from(topics),
            st.dictionaries(st.integers(0, 2), st.sampled_from(STATES[:3] + STATES[-1:]), max_size=3),
        ),
        passed_ms=st.integers(1, 100),
    )
    def look(self, rows: dict[str, dict[int, str]], passed_ms: int) -> None:
        self.now_ms += passed_ms
        found = [row(n, state, topic) for topic, some in rows.items() for n, state in some.items()]
        self.leaders.step(self.now_ms, found, *self.kept)
        self.kept = []
        for topic, model in self.model.items():
            model.look(rows.get(topic, {}), self.now_ms)

    @rule(passed_ms=st.integers(1, 1_000))
    def know_nothing(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.leaders.step(self.now_ms, None, *self.kept)
        self.kept = []

    @rule()
    def send_due_notices(self) -> None:
        for state in self.leaders.states.values():
            if list(due(state, self.rule)):
                known = self.sent.setdefault((state.id, state.notice), state.state)
                assert known == state.state, "one id names two states"
                self.kept.append(NoticeOutcome(state.id, "c", state.notice, self.now_ms))

    @rule()
    def kill_the_leader(self) -> None:
        self.kept = []
        self.leaders.next()

    @rule(rows=st.lists(st.sampled_from(STATES), max_size=3))
    def a_deposed_leader_writes(self, rows: list[str]) -> None:
        if self.leaders.term > 1:
            before = dict(self.leaders.states)
            found = [row(n, state, "orders") for n, state in enumerate(rows)]
            self.leaders.step(self.now_ms, found, term=self.leaders.term - 1)
            assert self.leaders.states == before

    @invariant()
    def each_topic_is_in_the_models_state(self) -> None:
        live: dict[str, list[AlertState]] = {topic: [] for topic in self.topics}
        fired: dict[str, int] = dict.fromkeys(self.topics, 0)
        for state in self.leaders.states.values():
            fired[state.topic] += state.fired_ms > 0
            if state.is_live:
                live[state.topic].append(state)
        for topic, model in self.model.items():
            assert [state.state for state in live[topic]] == ([] if model.state == "none" else [model.state])
            assert fired[topic] == model.fired, "an episode fired more than once or not at all"

    @invariant()
    def no_channel_took_a_notice_that_does_not_exist(self) -> None:
        for state in self.leaders.states.values():
            assert all(last.notice <= state.notice for last in state.told.values())
            assert state.notice == {"firing": 1, "resolved": 2}.get(state.state, 0)


TestAlertsOfTwoTopics = AlertsOfTwoTopics.TestCase


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["look", "look", "claim", "deposed"]),
            st.lists(st.sampled_from(STATES[:3]), min_size=2, max_size=2),
        ),
        max_size=25,
    ),
    st.integers(0, 30),
)
def test_a_fresh_reader_of_a_compacted_log_knows_all_alerts(
    history: list[tuple[str, list[str]]], cleaned: int
) -> None:
    leaders = Leaders(make_rule())
    written: list[Any] = [Claim(at_ms=0, term=1, worker="w1")]
    marks = [1]
    for now_ms, (act, found) in enumerate(history, 1):
        rows = [row(1, state, topic) for state, topic in zip(found, ("orders", "payments"), strict=True)]
        if act == "claim" or (act == "deposed" and leaders.term == 1):
            leaders.next()
            written.append(Claim(at_ms=0, term=leaders.term, worker=f"w{leaders.term}"))
        elif act == "look":
            written += leaders.step(now_ms, rows)
        else:
            late = leaders.step(now_ms, rows, term=leaders.term - 1)
            written += late
            repairs = alerts_rules.again(leaders.states, {one.id for one in late}, leaders.term)
            assert all(map(leaders.state.apply, repairs))
            written += repairs
        marks.append(len(written))
    clean = marks[min(cleaned, len(marks) - 1)]
    last = {compaction_key(event): index for index, event in enumerate(written[:clean])}
    fresh = ControlState()
    for index, event in enumerate(written):
        if index >= clean or last[compaction_key(event)] == index:
            fresh.apply(event)

    def alerts_in(state: ControlState) -> dict[str, tuple[str, int]]:
        return {one.id: (one.state, one.notice) for one in state.alert_states.states.values()}

    assert alerts_in(fresh) == alerts_in(leaders.state)


def test_the_fingerprint_of_a_group_never_changes() -> None:
    assert (
        alerts_rules.fingerprint(AlertSubject("r", "orders", "regional", "aggregate")) == "62fbb251a25dced3"
    )
