"""Idle workloads sleep: they have no jobs until something waits for them again.

The leader looks at the ends of all topics that can bring them work (their own, retry tiers, what was merged
back, what was delayed) and at the group's commits, and `app.sizing.recommendation.Hibernation` decides. What
cannot be read now is not known, and never a reason to change anything. A workload whose jobs have no owner
already was asleep under the former leader, and stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.dispatch.definition import Workload
from app.kafka.consumer_lag import ConsumerLag, TopicAndPartition
from app.sizing.recommendation import Activity, Hibernation


class HibernationTracker:
    """Which workloads sleep, and why."""

    def __init__(self) -> None:
        self.asleep: dict[str, str] = {}
        self._rules: dict[str, Hibernation] = {}
        self._ends: dict[str, dict[TopicAndPartition, int]] = {}

    def keep(self, keys: Collection[str]) -> None:
        """Forgets all other workloads."""
        for key in [key for key in self._rules if key not in keys]:
            self._forget(key)

    def knows(self, key: str) -> bool:
        """Whether it has been looked at, by this leader."""
        return key in self._rules

    def evaluate(
        self,
        workload: Workload,
        wanted: Sequence[TopicAndPartition],
        backlog: ConsumerLag,
        now_s: float,
        is_owned: bool,
    ) -> None:
        """Looks at all partitions that can bring one workload work; `is_owned`: whether any of its jobs has
        an owner."""
        key, hibernate = workload.key, workload.spec.hibernate
        if hibernate is None:
            self._forget(key)
            return
        rule = self._rules.get(key)
        if rule is None or rule.after_s != hibernate.after:
            asleep = key in self.asleep or not is_owned
            rule = self._rules[key] = Hibernation(hibernate.after, asleep=asleep)
        before, ends = self._ends.get(key, {}), backlog.ends
        moved = sum(abs(ends[at] - before.get(at, ends[at])) for at in wanted if at in ends)
        waiting = [backlog.waiting(at) for at in wanted]
        lag = sum(abs(one) for one in waiting if one is not None)
        unknown = None if None in waiting else 0
        why = rule.observe(Activity(moved or unknown, lag or unknown, 0), now_s)
        self._ends[key] = before | ends
        if why:
            self.asleep[key] = why
        else:
            self.asleep.pop(key, None)

    def _forget(self, key: str) -> None:
        self._rules.pop(key, None)
        self._ends.pop(key, None)
        self.asleep.pop(key, None)
