"""Tracks which workloads are idle and sleep: a sleeping workload has no jobs until a message waits for it.

The leader reads the ends of all topics that can bring work (the workload's own, retry tiers, merged and
delayed messages) and the group's commits. `app.sizing.recommendation.Hibernation` decides. An end or commit
that cannot be read is unknown, and never a reason for a change. If none of a workload's jobs has an owner, it
was asleep under the former leader and stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.dispatch.definition import Workload
from app.kafka.consumer_lag import ConsumerLag, TopicAndPartition
from app.sizing.recommendation import Activity, Hibernation


class HibernationTracker:
    def __init__(self) -> None:
        self.asleep: dict[str, str] = {}
        self._rules: dict[str, Hibernation] = {}
        self._ends: dict[str, dict[TopicAndPartition, int]] = {}

    def keep(self, keys: Collection[str]) -> None:
        """Forgets all other workloads."""
        for key in [key for key in self._rules if key not in keys]:
            self._forget(key)

    def knows(self, key: str) -> bool:
        """Whether this leader has evaluated the workload."""
        return key in self._rules

    def evaluate(
        self,
        workload: Workload,
        wanted: Sequence[TopicAndPartition],
        backlog: ConsumerLag,
        now_s: float,
        is_owned: bool,
    ) -> None:
        """Evaluates a workload. `wanted`: all partitions that can bring it work; `is_owned`: a job has an
        owner."""
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
        lag = sum(abs(count) for count in waiting if count is not None)
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
