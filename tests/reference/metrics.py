"""metrics.md: the metrics at /metrics, from the collector that makes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.core import Metric

from app.web.console.metrics import _Collector
from tests.reference.markdown import code, escaped, table
from tests.web.runtime_fake import FakeRuntime


def families() -> list[Metric]:
    """Each metric family without samples, in the order of /metrics."""
    runtime = FakeRuntime()
    runtime.heartbeats = SimpleNamespace(
        host_clock=SimpleNamespace(ahead_s=0.0)
    )  # a known value has a series
    found: dict[str, Metric] = {}
    for leads in (False, True):
        runtime.leader.leads = leads
        for family in _Collector(cast("Any", runtime)).collect():
            if leads and family.name not in found:
                family.from_leader = True  # type: ignore[attr-defined]
            found.setdefault(family.name, family)
    return list(found.values())


def name_of(family: Metric) -> str:
    """The family's name in its series."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def page() -> list[str]:
    """The page."""
    every = families()
    lines = [
        "# Metrics",
        "Each worker serves these at `/metrics`, in Prometheus' text format. Every series has the label",
        "`region`. A worker reports its own jobs: a sum over the workers is a sum over the region. A counter",
        "begins again at 0 when its job moves to another worker. A value that is not known has no series.",
        "",
    ]
    for title, of_leader in (("Of each worker", False), ("Of the region, from its leader", True)):
        lines += [f"## {title}", ""]
        lines += table(
            ("metric", "type", "labels", "description"),
            (
                (
                    code(name_of(family)),
                    family.type,
                    ", ".join(map(code, _labels(family))),
                    escaped(family.documentation),
                )
                for family in every
                if getattr(family, "from_leader", False) == of_leader
            ),
        )
    return lines


def _labels(family: Metric) -> tuple[str, ...]:
    return tuple(getattr(family, "_labelnames", ()))
