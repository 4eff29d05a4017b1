"""Lists the audited partitions: those of all topics that a plan matches, in the clusters that it names.

    definitions -> topics of each cluster (one request a cluster) -> the first plan that matches -> jobs

Rules
1. Missing knowledge never ends a job. An assigned job stays while its cluster is unreachable, its plan cannot
   be read, or its topic may not be described. It ends when no plan counts its topic any more, or when the
   topic no longer exists (`app.worker.jobs.topic_inventory`). The leader reports vanished topics
   (`app.worker.jobs.vanished_topics`).
2. If several plans match a topic of a cluster, the first by name counts it. So each window belongs to one
   plan.
3. A round waits at most `REFRESH_TIMEOUT_S` for a cluster. Reading continues in the background.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

import structlog
from aiokafka.errors import KafkaError

from app.audit.definition import AUDIT_JOBS, AuditPlan, job_name, of_job_name
from app.audit.folds.plan_terms import PREFIX as KEYS
from app.audit.folds.tier import PlanBounds
from app.audit.folds.tier_pairs import OF_CLUSTERS
from app.audit.topics.client_scopes import oddity
from app.controllog.definition_cache import DefinitionCache
from app.controllog.leader_reports import NewTerm, until_deposed
from app.controllog.log import ControlLog
from app.dispatch.definition import Workload
from app.failover.topology import Layout
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.data_clusters import DataClusters
from app.kernel.incidents import IsOver, ReportIncident
from app.kernel.json_types import JsonMapping
from app.placement.model.round import is_gone
from app.worker.jobs.topic_inventory import ClusterTopics
from app.worker.jobs.vanished_topics import ExpectedTopic, TopicPresence, was_held
from switchyard.audit.model.places import group_of
from switchyard.audit.model.reports import Scope

log = structlog.get_logger(__name__)

REFRESH_INTERVAL_S = 2.0
REFRESH_TIMEOUT_S = 0.25  # a round waits this long for clusters that answered in time before
BUSY_SHARE = 20  # reading a cluster takes at most a twentieth of the time
MOST_KNOWN = 100_000  # topics whose plan is cached; clients choose names freely


class AuditsCatalog:
    """The plans and the audited partitions; only the leader calls `refresh`, `found` and `jobs`.
    `workload`: its definition, by key."""

    def __init__(
        self,
        control: ControlLog,
        clusters: DataClusters,
        report_incident: ReportIncident,
        layout: Layout | None,
        workload: Callable[[str], Workload | None],
    ) -> None:
        self.layout = layout
        self._workload = workload
        self._control = control
        self._clusters = clusters
        self._report_incident = report_incident
        self._parsed = DefinitionCache(lambda: control.view.audits, _parsed, self._report_unreadable)
        self._topics: defaultdict[str, ClusterTopics] = defaultdict(ClusterTopics)
        self._reads: dict[str, asyncio.Task[None]] = {}
        self._slow: set[str] = set()
        self._unreachable: set[str] = set()
        self._new_term = NewTerm()
        self._stamp: tuple[tuple[str, str], ...] | None = None
        self._plans: dict[str, AuditPlan] = {}
        self._plans_of_cluster: dict[str, list[AuditPlan]] = {}  # cluster -> plans that name it, by name
        self._plan_of_place: dict[tuple[str, str], AuditPlan | None] = {}
        self._plan_of_topic: dict[str, AuditPlan | None] = {}

    # -- definitions -------------------------------------------------------------------------------

    def plan(self, name: str) -> AuditPlan | None:
        self._refresh_plans()
        return self._plans.get(name)

    def plans(self) -> list[AuditPlan]:
        """The readable plans, by name."""
        self._refresh_plans()
        return list(self._plans.values())

    def plan_of(self, cluster: str, topic: str) -> AuditPlan | None:
        """The plan that counts a topic (rule 2). `cluster` may be a group's place (`places.place_of`)."""
        cluster, group = group_of(cluster)
        if group:
            plan, workload = self.plan_of(cluster, topic), self._workload(f"{group}/{topic}")
            is_meant = workload is not None and workload.metadata.cluster == cluster
            return plan if plan is not None and plan.counts_consumers and is_meant else None
        self._refresh_plans()
        at = cluster, topic
        if at not in self._plan_of_place:
            if len(self._plan_of_place) >= MOST_KNOWN:
                self._plan_of_place.clear()
            plans = self._plans_of_cluster.get(cluster, ())
            self._plan_of_place[at] = next((plan for plan in plans if plan.means(topic)), None)
        return self._plan_of_place[at]

    def bounds_of(self, cluster: str, topic: str) -> PlanBounds:
        """When a topic's windows close, also in a cluster that no plan names, and without a plan."""
        plan = self.plan_of(cluster, topic) or self._plan_in_any_cluster(topic)
        return PlanBounds() if plan is None else plan.bounds

    def oddity_of(self, scope: Scope) -> str:
        """How a client's scope deviates from the plan; "": it does not (`app.audit.topics.client_scopes`)."""
        if scope.tier in OF_CLUSTERS or self.layout is None or not self._control.caught_up:
            return ""
        scope = scope._replace(cluster=group_of(scope.cluster)[0])
        here, anywhere = self.plan_of(scope.cluster, scope.topic), self._plan_in_any_cluster(scope.topic)
        return oddity(scope, here, anywhere, self.layout.sites)

    def _plan_in_any_cluster(self, topic: str) -> AuditPlan | None:
        """The first plan by name that matches a topic, in any cluster."""
        self._refresh_plans()
        if topic not in self._plan_of_topic:
            if len(self._plan_of_topic) >= MOST_KNOWN:
                self._plan_of_topic.clear()
            self._plan_of_topic[topic] = next(
                (plan for plan in self._plans.values() if plan.means(topic)), None
            )
        return self._plan_of_topic[topic]

    def tier(self, cluster: str) -> str | None:
        """The tier of a cluster; None: the cluster is not configured here."""
        site = None if self.layout is None else self.layout.sites.get(cluster)
        return None if site is None else site.tier

    def _refresh_plans(self) -> None:
        puts = self._control.view.audits
        stamp = tuple(sorted((key, put.etag) for key, put in puts.items()))
        if stamp == self._stamp:
            return
        self._stamp, self._plan_of_place, self._plans_of_cluster, self._plan_of_topic = stamp, {}, {}, {}
        found = [plan for key in sorted(puts) if (plan := self._parsed.get(key)) is not None]
        self._plans = {plan.name: plan for plan in found}
        for plan in found if self.layout is not None else ():
            assert self.layout is not None, "checked above"
            for cluster in plan.clusters(self.layout):
                self._plans_of_cluster.setdefault(cluster, []).append(plan)

    # -- the leader's rounds -----------------------------------------------------------------------

    async def refresh(self, held: Iterable[str] = ()) -> None:
        """Reads topics of clusters that are due; waits `REFRESH_TIMEOUT_S` at most. `held`: as for `jobs`."""
        self._refresh_plans()
        if self._new_term.has_begun(self._control.view.term):
            self._topics.clear()
            self._unreachable.clear()
        self._unreachable &= self._plans_of_cluster.keys()
        for gone in self._topics.keys() - self._plans_of_cluster.keys():
            del self._topics[gone]
        self._reads = {name: task for name, task in self._reads.items() if not task.done()}
        expected: defaultdict[str, set[str]] = defaultdict(set)
        for _, cluster, topic in self._counted_topics(held):
            expected[cluster].add(topic)
        now_s, awaited = time.monotonic(), set()
        for cluster in self._plans_of_cluster:
            topics = self._topics[cluster]
            pause_s = max(REFRESH_INTERVAL_S, BUSY_SHARE * topics.took_s)
            if cluster not in self._reads and now_s - topics.listed_at_s >= pause_s:
                task = asyncio.get_running_loop().create_task(
                    self._read_cluster(cluster, topics, expected[cluster])
                )
                self._reads[cluster] = task
                if cluster not in self._slow:
                    awaited.add(task)
        if awaited:
            _, late = await asyncio.wait(awaited, timeout=REFRESH_TIMEOUT_S)
            self._slow |= {name for name, task in self._reads.items() if task in late}

    def _counted_topics(self, held: Iterable[str]) -> Iterator[tuple[str, str, str]]:
        """(prefix, cluster, topic) of the jobs whose plan still counts their topic."""
        for prefix in held:
            if prefix.startswith(AUDIT_JOBS):
                _, name, topic = prefix.split(":")
                plan, cluster = of_job_name(name)
                governing = self.plan_of(cluster, topic)
                if governing is not None and governing.name == plan:
                    yield prefix, cluster, topic

    def found(self, held: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, TopicPresence]]:
        """The presence of topics that have, or had, jobs and are still counted; `held` as in `jobs`."""
        assigned = self._control.view.assignments
        for prefix, cluster, topic in self._counted_topics(held):
            if was_held(assigned[job] for job in held[prefix]):
                topics, (plan, _) = self._topics.get(cluster), of_job_name(prefix.split(":")[1])
                state = "unknown" if topics is None else topics.stands(topic)
                yield prefix, TopicPresence(ExpectedTopic("audit plan", plan, cluster, topic), state)

    async def _read_cluster(self, cluster: str, topics: ClusterTopics, expected: Set[str]) -> None:
        try:
            if cluster not in self._clusters.specs:
                raise ClusterUnreachable(
                    "it is not in this worker's configuration; add it to switchyard.yaml"
                )
            client = (await self._clusters.get(cluster)).client
            began_s = time.monotonic()
            await topics.refresh(client, None, lambda: (), began_s, expected=expected)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as error:
            if cluster not in self._unreachable:
                self._unreachable.add(cluster)
                names = ", ".join(plan.name for plan in self._plans_of_cluster.get(cluster, ()))
                self._report_incident(
                    "audit-trouble", names, f"the topics of cluster {cluster} cannot be listed: {error}",
                    "check the cluster; its known topics are still counted, new ones wait until it answers",
                    until_deposed(self._control, lambda: cluster not in self._unreachable),
                )  # fmt: skip
            await asyncio.sleep(REFRESH_INTERVAL_S)
        except Exception:
            log.exception("listing a cluster's topics failed and is retried", cluster=cluster)
            await asyncio.sleep(REFRESH_INTERVAL_S)
        else:
            self._unreachable.discard(cluster)
            if time.monotonic() - began_s < REFRESH_TIMEOUT_S:
                self._slow.discard(cluster)

    def jobs(self, held: Mapping[str, Iterable[str]]) -> Iterator[str]:
        """All jobs of all plans. `held`: the jobs in the control log, by their name without the partition."""
        self._refresh_plans()
        for prefix, jobs in held.items():
            if prefix.startswith(AUDIT_JOBS) and self._stays(prefix):
                assigned = self._control.view.assignments
                yield from (job for job in jobs if job not in assigned or not is_gone(assigned[job]))
        for cluster, topics in self._topics.items():
            for topic, count in topics.sizes.items():
                plan = self.plan_of(cluster, topic)
                if plan is not None:
                    prefix = f"{AUDIT_JOBS}{job_name(plan.name, cluster)}:{topic}:"
                    yield from (f"{prefix}{partition}" for partition in range(count))

    def _stays(self, prefix: str) -> bool:
        """Whether assigned jobs stay without a fresh list of topics (rule 1)."""
        _, name, topic = prefix.split(":")
        plan, cluster = of_job_name(name)
        if plan not in self._plans:
            return f"{KEYS}{plan}" in self._control.view.audits
        governing, topics = self.plan_of(cluster, topic), self._topics.get(cluster)
        is_known = topics is not None and topics.listed and (topic in topics.sizes or topics.is_gone(topic))
        return not is_known and governing is not None and governing.name == plan

    def _report_unreadable(self, key: str, why: str, is_over: IsOver) -> None:
        self._report_incident("audit-trouble", key.removeprefix(KEYS), why, "deploy it again", is_over)


def _parsed(key: str, definition: JsonMapping) -> AuditPlan:
    """Raises ValueError: The definition has another key, or cannot be parsed."""
    found = AuditPlan.from_wire(definition)
    if found.key != key:
        raise ValueError(f"it defines {found.key!r}, but has the key {key!r}")
    found.means("")  # compiles the patterns, so that their errors are raised now
    return found
