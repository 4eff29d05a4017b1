"""What the definition in force asks of a workload's pumps, in the form in which they use it."""

from __future__ import annotations

from app.dispatch.definition import Workload
from app.dispatch.model.header_filter import HeaderFilter
from app.dispatch.model.key_lanes import KeyLanes
from app.dispatch.model.metadata_sources import HeaderMap
from app.dispatch.model.outcome import Action, DeliveryDecision, RetryPolicy, RetryTopic
from app.kafka.records.record import Record


class DispatchSettings:
    """One for each workload on a worker. Its pumps and its scheduler share it, so they change together.

    Attributes:
        ordered: The definition asks for an order, by key or by partition.
        delay_ms: How long after its append a message of the main topic may be delivered.
        heeds_not_before: A message's own header may postpone it.
        header_filter: Chooses the record headers that the receiver gets; None: all.
        header_map: Gives unary calls metadata of record headers; None: none is asked for.
        is_uforwarder: Unary calls have what uForwarder's have.
        head_limits: From when on a message blocks its partition.
    """

    def __init__(self, workload: Workload) -> None:
        self.change(workload)

    def change(self, workload: Workload) -> None:
        spec = workload.spec
        self.workload = workload
        self.ordered = spec.ordering != "none"
        self.delay_ms = int(spec.delay * 1000)
        self.heeds_not_before = spec.not_before == "header"
        passing = spec.headers
        self.header_filter = None if passing is None else HeaderFilter(passing.allow, passing.deny)
        mapped = {name: one.header for name, one in workload.metadata_sources().items() if one.header}
        self.header_map = HeaderMap(mapped) if mapped else None
        self.is_uforwarder = spec.target.compat == "uforwarder"
        self.retry_topics = workload.retry_topics()
        self.dlq_topic = workload.dlq_topic()
        self.delayed_topic = workload.delayed_topic()
        self.head_limits, self._head_stash = workload.head_limits(), workload.head_of_line().stash
        self.policy = RetryPolicy(
            in_memory_attempts=spec.redelivery.max_attempts,
            backoff=spec.redelivery.backoff(),
            tiers=tuple(RetryTopic(delay_s=tier.delay, attempts=tier.attempts) for tier in spec.retry),
            dlq_enabled=spec.dlq.enabled,
        )

    def tier_delay_ms(self, tier: int) -> int:
        """How long a message waits in a retry tier; 0 in one that is no longer defined."""
        tiers = self.policy.tiers
        return int(tiers[tier].delay_s * 1000) if tier < len(tiers) else 0

    def new_lanes(self) -> KeyLanes[Record] | None:
        """Lanes that keep a job's messages in the definition's order; None: it asks for no order."""
        ordering = self.workload.spec.ordering
        return None if ordering == "none" else KeyLanes(single=ordering == "partition")

    def head_decision(self, tier: int | None) -> DeliveryDecision | None:
        """The decision for a message of this tier that blocks its partition; None: it stays."""
        if self._head_stash == "retry" and tier is None and self.policy.tiers and not self.ordered:
            return DeliveryDecision(Action.RETRY_TOPIC, 0, self.policy.tiers[0].delay_s, "")
        return DeliveryDecision(Action.DLQ, None, 0.0, "") if self.policy.dlq_enabled else None
