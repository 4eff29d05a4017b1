"""Every shape of topic, by both sides in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Any

from app.dev.demo.stage import DemoStage
from app.dev.yard import Yard
from app.dev.yard.java import find_java
from tests.bench import mirror_maker
from tests.bench.copying.sides import SOURCE, Sides
from tests.bench.copying.topic import PARTITIONS, Shape, drop, fill
from tests.bench.copying.watch import Figures
from tests.bench.run import Progress, alternate

PEER = f"MirrorMaker 2 {mirror_maker.VERSION}"
BARE = "a bare copier, which checks and promises nothing"
SMALL, LARGE, ALONE = 2_000_000, 500_000, 100_000  # records of 200 bytes, of 2 KB, of one a batch
SHAPES = (
    *(
        Shape(size, codec, batch_bytes, count)
        for size, count in ((200, SMALL), (2_000, LARGE))
        for codec in ("none", "zstd")
        for batch_bytes in (16 * 1024, 64 * 1024)
    ),
    Shape(200, "none", 0, ALONE),
)
HEADLINE = SHAPES[0]
SETUP = {
    "brokers": "one for each cluster, same machine, shared", "partitions": PARTITIONS,
    "headline": HEADLINE.title, "ours": "one worker", "peer": "one process, one task, tuned",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """The sides' figures of a shape, every round's."""

    shape: Shape
    ours: list[Figures]
    peer: list[Figures]
    bare: list[Figures]

    def row(self, bench: str, figure: str, unit: str, *, bare: bool = False) -> dict[str, Any]:
        """A row of the bench's answer: medians of one figure; beside the bare copier's, if told."""
        other_rounds, peer = (self.bare, BARE) if bare else (self.peer, PEER)
        value, peer_value = (median(map(attrgetter(figure), side)) for side in (self.ours, other_rounds))
        return {
            "bench": f"{bench}, {self.shape.title}", "value": round(value, 3), "unit": unit,
            "peer": peer, "peer_value": round(peer_value, 3), "ratio": round(value / peer_value, 4),
        }  # fmt: skip


@contextmanager
def both_sides(progress: Progress) -> Iterator[Sides]:
    """Brokers, a worker, and what the peer needs."""
    with Yard(regions=1) as yard, DemoStage(yard) as stage:
        progress("fetching the peer")
        java = find_java()
        yield Sides(stage, stage.worker(), java, mirror_maker.class_path())


def compare(sides: Sides, shape: Shape, progress: Progress) -> Compared:
    """Fills a topic of the shape, and lets both copy it by turns; a bare copier comes after each of ours."""
    bootstrap = sides.stage.yard.bootstrap(SOURCE)
    progress(f"filling a topic: {shape.title}")
    asyncio.run(fill(bootstrap, shape))
    compared = Compared(shape, [], [], [])

    def keep(kept: list[Figures], figures: Figures) -> float:
        kept.append(figures)
        return figures.records_per_s

    def ours() -> float:
        rate = keep(compared.ours, sides.ours(shape))
        compared.bare.append(sides.bare(shape))
        return rate

    alternate(
        ours,
        lambda: keep(compared.peer, sides.peer(shape)),
        progress=progress,
    )
    asyncio.run(drop(bootstrap, shape.topic))
    return compared
