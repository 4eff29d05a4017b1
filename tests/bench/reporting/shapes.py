"""Answers in a shape that does not depend on the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DIGITS = 6  # of percentiles: pow is not the same to the last bit everywhere
SPAN = ("partition", "start", "end", "rows", "first_ms", "last_ms")
SHIFT = 1_000_003  # by which the copy's offsets are others
PLACE = ("topic", "tier", "cluster")
SUMS = ("windows", "records", "bytes", "duplicates", "late")
RANKS = ("p50_ms", "p95_ms", "p99_ms")
PAIR = ("topic", "from_tier", "to_tier")
FIGURES = ("from_count", "to_count", "missing", "extra")


def report(
    traffic: Iterable[Mapping[str, Any]], pairs: Iterable[Mapping[str, Any]]
) -> dict[str, list[list[Any]]]:
    """Traffic with percentiles by place; windows by state, and what is missing, by pair of tiers."""
    return {
        "traffic": sorted(
            [*(row[name] for name in (*PLACE, *SUMS)), *(round(row[name], DIGITS) for name in RANKS)]
            for row in traffic
        ),
        "pairs": sorted(
            [
                *(row[name] for name in PAIR),
                row["group"] or "",
                *(row[name] for name in FIGURES),
                sorted(row["states"].items()),
            ]
            for row in pairs
        ),
    }


def counts(rows: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """Spans: all records, and each span by the file's place in the archive."""
    counted_assignments = sorted(["/".join(Path(path).parts[-4:]), *figures] for path, *figures in rows)
    return {"records": sum(row[4] for row in counted_assignments), "spans": counted_assignments}
