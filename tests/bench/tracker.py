"""How fast the tracker acknowledges, on one core, against a plain tracker of a dict and a heap.

The work is a steady state: chunks of 256 fetched offsets keep a window of 10,000 offsets full. Acknowledged
offsets are drawn at random from all open ones. The plan is made beforehand; the calls of `fetched` and `ack`
are timed. Both trackers do the same plan and must end at the same base.
"""

from __future__ import annotations

import heapq
import random
import time
from typing import Any, Protocol

from app.kernel.tracker import Tracker
from tests.bench.run import Progress, alternate

WINDOW = 10_000
CHUNK = 256
ACKS = 1_000_000
RANGE = 256  # what one answer of a streaming receiver acknowledges
RANGED = 50_000_000
ROUNDS = 5
SEED = 1

Fetch = tuple[int, int]
Plan = list[Fetch | list[int]]


class AnyTracker(Protocol):
    """The methods that both trackers have."""

    base: int

    def fetched(self, start: int, end: int) -> Any: ...

    def ack(self, offset: int) -> bool: ...


class DictAndHeap:
    """The plain way: a dict of open and finished offsets, and a heap for the lowest."""

    def __init__(self) -> None:
        self.base = self.end = 0
        self.done: dict[int, bool] = {}
        self.heap: list[int] = []

    def fetched(self, start: int, end: int) -> None:
        for offset in range(start, end):
            self.done[offset] = False
            heapq.heappush(self.heap, offset)
        self.end = end

    def ack(self, offset: int) -> bool:
        if self.done.get(offset) is not False:
            return False
        self.done[offset] = True
        heap, done = self.heap, self.done
        while heap and done[heap[0]]:
            del done[heapq.heappop(heap)]
        self.base = heap[0] if heap else self.end
        return True


def plan(acks: int, seed: int) -> Plan:
    """Chunks to fetch whenever they fit into the window, and between them offsets to acknowledge."""
    source = random.Random(seed)
    steps: Plan = []
    unfinished: list[int] = []
    tracker = Tracker(0, WINDOW)
    left = acks
    while left > 0:
        if tracker.room >= CHUNK:
            start, end = tracker.end, tracker.end + CHUNK
            tracker.fetched(start, end)
            steps.append((start, end))
            unfinished.extend(range(start, end))
            continue
        drawn: list[int] = []
        while unfinished and len(drawn) < CHUNK:
            at = source.randrange(len(unfinished))
            unfinished[at], unfinished[-1] = unfinished[-1], unfinished[at]
            drawn.append(unfinished.pop())
        tracker.ack_many(drawn)
        steps.append(drawn)
        left -= len(drawn)
    return steps


def acks_per_s(tracker: AnyTracker, steps: Plan) -> float:
    """Single acknowledgements a second over the whole plan, the fetching included."""
    fetched, ack, count = tracker.fetched, tracker.ack, 0
    began_s = time.perf_counter()
    for step in steps:
        if isinstance(step, tuple):
            fetched(*step)
        else:
            for offset in step:
                ack(offset)
            count += len(step)
    return count / (time.perf_counter() - began_s)


def batched_per_s(steps: Plan) -> float:
    """The same plan with `ack_many`, a chunk a call."""
    tracker, count = Tracker(0, WINDOW), 0
    began_s = time.perf_counter()
    for step in steps:
        if isinstance(step, tuple):
            tracker.fetched(*step)
        else:
            count += tracker.ack_many(step)
    return count / (time.perf_counter() - began_s)


def ranged_per_s() -> float:
    """Offsets a second acknowledged by ranges, each of which comes after its successor."""
    tracker, count = Tracker(0, WINDOW), 0
    began_s = time.perf_counter()
    for start in range(0, RANGED, 2 * RANGE):
        middle, end = start + RANGE, start + 2 * RANGE
        tracker.fetched(start, end)
        count += tracker.ack_range(middle, end)
        count += tracker.ack_range(start, middle)
    took_s = time.perf_counter() - began_s
    if count != tracker.base or not tracker.idle:
        raise AssertionError(f"{count} acknowledged, base {tracker.base}")
    return count / took_s


def ranged_singly_per_s() -> float:
    """The same ranges for the peer, which knows no ranges; a fiftieth of them."""
    tracker = DictAndHeap()
    began_s = time.perf_counter()
    for start in range(0, RANGED // 50, 2 * RANGE):
        tracker.fetched(start, start + 2 * RANGE)
        for offset in (*range(start + RANGE, start + 2 * RANGE), *range(start, start + RANGE)):
            tracker.ack(offset)
    return tracker.base / (time.perf_counter() - began_s)


def run(progress: Progress) -> dict[str, Any]:
    """See the module."""
    progress(f"planning {ACKS:,} acknowledgements in a window of {WINDOW:,}")
    steps = plan(ACKS, SEED)
    tracker, plain_tracker = Tracker(0, WINDOW), DictAndHeap()
    acks_per_s(tracker, steps)
    acks_per_s(plain_tracker, steps)
    if tracker.base != plain_tracker.base:
        raise AssertionError(f"the trackers disagree: base {tracker.base} and {plain_tracker.base}")
    peer = "a plain dict-and-heap tracker"

    def peer_acks_per_s() -> float:
        return acks_per_s(DictAndHeap(), steps)

    progress("single acknowledgements")
    single = alternate(lambda: acks_per_s(Tracker(0, WINDOW), steps), peer_acks_per_s, ROUNDS, progress)
    progress("acknowledgements by batches of singles")
    batched = alternate(lambda: batched_per_s(steps), peer_acks_per_s, progress=progress)
    progress(f"ranges of {RANGE}")
    ranged = alternate(ranged_per_s, ranged_singly_per_s, progress=progress)
    rows = [
        ("tracker-batches", batched, "acknowledgements/s, ack_many of up to 256"),
        ("tracker-ranges", ranged, f"offsets/s acknowledged by ranges of {RANGE}"),
    ]
    return {
        "value": round(single.ours),
        "unit": "acknowledgements/s",
        "peer": peer,
        "peer_value": round(single.peer),
        "ratio": round(single.ratio, 2),
        "setup": {"window_offsets": WINDOW, "acknowledgements": ACKS, "rounds": ROUNDS, "seed": SEED},
        "rows": [
            {
                "bench": name,
                "value": round(pair.ours),
                "unit": unit,
                "peer": peer,
                "peer_value": round(pair.peer),
                "ratio": round(pair.ratio, 2),
            }
            for name, pair, unit in rows
        ],
    }
