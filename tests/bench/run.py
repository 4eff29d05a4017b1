"""The bench harness: `python -m tests.bench NAME` runs `tests/bench/<name>.py`.

A bench is a module with `run(progress) -> dict`. It calls `progress(text)` meanwhile. It returns `value`,
`unit`, `peer`, `peer_value` and optionally `ratio` (else value / peer_value), `setup` (its own facts, added
to the machine's) and `rows` (more results of the same shape). A bench with options has
`add_arguments(parser)` and `EXAMPLES`, too, and `run(progress, options)`.

Rules
1. Progress goes to stderr; the last line on stdout is one JSON object `{"bench", "value", "unit", "peer",
   "peer_value", "ratio", "setup"}` and, with more, `"rows"`.
2. Ours and the peer are measured in the same run, by turns, and medians of at least three count: a noisy
   neighbour then hits both.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from app.kafka.client import aiokafka_patches

Progress = Callable[[str], None]

MIN_ROUNDS = 3
NOT_BENCHES = {"__init__", "__main__", "run", "simulate_concurrency", "slices"}
PACKAGES = ("faust-streaming", "aiokafka", "grpcio", "rocksdict", "uvloop", "pyspark", "duckdb")


@dataclass(frozen=True, slots=True)
class Pair:
    """Medians of ours and the peer's figure, and every round's."""

    ours: float
    peer: float
    rounds: tuple[tuple[float, float], ...]

    @property
    def ratio(self) -> float:
        """Ours / peer."""
        return self.ours / self.peer


def alternate(
    ours: Callable[[], float],
    peer: Callable[[], float],
    rounds: int = MIN_ROUNDS,
    progress: Progress | None = None,
) -> Pair:
    """Measures both by turns, `rounds` times; the side that begins changes every round.

    Raises:
        ValueError: Fewer rounds than make a median.
    """
    if rounds < MIN_ROUNDS:
        raise ValueError(f"{rounds} rounds make no median; give at least {MIN_ROUNDS}")
    results: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            peer_figure = peer()
            results.append((ours(), peer_figure))
        else:
            our_figure = ours()
            results.append((our_figure, peer()))
        if progress is not None:
            our_figure, peer_figure = results[-1]
            progress(f"round {number + 1} of {rounds}: ours {our_figure:,.6g}, peer {peer_figure:,.6g}")
    return Pair(median(one for one, _ in results), median(two for _, two in results), tuple(results))


def machine() -> dict[str, Any]:
    """The conditions of the figures: cores, memory, Python, operating system, versions."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": cores,
        "cpu": _cpu_name(),
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def names() -> list[str]:
    """The names of all benches."""
    stems = {path.stem for path in Path(__file__).parent.glob("*.py")} - NOT_BENCHES
    return sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("test_"))


def finish(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The object to print: figures checked, ratio and machine added.

    Raises:
        ValueError: A key is missing or a figure is no finite number.
    """
    whole = {"bench": name, **result}
    for key in ("value", "peer_value"):
        figure = whole.get(key)
        if not isinstance(figure, int | float) or not math.isfinite(figure):
            raise ValueError(f"bench {name}: {key} is {figure!r}, which is no finite number")
    for key in ("unit", "peer"):
        if not isinstance(whole.get(key), str):
            raise ValueError(f"bench {name}: {key} is missing")
    if "ratio" not in whole:
        whole["ratio"] = whole["value"] / whole["peer_value"] if whole["peer_value"] else None
    whole["setup"] = {**machine(), **result.get("setup", {})}
    order = ("bench", "value", "unit", "peer", "peer_value", "ratio", "setup")
    return {key: whole[key] for key in order} | {key: whole[key] for key in whole if key not in order}


def main(arguments: list[str] | None = None) -> int:
    """Runs one bench. Exit codes: 0 done, 2 unknown name; a bench that fails ends in a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Runs one benchmark.")
    parser.add_argument("name", help="one of: " + ", ".join(names()))
    name = parser.parse_args(given[:1]).name.replace("_", "-")
    if name not in names():
        parser.error(f"there is no bench {name!r}; there are: {', '.join(names())}")
    bench = importlib.import_module(f"tests.bench.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.bench {name}",
        description=bench.__doc__,
        epilog=getattr(bench, "EXAMPLES", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    has_options = hasattr(bench, "add_arguments")
    if has_options:
        bench.add_arguments(parser)
    options = parser.parse_args(given[1:])
    aiokafka_patches.install()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # of brokers that are killed on purpose

    def progress(text: str) -> None:
        print(f"{name}: {text}", file=sys.stderr, flush=True)

    result = finish(name, bench.run(progress, options) if has_options else bench.run(progress))
    print(json.dumps(result, ensure_ascii=False), flush=True)
    return 0


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
