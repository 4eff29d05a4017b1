"""A client's audit with a write-ahead log, killed at any step: every record in the log is counted once."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from app.audit.folds.collector import Collector
from app.audit.folds.tier import PlanBounds
from switchyard.audit.model import client_counter as client_module
from switchyard.audit.model.client_counter import ClientAudit, ClientState
from switchyard.audit.model.fingerprint import ids_of, of_ids
from switchyard.audit.model.reports import Report, Scope
from switchyard.audit.model.tally import SKEW_MS, RecordArrays, window_of

SCOPE = Scope("topic", "consumer", "east", 100)
IDLE_MS = 300
SMALL = {"MOST_PENDING": 4, "MOST_WINDOWS": 3, "MOST_EARLY": 1 << 20}


class ClientAgainstModel(RuleBasedStateMachine):
    """The log is written before a report is sent, and as often as the client likes in between."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = {name: getattr(client_module, name) for name in SMALL}
        for name, value in SMALL.items():
            setattr(client_module, name, value)
        self.now_ms = 1_000
        self.client = ClientAudit(SCOPE, "web@1", IDLE_MS)
        self.kept = self.encoded()
        self.counted: list[tuple[int, bytes]] = []  # records in the log
        self.unkept: list[tuple[int, bytes]] = []
        self.collector, self.position = Collector(), 0
        self.names = 0

    def teardown(self) -> None:
        for name, value in self.usual.items():
            setattr(client_module, name, value)

    def encoded(self) -> bytes:
        return msgspec.json.encode(self.client.state())

    def keep(self) -> None:
        self.kept = self.encoded()
        self.counted += self.unkept
        self.unkept = []

    @rule(back=st.lists(st.integers(0, 250), max_size=6), wait=st.integers(0, 200))
    def count(self, back: list[int], wait: int) -> None:
        self.now_ms += wait
        times = [self.now_ms - one for one in back]
        names = [f"{self.names + index}".encode() for index in range(len(back))]
        self.names += len(back)
        rows = RecordArrays(np.array(times, dtype=np.int64), np.full(len(back), 10), ids=ids_of(names))
        self.client.add(rows, self.now_ms)
        self.unkept += zip(times, names, strict=True)

    @rule()
    def write_log(self) -> None:
        self.keep()

    @rule(fate=st.randoms(use_true_random=False))
    def report(self, fate: random.Random) -> None:
        reports = self.client.reports(self.now_ms)
        self.keep()
        fate.shuffle(reports)
        for report in reports:
            match fate.choice(["lost", "arrives", "arrives", "unknown"]):
                case "lost":
                    continue
                case "unknown":
                    self.arrives(report)
                case _:
                    self.arrives(report)
                    self.client.acknowledged(report)

    @rule()
    def killed(self) -> None:
        self.unkept = []
        state = msgspec.json.decode(self.kept, type=ClientState)
        self.client = ClientAudit.restored(state, IDLE_MS)

    @rule()
    def settle(self) -> None:
        """All reports arrive and are acknowledged."""
        for _ in range(2):  # again, as a client with too many waiting reports makes no new one
            for report in self.client.reports(self.now_ms):
                self.arrives(report)
                self.client.acknowledged(report)
        self.keep()
        expected = Counter(window_of(time, SCOPE.width_ms) for time, _ in self.counted)
        found = {key.start_ms: one.totals for key, one in self.collector.windows.items()}
        assert {start: totals.count for start, totals in found.items() if totals.count} == expected
        for start in expected:
            names = [name for time, name in self.counted if window_of(time, SCOPE.width_ms) == start]
            assert found[start].ids == of_ids(ids_of(names))

    def arrives(self, report: Report) -> None:
        sent = msgspec.json.decode(msgspec.json.encode(report), type=Report)
        self.collector.apply(sent, self.position)
        self.position += 1


TestClientAgainstModel = ClientAgainstModel.TestCase


def test_a_watermark_does_not_pass_a_report_that_has_not_arrived() -> None:
    client = ClientAudit(SCOPE, "web@1", IDLE_MS)
    rows = RecordArrays(np.array([1_000]), np.array([10]), ids=ids_of([b"a"]))
    client.add(rows, 1_000)
    (first,) = client.reports(1_000)
    client.add(RecordArrays(np.array([2_000]), np.array([10]), ids=ids_of([b"b"])), 2_000)
    _, second = client.reports(2_000)
    assert (first.watermark_ms, second.watermark_ms) == (1_000, -1)
    client.acknowledged(second)
    client.acknowledged(first)
    (third,) = client.reports(2_500)
    assert (third.watermark_ms, third.windows, third.part) == (2_200, (), 2)


def test_a_record_with_a_time_in_the_future_makes_nothing_late() -> None:
    client = ClientAudit(SCOPE, "web@1", IDLE_MS)
    for time_ms in (1_000_000_000, 950):
        client.add(RecordArrays(np.array([time_ms]), np.array([10])), 1_000)
    (report,) = client.reports(1_000)
    assert (report.late_ms, report.watermark_ms) == (0, 950)


@pytest.mark.parametrize("clock_skew_ms", [SKEW_MS + 1, 1 << 50, None])
def test_a_client_that_counts_only_records_without_progress_holds_no_window_open(
    clock_skew_ms: int | None,
) -> None:
    """The client's clock, or its producers' clock, is wrong. None: its records have no timestamp."""
    bounds = PlanBounds(lateness_ms=100, most_lateness_ms=100, silence_ms=200, give_up_ms=1 << 40)
    clients = [ClientAudit(SCOPE, name, IDLE_MS) for name in ("web@1", "app@1")]
    collector, position, closed = Collector(), 0, list[int]()
    for now_ms in range(10_000, 12_000, 100):
        for client, off_ms in zip(clients, (clock_skew_ms, -50), strict=True):
            timestamp_ms = -1 if off_ms is None else now_ms + off_ms
            client.add(RecordArrays(np.array([timestamp_ms]), np.array([10])), now_ms)
            for report in client.reports(now_ms):
                collector.apply(report, position, now_ms)
                client.acknowledged(report)
                position += 1
        for event in collector.due(now_ms, bounds):
            collector.apply(event, position, now_ms)
            position += 1
            closed.append(event.before_ms)
    assert max(closed, default=0) >= 11_900 - IDLE_MS - 100 - SCOPE.width_ms


def test_times_that_mean_nothing_make_no_windows_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MOST_WINDOWS", 3)
    monkeypatch.setattr(client_module, "MOST_EARLY", 0)
    client = ClientAudit(SCOPE, "web@1", IDLE_MS)
    for number in range(10):
        client.add(RecordArrays(np.array([100 * number, 5]), np.array([10, 10])), 1_000)
    (report,) = client.reports(1_000)
    counts = {increment.start_ms: increment.totals.count for increment in report.windows}
    assert counts == {-1: 7, 0: 11, 100: 1, 200: 1}
    assert client.untimed == 7


def test_a_client_that_replays_a_topic_counts_every_record_in_its_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "MOST_WINDOWS", 3)
    client, collector = ClientAudit(SCOPE, "web@1", IDLE_MS), Collector()
    for number in range(10):
        client.add(RecordArrays(np.array([100 * number]), np.array([10])), 1_000)
    reports = client.reports(1_000)
    assert max(len(report.windows) for report in reports) == 3
    for position, report in enumerate(reports):
        collector.apply(report, position)
    assert [key.start_ms for key in sorted(collector.windows)] == list(range(0, 1_000, 100))
    assert client.untimed == 0


def test_each_record_has_its_own_latency() -> None:
    client = ClientAudit(SCOPE, "web@1", IDLE_MS)
    client.add(RecordArrays(np.array([150, 20, 160]), np.full(3, 10)), np.array([170, 190, 1_160]))
    (report,) = client.reports(1_160)
    found = [increment.totals.percentiles_ms(0.5, 1.0) for increment in report.windows]
    assert found == [pytest.approx([170, 170], rel=0.02), pytest.approx([20, 1_000], rel=0.02)]


def test_a_client_that_ends_says_so() -> None:
    client = ClientAudit(SCOPE, "web@1", IDLE_MS)
    assert [report.leaves for report in client.reports(5, leaves=True)] == [True]
