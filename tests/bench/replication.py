"""Records/s that a worker copies from one cluster to another, against MirrorMaker 2; and the latency of
copies.

Both copy the same filled topic from its beginning, by turns, into a new topic every time. Records are counted
in the destination (its log's ends), between a tenth and nine tenths of all. A record too many or too few
fails the bench. A bare copier, which only moves bytes, gives the limit of brokers and machine. CPU and
memory: `replication-cost`.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from tests.bench.copying.compare import HEADLINE, PEER, SETUP, SHAPES, both_sides, compare
from tests.bench.copying.latency import MEASURED_S, PER_SECOND
from tests.bench.copying.sides import Sides
from tests.bench.run import Progress, alternate


def run(progress: Progress) -> dict[str, Any]:
    """Every shape, and the latency of a steady flow."""
    with both_sides(progress) as sides:
        compared = [compare(sides, shape, progress) for shape in SHAPES]
        latencies = _latencies(sides, progress)
    figure = "replication", "records_per_s", "records/s"
    rows = {one.shape: one.row(*figure) for one in compared}
    first = rows.pop(HEADLINE)
    return {
        **{key: first[key] for key in first if key != "bench"},
        "setup": {
            **SETUP,
            "latency": f"producer (linger 5 ms) to consumer, {PER_SECOND:,} records/s for {MEASURED_S} s",
        },
        "rows": [*rows.values(), *(one.row(*figure, bare=True) for one in compared), *latencies],
    }


def _latencies(sides: Sides, progress: Progress) -> list[dict[str, Any]]:
    progress("latency of a steady flow, p99 ms")
    halves: dict[str, list[float]] = {"ours": [], "peer": []}

    def keep(p50: list[float], measured: tuple[float, float]) -> float:
        p50.append(measured[0])
        return measured[1]

    pair = alternate(
        lambda: keep(halves["ours"], sides.our_latency_ms()),
        lambda: keep(halves["peer"], sides.peer_latency_ms()),
        progress=progress,
    )
    return [
        {
            "bench": f"replication, latency {name}", "value": round(ours, 2), "unit": "ms",
            "peer": PEER, "peer_value": round(peer, 2), "ratio": round(ours / peer, 4),
        }
        for name, ours, peer in (
            ("p99", pair.ours, pair.peer),
            ("p50", median(halves["ours"]), median(halves["peer"])),
        )
    ]  # fmt: skip
