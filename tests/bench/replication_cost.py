"""CPU seconds per million records copied, against MirrorMaker 2; and the memory of both.

Measured as in `replication`. CPU is all that the process used while it copied, a worker's control plane
included; memory the largest resident size. A bare copier's CPU is what moving the bytes costs by itself.
"""

from __future__ import annotations

from typing import Any

from tests.bench.copying.compare import HEADLINE, SETUP, SHAPES, both_sides, compare
from tests.bench.run import Progress


def run(progress: Progress) -> dict[str, Any]:
    """Every shape."""
    with both_sides(progress) as sides:
        compared = [compare(sides, shape, progress) for shape in SHAPES]
    figure = "replication-cost", "cpu_s_per_million", "CPU s/million"
    rows = {one.shape: one.row(*figure) for one in compared}
    first = rows.pop(HEADLINE)
    bare = [one.row(*figure, bare=True) for one in compared]
    memory = [one.row("replication-cost, memory", "memory_mb", "MB") for one in compared]
    return {
        **{key: first[key] for key in first if key != "bench"},
        "setup": SETUP,
        "rows": [*rows.values(), *bare, *memory],
    }
