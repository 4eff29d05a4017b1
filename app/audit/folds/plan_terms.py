"""What an audit plan says of comparing, of its definition as it stands in the control log and in the table
`audit_plans`: for whoever may not load `app.config`, which checks definitions before they stand there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.audit.folds.tier import CONSUMER, PlanBounds
from app.audit.folds.tier_pairs import OF_CLUSTERS, ComparisonTerms
from app.kernel.durations import parse_duration
from app.replicate.model.route import Route

MOST_LATENESS_S = 3600.0
PREFIX = "audit:"  # no workload's, route's nor failover definition's key begins with it


def bounds_of(lateness_s: float, keep_s: float) -> PlanBounds:
    """When windows close, and are forgotten."""
    lateness_ms = round(lateness_s * 1000)
    most_ms = max(lateness_ms, round(MOST_LATENESS_S * 1000))
    return PlanBounds(lateness_ms, most_ms, keep_ms=round(keep_s * 1000))


@dataclass(frozen=True)
class PlanTerms:
    """A plan. `clusters`: names, or tiers of the plan's region; none: all of that region."""

    name: str
    clusters: tuple[str, ...]
    topics: Route
    plan: ComparisonTerms

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> PlanTerms:
        """Of the canonical form.

        Raises:
            ValueError: it is none of an audit plan.
        """
        try:
            name, spec = str(definition["metadata"]["name"]), definition["spec"]
            bounds = bounds_of(parse_duration(spec["lateness"]), parse_duration(spec["keep"]))
            plan = ComparisonTerms(round(parse_duration(spec["window"]) * 1000), bounds, tuple(spec["tiers"]))
            topics = Route(name, "", "", tuple(spec["topics"]), tuple(spec["exclude"]))
            return cls(name, tuple(spec["clusters"]), topics, plan)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the definition of an audit plan: {error!r}") from error

    def counts(self, tier: str, cluster: str, topic: str) -> bool:
        """Whether it counts a topic of a cluster that its region knows, of this tier."""
        is_named = not self.clusters or cluster in self.clusters or tier in self.clusters
        return tier in OF_CLUSTERS and is_named and self.topics.destination(topic) is not None

    @property
    def counts_consumers(self) -> bool:
        """Whether what workloads have finished is counted, too."""
        return not self.plan.tiers or CONSUMER in self.plan.tiers
