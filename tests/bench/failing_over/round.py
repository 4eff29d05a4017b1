"""The figures of a round, and the traffic, which are the same for both sides."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from app.dev.demo.failover_traffic import Journal, now_ms
from app.dev.demo.stage import wait_until
from app.dev.demo.two_regions import STEP_TIMEOUT_S

PARTITIONS = 4
PER_SECOND = {"east": 500.0, "west": 50.0}  # by the producers' home
WARM_S, AFTER_S, SETTLE_S = 15.0, 8.0, 2.0
STEADY_S, STEADY = 3.0, 0.9  # for this long, at least this share of the messages arrives


@dataclass
class Round:
    """The figures of one failover.

    Attributes:
        first_s: By partition, from the command to its first message.
        again: Messages that were delivered twice.
        oldest_s: The greatest age of these at the kill.
        lost: Acknowledged to producers and never delivered, not even after the lost region was back.
        plan_s: How long the plan took, which was made before the command.
        phases: The end of each phase of `first_s`, in seconds after the command.
    """

    first_s: list[float] = field(default_factory=list)
    again: int = 0
    oldest_s: float = 0.0
    lost: int = 0
    messages: int = 0
    plan_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


def until_steady(journal: Journal) -> None:
    """Waits until the reader of the region that will be lost has kept up with its traffic for a while."""
    least = STEADY * STEADY_S * PER_SECOND["east"]

    def is_steady() -> bool:
        before = len(journal.read())
        time.sleep(STEADY_S)
        return len(journal.read()) - before >= least and now_ms() - journal.lines[-1]["at_ms"] < 1_000

    wait_until(is_steady, STEP_TIMEOUT_S, lambda: f"{len(journal.lines)} records came", 0.0)
