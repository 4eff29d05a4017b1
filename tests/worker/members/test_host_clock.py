"""A wrong clock of a worker is reported once, in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app.kernel.clock import Clock
from app.worker.members.host_clock import HostClock
from tests.kernel.test_clock import NOW_MS


class Case:
    """A host whose clock can be set, with the reported incidents."""

    def __init__(self) -> None:
        self.ahead_ms, self.reported = 0, list[tuple[str, str, str]]()
        self.host = HostClock(
            Clock(lambda: NOW_MS + self.ahead_ms, lambda: 5), lambda *words: self.reported.append(words[:3])
        )

    def beat(self, ahead_ms: int, timestamp_type: int = 1) -> str:
        self.ahead_ms = ahead_ms
        metadata = SimpleNamespace(timestamp_type=timestamp_type, timestamp=NOW_MS)
        self.host.acknowledged(metadata, self.host.steady_ms())
        return self.host.trouble


@pytest.mark.parametrize(
    ("ahead_ms", "words"),
    [
        (7_200_000, "this worker's clock is 2h ahead of the brokers'"),
        (-7_261_000, "this worker's clock is 2h behind the brokers'"),
        (90_000, "this worker's clock is 1m30s ahead of the brokers'"),
        (5_000, "this worker's clock is 5s ahead of the brokers'"),
        (-6_400_000, "this worker's clock is 1h47m behind the brokers'"),
        (4_999, ""),
        (0, ""),
    ],
)
def test_a_wrong_clock_is_described_in_words(ahead_ms: int, words: str) -> None:
    assert Case().beat(ahead_ms) == words


def test_a_wrong_clock_is_one_incident_until_it_is_right() -> None:
    case = Case()
    for ahead_ms in (6_000, 60_000, 3_000, 7_000):
        assert case.beat(ahead_ms)
    assert [kind for kind, *_ in case.reported] == ["clock"]
    assert "6s ahead" in case.reported[0][1]
    assert "NTP" in case.reported[0][2]
    assert case.beat(1_000) == ""
    assert case.host.ahead_s == 1.0
    case.beat(-6_000)
    assert len(case.reported) == 2


def test_a_topic_with_create_time_gives_no_time() -> None:
    case = Case()
    assert case.beat(7_200_000, timestamp_type=0) == ""
    assert case.host.ahead_s is None
