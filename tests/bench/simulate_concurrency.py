"""Adaptive limits against fixed ones, in a discrete-event simulation of a receiver with a backlog before it.

    python -m tests.bench.simulate_concurrency

A call reaches the receiver after half a round trip, waits for one of its `servers`, is worked on, and
returns. There is always another message to send, because the worker has a backlog. Before a receiver that
takes any number at once there are `offered` messages a second. Nothing here takes real time; the same seed
gives the same figures.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from app.dispatch.model.concurrency_limit import AdaptiveLimit


class Limit(Protocol):
    """What the simulation drives."""

    limit: int

    def on_sample(self, now_s: float, latency_s: float, in_flight: int, dropped: bool = False) -> None:
        """A call ended."""


class Fixed:
    """The operator's guess."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def on_sample(self, now_s: float, latency_s: float, in_flight: int, dropped: bool = False) -> None:
        """Learns nothing."""


class _Windowed:
    """Netflix' WindowedLimit: a window's mean latency, once 100 ms and ten samples are over."""

    def __init__(self, initial: int, maximum: int) -> None:
        self.limit, self.maximum, self.exact = initial, maximum, float(initial)
        self.count, self.sum_s, self.in_flight, self.next_s = 0, 0.0, 0, 0.1

    def on_sample(self, now_s: float, latency_s: float, in_flight: int, dropped: bool = False) -> None:
        """Adds up; decides at the window's end."""
        self.count += 1
        self.sum_s += latency_s
        self.in_flight = max(self.in_flight, in_flight)
        if now_s >= self.next_s and self.count >= 10:
            rtt_s = self.sum_s / self.count
            if self.in_flight * 2 >= self.limit:
                self.exact = min(self.maximum, max(1.0, self.update(rtt_s)))
                self.limit = int(self.exact)
            self.count, self.sum_s, self.in_flight = 0, 0.0, 0
            self.next_s = now_s + min(1.0, max(2 * rtt_s, 0.1))

    def update(self, rtt_s: float) -> float:
        raise NotImplementedError


class Gradient2(_Windowed):
    """Gradient2 as Netflix/concurrency-limits describes it: smoothing 0.2, queue 4, tolerance 1.5."""

    def __init__(self, initial: int = 20, maximum: int = 2000) -> None:
        super().__init__(initial, maximum)
        self.long_s, self.seen = 0.0, 0

    def update(self, rtt_s: float) -> float:
        """Compares with the long-term mean."""
        self.seen += 1
        factor = 1 / self.seen if self.seen <= 10 else 2 / 601
        self.long_s += (rtt_s - self.long_s) * factor
        if self.long_s / rtt_s > 2:
            self.long_s *= 0.95
        gradient = max(0.5, min(1.0, 1.5 * self.long_s / rtt_s))
        return max(20.0, self.exact * 0.8 + (self.exact * gradient + 4) * 0.2)


class Vegas(_Windowed):
    """Vegas as Netflix/concurrency-limits describes it, in windows, as uForwarder uses it."""

    def __init__(self, initial: int = 20, maximum: int = 2000) -> None:
        super().__init__(initial, maximum)
        self.least_s, self.windows = math.inf, 0

    def update(self, rtt_s: float) -> float:
        """Compares with the least latency seen."""
        self.windows += 1
        if rtt_s < self.least_s or self.windows >= 30 * self.exact:
            self.least_s, self.windows = rtt_s, 0
            return self.exact
        step = max(1.0, math.log10(self.exact))
        queue = math.ceil(self.exact * (1 - self.least_s / rtt_s))
        if queue <= step:
            return self.exact + 6 * step
        if queue < 3 * step:
            return self.exact + step
        return self.exact - step if queue > 6 * step else self.exact


@dataclass
class Receiver:
    """`servers` that each take `service_s`, behind a network of `rtt_s`.

    Attributes:
        spread: 0 when all messages are alike; 1 for exponential times, as with a database behind.
        slowdown: The factor of `service_s` at a time.
        work: Draws how long a message takes, instead of `spread`; `service_s` is its mean.
        offered: Messages a second to be sent; inf is a backlog.
        shared: Calls start at once and are worked on by turns, as on a machine of `servers` cores.
        waits: Draws how long a message takes after its server is free again, as waits in an event loop do.
        waits_s: The mean of `waits`.
    """

    servers: int
    service_s: float
    rtt_s: float = 0.0005
    spread: float = 0.1
    slowdown: Callable[[float], float] = lambda _now_s: 1.0
    work: Callable[[random.Random], float] | None = None
    offered: float = math.inf
    shared: bool = False
    waits: Callable[[random.Random], float] = lambda _dice: 0.0
    waits_s: float = 0.0

    def takes_s(self, dice: random.Random) -> float:
        """How long the next message keeps a server, while nothing slows it down."""
        if self.work is not None:
            return self.work(dice)
        return self.service_s * (1 - self.spread + self.spread * dice.expovariate(1.0))

    @property
    def base_s(self) -> float:
        """Latency without a queue."""
        return self.service_s + self.rtt_s + self.waits_s


@dataclass
class Run:
    """The results by the second (bins of `BIN_S`)."""

    done: list[int] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)

    def rate(self, from_s: float, until_s: float) -> float:
        """Messages a second between two times."""
        return sum(self.done[round(from_s / BIN_S) : round(until_s / BIN_S)]) / (until_s - from_s)

    def mean_latency_s(self, from_s: float, until_s: float) -> float:
        """Mean latency of what ended between two times."""
        span = slice(round(from_s / BIN_S), round(until_s / BIN_S))
        return sum(self.latency_s[span]) / max(1, sum(self.done[span]))


BIN_S = 0.1


def simulate(
    receiver: Receiver,
    limit: Limit,
    seconds: float,
    seed: int = 1,
    *,
    at: dict[float, Callable[[], None]] | None = None,
) -> Run:
    """Works off a backlog for `seconds`; `at` has things that happen at a time."""
    dice, bins = random.Random(seed), round(seconds / BIN_S)
    run = Run([0] * bins, [0.0] * bins, [0] * bins)
    free = [0.0] * receiver.servers
    answers: list[tuple[float, float]] = []
    events = sorted((at or {}).items(), key=lambda event: event[0])
    now_s, half_s, sent = 0.0, receiver.rtt_s / 2, 0
    every_s, worked_s = 1 / receiver.offered, 0.0
    while now_s < seconds:
        while len(answers) < limit.limit and sent * every_s <= now_s:
            sent += 1
            work_s = receiver.takes_s(dice)
            if receiver.shared:
                heapq.heappush(answers, (worked_s + work_s, now_s))
                continue
            start_s = max(now_s + half_s, free[0])
            ready_s = start_s + work_s * receiver.slowdown(start_s)
            heapq.heapreplace(free, ready_s)
            heapq.heappush(answers, (ready_s + half_s + receiver.waits(dice), now_s))
        if len(answers) < limit.limit and (not answers or sent * every_s < answers[0][0]):
            now_s = sent * every_s
            continue
        ended_s, started_s = heapq.heappop(answers)
        if receiver.shared:
            left_s, worked_s = ended_s - worked_s, ended_s
            ended_s = now_s + left_s * receiver.slowdown(now_s) * max(
                1.0, (len(answers) + 1) / receiver.servers
            )
        while events and events[0][0] <= ended_s:
            events.pop(0)[1]()
        now_s = ended_s
        limit.on_sample(now_s, now_s - started_s, len(answers) + 1)
        bin_ = int(now_s / BIN_S)
        if bin_ < bins:
            run.done[bin_] += 1
            run.latency_s[bin_] += now_s - started_s
            run.limits[bin_] = limit.limit
    return run


def slow_between(from_s: float, until_s: float, factor: float = 10.0) -> Callable[[float], float]:
    """A receiver that is `factor` times slower for a while."""
    return lambda now_s: factor if from_s <= now_s < until_s else 1.0


def noise(low: float, high: float, seed: int = 7) -> Callable[[float], float]:
    """A machine with others on it: a factor between the two, another one every second."""
    dice = random.Random(seed)
    factors = [low * (high / low) ** dice.random() for _ in range(1000)]
    return lambda now_s: factors[int(now_s) % 1000]


def sometimes(share: float, slow_s: float) -> tuple[float, Callable[[random.Random], float]]:
    """Mean and draw of messages of 1 to 3 ms, `share` of which take `slow_s`."""
    mean_s = share * slow_s + (1 - share) * 0.002
    return mean_s, lambda dice: slow_s if dice.random() < share else dice.uniform(0.001, 0.003)


def lognormal(mean_s: float, sigma: float) -> tuple[float, Callable[[random.Random], float]]:
    """Mean and draw; sigma 1.5: one in a hundred takes 33 times the median."""
    mu = math.log(mean_s) - sigma**2 / 2
    return mean_s, lambda dice: dice.lognormvariate(mu, sigma)


def pareto(mean_s: float, alpha: float) -> tuple[float, Callable[[random.Random], float]]:
    """Mean and draw; alpha 1.5: without a variance."""
    least_s = mean_s * (alpha - 1) / alpha
    return mean_s, lambda dice: least_s * dice.paretovariate(alpha)


TAILS = {
    "1/40 of 300 ms": sometimes(1 / 40, 0.3),
    "1/10 of 1 s": sometimes(1 / 10, 1.0),
    "30 % of 300 ms": sometimes(0.3, 0.3),
    "lognormal, 10 ms, sigma 1.5": lognormal(0.01, 1.5),
    "Pareto, 10 ms, alpha 1.5": pareto(0.01, 1.5),
}
MANY = 100_000  # servers: no limit can fill them


def asyncio_receiver(slowdown: Callable[[float], float] = lambda _now_s: 1.0) -> Receiver:
    """One event loop, busy 1 ms with each message; one in forty then waits 300 ms without blocking others."""
    return Receiver(
        1,
        0.001,
        slowdown=slowdown,
        waits=lambda dice: 0.3 if dice.random() < 1 / 40 else 0.0,
        waits_s=0.3 / 40,
    )


SCENARIOS: dict[str, tuple[Receiver, float]] = {
    "0 ms, 4 servers of 0.1 ms": (Receiver(4, 0.0001), 4.0),
    "10 ms, 8 servers": (Receiver(8, 0.010), 20.0),
    "10 ms, 100 servers": (Receiver(100, 0.010), 12.0),
    "50 ms, 40 servers": (Receiver(40, 0.050), 20.0),
    "50 ms, 40 servers, exponential": (Receiver(40, 0.050, spread=1.0), 20.0),
    "50 ms, 1,000 servers": (Receiver(1000, 0.050), 12.0),
    "50 ms, 100,000 servers": (Receiver(100_000, 0.050), 8.0),
    "10 ms, 50 servers, tenfold slow 5-15 s": (Receiver(50, 0.010, slowdown=slow_between(5, 15)), 15.0),
    **{
        f"{name}, 2,000/s": (Receiver(MANY, mean_s, work=work, offered=2000), 30.0)
        for name, (mean_s, work) in TAILS.items()
    },
    **{
        f"{name}, 8 servers": (Receiver(8, mean_s, work=work), 60.0) for name, (mean_s, work) in TAILS.items()
    },
    "asyncio, 1 ms and 1/40 of 300 ms": (asyncio_receiver(), 30.0),
    "asyncio, 1 ms and 1/40 of 300 ms, noisy": (asyncio_receiver(noise(0.5, 3)), 30.0),
    "10 ms, noisy, 2,000/s": (Receiver(MANY, 0.01, slowdown=noise(0.5, 3), offered=2000), 30.0),
    "10 ms, 8 servers, noisy": (Receiver(8, 0.01, slowdown=noise(0.5, 3)), 30.0),
    "2 ms of 2 shared cores": (Receiver(2, 0.002, 0.0, 1.0, shared=True), 20.0),
    "2 ms of 2 shared cores, noisy": (
        Receiver(2, 0.002, 0.0, 1.0, shared=True, slowdown=noise(0.5, 3)),
        30.0,
    ),
}
FIXED = (1, 4, 8, 20, 50, 100, 256, 1000, 2000)


def best_fixed(receiver: Receiver, seconds: float, from_s: float) -> float:
    """The highest throughput of any fixed limit."""
    return max(simulate(receiver, Fixed(limit), seconds).rate(from_s, seconds) for limit in FIXED)


def main() -> None:
    """Prints the table."""
    print(
        f"{'receiver':41s} {'limit':>12s} {'msg/s':>8s} {'of best':>8s}"
        f" {'latency':>9s} {'of base':>8s} {'at end':>7s}"
    )
    for name, (receiver, seconds) in SCENARIOS.items():
        from_s = seconds / 2
        best = best_fixed(receiver, seconds, from_s)
        base_s = receiver.base_s * receiver.slowdown(from_s)
        rivals: dict[str, Limit] = {
            "fixed 20": Fixed(20),
            "fixed 256": Fixed(256),
            "Gradient2": Gradient2(),
            "Vegas": Vegas(),
            "ours": AdaptiveLimit(),
        }
        for rival, limit in rivals.items():
            run = simulate(receiver, limit, seconds)
            rate, latency_s = run.rate(from_s, seconds), run.mean_latency_s(from_s, seconds)
            print(
                f"{name:41s} {rival:>12s} {rate:8.0f} {rate / best:8.0%} {latency_s * 1000:7.2f}ms"
                f" {latency_s / base_s:7.1f}x {limit.limit:7d}"
            )


if __name__ == "__main__":
    main()
