"""Draws faults and incidents from a seed: the same seed gives the same ones.

A fault concerns one delivery. It depends on the seed, the message and its attempt, so a receiver that was
killed continues with the same faults. An incident hits a process at a time of the soak.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """A receiver's behaviour in one delivery."""

    INSTANT = "instant"
    SLOW = "slow"
    VERY_SLOW = "very-slow"
    RAISE = "raise"
    RETRY = "retry"
    RETRY_AFTER = "retry-after"
    STASH = "stash"
    SKIP = "skip"
    HANG = "hang"  # until it is canceled


# Of a thousand deliveries. Few faults end in the DLQ, because most messages must be delivered.
WEIGHTS = {
    Fault.INSTANT: 740, Fault.SLOW: 120, Fault.VERY_SLOW: 8, Fault.RAISE: 45, Fault.RETRY: 30,
    Fault.RETRY_AFTER: 15, Fault.STASH: 20, Fault.SKIP: 19, Fault.HANG: 3,
}  # fmt: skip
_FAULTS, _WEIGHTS = tuple(WEIGHTS), tuple(WEIGHTS.values())


@dataclass(frozen=True, slots=True)
class Draw:
    """A delivery's fault, how long it takes (seconds), and the delay that a Retry asks for."""

    fault: Fault
    wait_s: float = 0.0
    after_s: float | None = None


def draw(seed: int, name: str, attempt: int) -> Draw:
    """The fault of this delivery of the message `name`."""
    chance = random.Random(f"{seed}/{name}/{attempt}")
    fault = chance.choices(_FAULTS, _WEIGHTS)[0]
    if fault is Fault.SLOW:
        return Draw(fault, chance.uniform(0.005, 0.08))
    if fault is Fault.VERY_SLOW:
        return Draw(fault, chance.uniform(0.5, 2.5))
    if fault is Fault.RETRY_AFTER:
        return Draw(fault, after_s=chance.uniform(0.05, 0.5))
    return Draw(fault)


class Kind(StrEnum):
    """A kind of incident."""

    AWAY = "unavailable"  # a receiver answers UNAVAILABLE
    OVERLOAD = "resource-exhausted"  # a receiver answers RESOURCE_EXHAUSTED
    RECEIVER_KILL = "receiver-kill"  # kill -9, and back a moment later
    RECEIVER_PAUSE = "receiver-pause"  # SIGSTOP
    BROKER_PAUSE = "broker-pause"
    WORKER_TERM = "worker-term"  # SIGTERM; another one takes its place
    WORKER_KILL = "worker-kill"  # kill -9; another one takes its place
    WORKER_STALL = "worker-stall"  # not planned: a worker answers no request because the machine is busy


@dataclass(frozen=True, slots=True)
class Incident:
    """`kind` hits the process `which` at `at_s` of the soak, for `for_s`."""

    kind: Kind
    at_s: float
    which: int = 0
    for_s: float = 0.0


# Shortest and longest duration of an incident, in seconds.
LASTS = {
    Kind.AWAY: (0.3, 1.5), Kind.OVERLOAD: (0.3, 1.0), Kind.RECEIVER_KILL: (0.2, 2.0),
    Kind.RECEIVER_PAUSE: (1.0, 4.0), Kind.BROKER_PAUSE: (1.0, 2.0),
}  # fmt: skip
SMALL = tuple(LASTS)
STEP_S = 4.5  # between two small ones: enough that things flow in between
ROUND_S = 60.0  # in which one worker is terminated and one killed


def incidents(seed: int, for_s: float) -> list[Incident]:
    """The incidents of a soak in order of time: every kind at least once, the rest by chance."""
    chance = random.Random(f"{seed}/incidents")
    found: list[Incident] = []
    deck: list[Kind] = []
    at_s = 3.0
    while at_s < for_s - 3.0:
        if not deck:
            deck = list(SMALL)
            chance.shuffle(deck)
        kind = deck.pop()
        found.append(Incident(kind, at_s, chance.randrange(2), chance.uniform(*LASTS[kind])))
        at_s += STEP_S * chance.uniform(0.8, 1.2)
    rounds = max(1, round(for_s / ROUND_S))
    for number in range(rounds):
        kinds = [Kind.WORKER_TERM, Kind.WORKER_KILL]
        chance.shuffle(kinds)
        for kind, share in zip(kinds, (0.2, 0.6), strict=True):
            within = share + chance.uniform(0.0, 0.1)
            found.append(Incident(kind, for_s * (number + within) / rounds, chance.randrange(2)))
    return sorted(found, key=lambda incident: incident.at_s)


@dataclass(frozen=True, slots=True)
class Lot:
    """A workload of the soak and its traffic: `keys` keys over `partitions` partitions."""

    name: str
    receiver: int
    spec: dict[str, Any]
    partitions: int = 2
    keys: int = 60
    timeout_s: float = 2.0

    @property
    def ordered(self) -> bool:
        """Whether the workload has an order."""
        return bool(self.spec.get("ordering", "none") != "none")

    @property
    def given_up_after_s(self) -> float:
        """The time after which the worker may give up a delivery that the receiver still handles."""
        head: dict[str, Any] = self.spec.get("headOfLine", {})
        return min(self.timeout_s, float(head.get("after", "300s").rstrip("s")))

    def messages(self, seed: int) -> Iterator[tuple[str, bytes]]:
        """Ids and keys, without end."""
        chance = random.Random(f"{seed}/{self.name}")
        number = 0
        while True:
            yield f"{self.name}-{number:07}", f"k{chance.randrange(self.keys)}".encode()
            number += 1


def _tiers(*delays: str, attempts: int = 2) -> list[dict[str, Any]]:
    return [{"delay": delay, "attempts": attempts} for delay in delays]


_HEAD = {"after": "2s", "perMinute": 6000}
LOTS = (
    Lot("plain", 0, {"retry": _tiers("300ms", "1s")}),
    Lot("keyed", 0, {"retry": _tiers("200ms", attempts=3), "ordering": "key", "flow": {"max_inflight": 64}}),
    Lot("stream", 0, {"retry": _tiers("300ms"), "target": {"contract": "stream"}}),
    Lot("lanes", 1, {"ordering": "key", "flow": {"max_inflight": 100}, "target": {"contract": "stream"}}),
    Lot("head", 1, {"headOfLine": _HEAD, "flow": {"max_inflight": 50}}, timeout_s=12.0),
    Lot("moved", 1, {"headOfLine": {**_HEAD, "stash": "retry"}, "retry": _tiers("200ms"),
                     "target": {"contract": "stream"}}, timeout_s=12.0),
)  # fmt: skip
