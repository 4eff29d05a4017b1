"""What both sides measure in a round, and the traffic that both have."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from app.dev.demo.failover_traffic import Journal, now_ms
from app.dev.demo.stage import wait_until
from app.dev.demo.two_regions import STEP_TIMEOUT_S

PARTITIONS = 4
PER_SECOND = {"east": 500.0, "west": 50.0}  # by where producers are at home
WARM_S, AFTER_S, SETTLE_S = 15.0, 8.0, 2.0
STEADY_S, STEADY = 3.0, 0.9  # for so long, so much of what is written comes


@dataclass
class Round:
    """One region lost, another one going on.

    Attributes:
        first_s: by partition, from the command to its first message.
        again: messages that were delivered twice; oldest_s: of these, the longest before the kill.
        lost: acknowledged to producers, delivered to nobody, also once the lost region was back.
        plan_s: how long the plan took that was made before the command.
        phases: what of `first_s` went by until when, seconds after the command.
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
