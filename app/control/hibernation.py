"""Idle workloads sleep: they have no jobs until something waits for them again.

The leader looks at the ends of their topics and at the group's commits, and `app.core.sizing.Hibernation`
decides. What cannot be read now is not known, and never a reason to change anything. A workload whose jobs
have no owner already was asleep under the former leader, and stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from app.config.definitions import Workload
from app.control.data_clusters import DataCluster
from app.core.sizing import Activity, Hibernation
from app.kafka.clusters import EARLIEST, LATEST

At = tuple[str, int]  # topic, partition


class Sleepers:
    """Which workloads sleep, and why."""

    def __init__(self) -> None:
        self.asleep: dict[str, str] = {}
        self._rules: dict[str, Hibernation] = {}
        self._ends: dict[str, dict[At, int]] = {}

    def keep(self, keys: Collection[str]) -> None:
        """Forgets all other workloads."""
        for key in [key for key in self._rules if key not in keys]:
            self._forget(key)

    async def read(
        self,
        cluster: DataCluster,
        workload: Workload,
        wanted: Iterable[At],
        now_s: float,
        is_owned: Callable[[], bool],
    ) -> None:
        """Looks at one workload; `is_owned`: whether any of its jobs has an owner.

        Raises:
            ClusterUnreachable: the group's commits cannot be read.
        """
        key, hibernate = workload.key, workload.spec.hibernate
        if hibernate is None:
            self._forget(key)
            return
        rule = self._rules.get(key)
        if rule is None or rule.after_s != hibernate.after:
            asleep = key in self.asleep or not is_owned()
            rule = self._rules[key] = Hibernation(hibernate.after, asleep=asleep)
        at = list(wanted)
        starts = await cluster.client.offsets(at, EARLIEST)
        ends = await cluster.client.offsets(at, LATEST)
        committed = await cluster.committer.committed(workload.metadata.group, at)
        before = self._ends.get(key, {})
        known = all(one in starts and one in ends for one in at)
        moved = sum(ends[one] - before.get(one, ends[one]) for one in at if one in ends)
        waiting = [
            ends[one] - max((committed.get(one) or 0), starts[one])
            for one in at
            if one in ends and one in starts
        ]
        lag = sum(max(0, lag) for lag in waiting)
        unknown = None if not known else 0
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
