"""The audit of the story: the records counted by each tier, and the differences between tiers.

`taken` is pure, so that tests can use known answers. It does not wait until windows close, which takes
minutes after the last message: open windows count too, and are reported as such.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from app.audit.folds.comparison import WindowState
from app.dev.demo.stage import Process, StageError, http, wait_until
from app.kernel.json_types import JsonMapping, JsonObject

WINDOW, LATENESS = "2s", "2s"
MOST_ROWS = 1000  # in one page of an answer
ENOUGH_S, LOOK_S = 120.0, 0.25
# as long as nothing is missing
SOUND = {WindowState.OK.value, WindowState.LATE.value, WindowState.PROVISIONAL.value}


@dataclass(frozen=True, slots=True)
class Audited:
    """The audit's counts.

    Attributes:
        tiers: Tier -> records, over all its clusters.
        missing, extra: By tier, fewer or more records than the tier before, in all windows, open ones
            included.
        states: The number of comparisons by state.
    """

    tiers: Mapping[str, int]
    missing: int
    extra: int
    states: Mapping[str, int]

    def is_all(self, produced: int, tiers: Iterable[str]) -> bool:
        """Whether each of these tiers has counted all records, and no comparison differs."""
        counted = all(self.tiers.get(tier, 0) == produced for tier in tiers)
        return counted and not self.missing and not self.extra and set(self.states) <= SOUND

    @property
    def describe(self) -> str:
        """The results of the comparisons, for people."""
        labels = {WindowState.OK.value: "arrived", WindowState.PROVISIONAL.value: "not over yet"}
        found = (f"{many:,} {labels.get(state, state)}" for state, many in sorted(self.states.items()))
        return ", ".join(found) or "none yet"


def taken(windows: Iterable[JsonMapping], verdicts: Iterable[JsonMapping]) -> Audited:
    """The sums of the API's lists of windows and comparisons."""
    tiers: Counter[str] = Counter()
    for row in windows:
        tiers[row["tier"]] += row["count"]
    verdicts = list(verdicts)
    return Audited(
        dict(tiers),
        missing=sum(row["missing"] or 0 for row in verdicts),
        extra=sum(row["extra"] or 0 for row in verdicts),
        states=dict(Counter(row["state"] for row in verdicts)),
    )


def plan(name: str, topic: str, **spec: Any) -> JsonObject:
    """An audit plan with short windows."""
    return {
        "apiVersion": "switchyard/v1",
        "kind": "AuditPlan",
        "metadata": {"name": name, "owner": "demo"},
        "spec": {"topics": [topic], "window": WINDOW, "lateness": LATENESS, **spec},
    }


def until_counted(worker: Process, topic: str, produced: int, tiers: Iterable[str]) -> Audited:
    """Waits until each of these tiers has counted all records without a difference, for `ENOUGH_S` at
    most; returns the last counts."""
    wanted, known = list(tiers), Audited({}, 0, 0, {})

    def counted() -> bool:
        nonlocal known
        windows, verdicts = _listed(worker, "windows", topic), _listed(worker, "loss", topic)
        if windows is None or verdicts is None:
            return False
        known = taken(windows, verdicts)
        return known.is_all(produced, wanted)

    with contextlib.suppress(StageError):  # the report shows the present figures
        wait_until(counted, ENOUGH_S, lambda: str(known), LOOK_S)
    return known


def _listed(worker: Process, what: str, topic: str) -> list[JsonObject] | None:
    """All pages of a list; None: the workers cannot give it now, because one was lost a moment ago."""
    states = [("state", state.value) for state in WindowState] if what == "loss" else []
    rows: list[JsonObject] = []
    cursor: str | None = "0"
    while cursor is not None:
        query = urlencode([("topic", topic), ("limit", MOST_ROWS), ("cursor", cursor), *states])
        status, body = http("GET", f"{worker.url}/api/v1/audit/{what}?{query}")
        if status in {502, 503}:
            return None
        if status != 200:
            raise StageError(f"GET audit/{what} answered {status}: {body!r}")
        rows += body["items"]
        cursor = body["next"]
    return rows
