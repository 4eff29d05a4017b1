"""From append to handler: p50, p99 and the slowest of a round, at three rates, against plain consumers.

The topic's timestamps are the broker's (LogAppendTime), in whole milliseconds, so every figure of every side
is half a millisecond too high on average. All processes share one clock. A side reads a topic of its own,
which is fed at each rate for the same time, after it has handled what came before.

The last row is the CPU of a worker without messages: the user and system time of its process in 30 s, as % of
a core. Its workload calls a unary receiver for a topic of 100 partitions, and has run for 15 s. A plain
consumer reads the same partitions beside it. Both are measured once, before the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from app.dev.demo.stage import DemoStage, Process, StageError, wait_until
from app.dev.demo.traffic import create_topic
from app.dev.yard import Yard
from tests.bench.latency import idle, sides
from tests.bench.latency.feed import feed
from tests.bench.latency.histogram import Histogram
from tests.bench.parallel_consumer import VERSION
from tests.bench.run import MIN_ROUNDS, Progress

EXAMPLES = """\
examples:
  python -m tests.bench dispatch-latency
  python -m tests.bench dispatch-latency --sides unary aiokafka --rates 1000 --rounds 5
"""
SIDES = ("unary", "stream", "aiokafka", "parallel-consumer")
OURS, PEERS = SIDES[:2], SIDES[2:]
RATES = (100, 1_000, 5_000)
PARTITIONS = 4
MEASURED_S, WARM_S = 10.0, 3.0
ARRIVE_S = 60.0
FIGURES = {"p50": 0.5, "p99": 0.99, "slowest": 1.0}
PEER_NAMES = dict(
    zip(PEERS, ("a plain aiokafka consumer", f"Parallel Consumer {VERSION}, handler in process"), strict=True)
)
Figures = dict[str, float]
Start = Callable[[str, Histogram], contextlib.AbstractContextManager[object]]


def add_arguments(parser: ArgumentParser) -> None:
    """Sides, rates and rounds."""
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, metavar="SIDE",
                        help=f"of: {', '.join(SIDES)} (default: all)")  # fmt: skip
    parser.add_argument("--rates", nargs="+", type=int, default=RATES, metavar="N",
                        help="messages a second (default: 100 1000 5000)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, metavar="N",
                        help="of every side; medians count (default: 3)")  # fmt: skip


def run(progress: Progress, options: Namespace) -> dict[str, Any]:
    """All sides by turns; the side that begins changes every round."""
    if not set(OURS) & set(options.sides) or not set(PEERS) & set(options.sides):
        raise ValueError(f"--sides needs one of {', '.join(OURS)}, and one of {', '.join(PEERS)}")
    if options.rounds < MIN_ROUNDS:
        raise ValueError(f"--rounds {options.rounds} make no median; give at least {MIN_ROUNDS}")
    found: dict[tuple[str, int], list[Figures]] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        Yard(regions=1) as yard,
        DemoStage(yard) as stage,
        contextlib.ExitStack() as stack,
    ):
        progress("starting")
        worker = stage.worker()
        idle_row = idle.measure(stage, worker, Path(name))
        progress(f"idle: {idle_row['value']} % of a core, {idle_row['peer']} {idle_row['peer_value']} %")
        starts = _starts(stage, worker, options.sides, Path(name), stack)
        for number in range(options.rounds):
            first = number % len(starts)
            for side in [*starts][first:] + [*starts][:first]:
                bench = Round(yard.bootstrap(sides.CLUSTER), Path(name) / f"{side}-{number}")
                for rate, figures in bench.run(starts[side], options.rates).items():
                    found.setdefault((side, rate), []).append(figures)
                    words = ", ".join(f"{what} {ms:.2f}" for what, ms in figures.items())
                    progress(f"round {number + 1} of {options.rounds}, {side}, {rate:,}/s: {words} ms")
    rows = [*_rows(found), idle_row]
    setup = {
        "partitions": PARTITIONS, "seconds": MEASURED_S, "rounds": options.rounds,
        "clock": "appended in whole ms, handled in 0.05 ms",
    }  # fmt: skip
    headline = {key: rows[0][key] for key in ("value", "unit", "peer", "peer_value")}
    return {**headline, "setup": setup, "rows": rows}


def _starts(
    stage: DemoStage, worker: Process, wanted: Sequence[str], work: Path, stack: contextlib.ExitStack
) -> dict[str, Start]:
    """How each side begins to read a topic."""
    starts: dict[str, Start] = {
        "unary": partial(sides.unary, stage, worker),
        "stream": partial(sides.stream, stage, worker),
        "aiokafka": partial(sides.aiokafka, stage),
    }
    if "parallel-consumer" in wanted:
        bootstrap = stage.yard.bootstrap(sides.CLUSTER)
        peer = stack.enter_context(sides.ParallelConsumer.started(bootstrap, work))
        starts["parallel-consumer"] = peer.reading
    return {side: start for side, start in starts.items() if side in wanted}


class Round:
    """One side's turn: a topic of its own, fed at each rate."""

    def __init__(self, bootstrap: str, file: Path) -> None:
        self._bootstrap = bootstrap
        self._topic = f"latency-{uuid.uuid4().hex[:8]}"
        self._latencies = Histogram(file)
        config = {"message_timestamp_type": "LogAppendTime"}
        asyncio.run(create_topic(bootstrap, self._topic, PARTITIONS, **config))

    def run(self, start: Start, rates: Sequence[int]) -> dict[int, Figures]:
        """The figures by rate. Raises StageError: messages do not arrive."""
        found = {}
        with start(self._topic, self._latencies):
            self._feed(1_000, WARM_S)  # the first messages wait for the side's start
            for rate in rates:
                self._latencies.clear()
                self._feed(rate, MEASURED_S)
                found[rate] = {what: self._latencies.quantile_ms(share) for what, share in FIGURES.items()}
        return found

    def _feed(self, rate: int, seconds: float) -> None:
        count = int(rate * seconds)
        asyncio.run(feed(self._bootstrap, self._topic, rate, count))
        latencies = self._latencies
        wait_until(
            lambda: latencies.count >= count, ARRIVE_S, lambda: f"{latencies.count} of {count} came", 0.2
        )
        if latencies.count > count:
            raise StageError(f"{latencies.count - count} of {count} messages came twice")


def _rows(found: dict[tuple[str, int], list[Figures]]) -> Iterator[dict[str, Any]]:
    """Each side of ours against each peer, by rate; `rounds` has all figures of both."""
    for (own, rate), ours in found.items():
        for peer in PEERS if own in OURS else ():
            theirs = found.get((peer, rate))
            for what in FIGURES if theirs else ():
                pairs = [[one[what], two[what]] for one, two in zip(ours, theirs or (), strict=True)]
                value, peer_value = (median(side) for side in zip(*pairs, strict=True))
                yield {
                    "rounds": pairs,
                    "bench": f"dispatch-latency, {own}, {rate:,} messages/s, {what}",
                    "value": round(value, 2), "unit": "ms", "peer": PEER_NAMES[peer],
                    "peer_value": round(peer_value, 2), "ratio": round(value / peer_value, 2),
                }  # fmt: skip
