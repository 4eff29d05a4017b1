"""An audit plan's terms of comparison, from its definition in the control log or in the table `audit_plans`,
which was checked before. So this needs no `app.config`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.audit.folds.tier import CONSUMER, PlanBounds
from app.audit.folds.tier_pairs import OF_CLUSTERS, ComparisonTerms
from app.kernel.durations import parse_duration
from app.kernel.json_types import JsonMapping
from app.replicate.model.route import Route

MOST_LATENESS_S = 3600.0
PREFIX = "audit:"  # no workload's, route's nor failover definition's key begins with it


def bounds_of(lateness_s: float, keep_s: float) -> PlanBounds:
    lateness_ms = round(lateness_s * 1000)
    most_ms = max(lateness_ms, round(MOST_LATENESS_S * 1000))
    return PlanBounds(lateness_ms, most_ms, keep_ms=round(keep_s * 1000))


@dataclass(frozen=True)
class PlanTerms:
    """The topics that a plan counts, and its comparison. `clusters`: names, or tiers of the plan's region;
    empty: all."""

    name: str
    clusters: tuple[str, ...]
    topics: Route
    plan: ComparisonTerms

    @classmethod
    def of(cls, definition: JsonMapping) -> PlanTerms:
        """The terms of a definition in canonical form. Raises ValueError: It is not an audit plan's."""
        try:
            name, spec = str(definition["metadata"]["name"]), definition["spec"]
            bounds = bounds_of(parse_duration(spec["lateness"]), parse_duration(spec["keep"]))
            plan = ComparisonTerms(round(parse_duration(spec["window"]) * 1000), bounds, tuple(spec["tiers"]))
            topics = Route(name, "", "", tuple(spec["topics"]), tuple(spec["exclude"]))
            return cls(name, tuple(spec["clusters"]), topics, plan)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the definition of an audit plan: {error!r}") from error

    def counts(self, tier: str, cluster: str, topic: str) -> bool:
        """Whether the plan counts a topic in a cluster of this tier, which its region knows."""
        is_named = not self.clusters or cluster in self.clusters or tier in self.clusters
        return tier in OF_CLUSTERS and is_named and self.topics.destination(topic) is not None

    @property
    def counts_consumers(self) -> bool:
        """Whether the plan also counts what workloads finish."""
        return not self.plan.tiers or CONSUMER in self.plan.tiers
