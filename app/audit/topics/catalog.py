"""Which partitions are audited: those of all topics that a plan means, in the clusters that it names.

    definitions -> topics of each cluster (one request a cluster) -> the first plan that means a topic -> jobs

Rules
1. What cannot be known now never ends a job: one that is assigned stays while its cluster is away, or its
   plan cannot be read, or its topic may not be described. It ends when no plan means its topic any more, or
   the topic is gone for good (`app.worker.jobs.topic_inventory`), which is told
   (`app.worker.jobs.vanished_topics`).
2. Several plans may mean a topic of a cluster: the first by name counts it. So each window is one plan's.
3. Nobody waits for a cluster: reading goes on beside the rounds.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from app.audit.definition import AuditPlan, job_name, of_job_name
from app.audit.folds.plan_terms import PREFIX as KEYS
from app.audit.folds.tier import PlanBounds
from app.audit.folds.tier_pairs import OF_CLUSTERS
from app.audit.topics.client_scopes import oddity
from app.controllog.definition_cache import DefinitionCache
from app.controllog.log import ControlLog
from app.dispatch.definition import Workload
from app.failover.topology import Layout
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.data_clusters import DataClusters
from app.kernel.job import Kind
from app.placement.model.round import is_gone
from app.worker.jobs.start_position import ReportIncident
from app.worker.jobs.topic_inventory import ClusterTopics
from app.worker.jobs.vanished_topics import ExpectedTopic, TopicPresence, was_held
from switchyard.audit.model.places import group_of
from switchyard.audit.model.reports import Scope

log = structlog.get_logger(__name__)

REFRESH_INTERVAL_S = 2.0
REFRESH_TIMEOUT_S = 0.25  # a round's, with clusters that answered in time before
BUSY_SHARE = 20  # what takes long to read is read rarely: a twentieth of the time
MOST_KNOWN = 100_000  # topics, which clients name as they like, whose plan is remembered
PREFIX = f"{Kind.AUDIT.value}:"


class AuditsCatalog:
    """See the module. Only what is said of plans is of use where the rounds are not made.

    Attributes:
        workload: of a key, as it is defined; set by whoever knows them.
    """

    def __init__(
        self,
        control: ControlLog,
        clusters: DataClusters,
        report_incident: ReportIncident,
        layout: Layout | None,
    ) -> None:
        self.layout = layout
        self.workload: Callable[[str], Workload | None] = lambda _: None
        self._control = control
        self._clusters = clusters
        self._report_incident = report_incident
        self._parsed = DefinitionCache(lambda: control.view.audits, _parsed, self._unread)
        self._topics: defaultdict[str, ClusterTopics] = defaultdict(ClusterTopics)
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._late: set[str] = set()
        self._away: set[str] = set()
        self._term = 0
        self._stamp: tuple[tuple[str, str], ...] | None = None
        self._plans: dict[str, AuditPlan] = {}
        self._read: dict[str, list[AuditPlan]] = {}  # cluster -> plans that name it, in their order
        self._known: dict[tuple[str, str], AuditPlan | None] = {}
        self._meant: dict[str, AuditPlan | None] = {}

    # -- definitions -------------------------------------------------------------------------------

    def plan(self, name: str) -> AuditPlan | None:
        """As it stands in the control log, parsed once a change."""
        self._refresh_plans()
        return self._plans.get(name)

    def plans(self) -> list[AuditPlan]:
        """Those that can be read, by name."""
        self._refresh_plans()
        return list(self._plans.values())

    def plan_of(self, cluster: str, topic: str) -> AuditPlan | None:
        """The plan by which a topic is counted (rule 2), also as a group's there (`tier.place_of`)."""
        cluster, group = group_of(cluster)
        if group:
            plan, workload = self.plan_of(cluster, topic), self.workload(f"{group}/{topic}")
            is_meant = workload is not None and workload.metadata.cluster == cluster
            return plan if plan is not None and plan.counts_consumers and is_meant else None
        self._refresh_plans()
        at = cluster, topic
        if at not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            of = self._read.get(cluster, ())
            self._known[at] = next((plan for plan in of if plan.means(topic)), None)
        return self._known[at]

    def bounds_of(self, cluster: str, topic: str) -> PlanBounds:
        """When windows of a topic close, also in a cluster that no plan names, and when its plan is gone."""
        plan = self.plan_of(cluster, topic) or self._anywhere(topic)
        return PlanBounds() if plan is None else plan.bounds

    def oddity_of(self, scope: Scope) -> str:
        """What a client counts otherwise than planned, "" if nothing (`app.audit.topics.client_scopes`)."""
        if scope.tier in OF_CLUSTERS or self.layout is None or not self._control.caught_up:
            return ""
        scope = scope._replace(cluster=group_of(scope.cluster)[0])
        here, anywhere = self.plan_of(scope.cluster, scope.topic), self._anywhere(scope.topic)
        return oddity(scope, here, anywhere, self.layout.sites)

    def _anywhere(self, topic: str) -> AuditPlan | None:
        """The first plan by name that means a topic in any cluster."""
        self._refresh_plans()
        if topic not in self._meant:
            if len(self._meant) >= MOST_KNOWN:
                self._meant.clear()
            self._meant[topic] = next((plan for plan in self._plans.values() if plan.means(topic)), None)
        return self._meant[topic]

    def tier(self, cluster: str) -> str | None:
        """The tier that a cluster is; None: it is not configured here."""
        site = None if self.layout is None else self.layout.sites.get(cluster)
        return None if site is None else site.tier

    def _refresh_plans(self) -> None:
        puts = self._control.view.audits
        stamp = tuple(sorted((key, put.etag) for key, put in puts.items()))
        if stamp == self._stamp:
            return
        self._stamp, self._known, self._read, self._meant = stamp, {}, {}, {}
        found = [plan for key in sorted(puts) if (plan := self._parsed.get(key)) is not None]
        self._plans = {plan.name: plan for plan in found}
        for plan in found if self.layout is not None else ():
            assert self.layout is not None, "looked at just now"
            for cluster in plan.clusters(self.layout):
                self._read.setdefault(cluster, []).append(plan)

    # -- the leader's rounds -----------------------------------------------------------------------

    async def refresh(self, held: Iterable[str] = ()) -> None:
        """Reads what is old; waits `REFRESH_TIMEOUT_S` at most. `held`: as for `jobs`."""
        self._refresh_plans()
        if self._control.view.term != self._term:  # what was known when this worker led before may be old
            self._term = self._control.view.term
            self._topics.clear()
        for gone in self._topics.keys() - self._read.keys():
            del self._topics[gone]
        self._looking = {name: task for name, task in self._looking.items() if not task.done()}
        expected: defaultdict[str, set[str]] = defaultdict(set)
        for _, cluster, topic in self._meant_of(held):
            expected[cluster].add(topic)
        now_s, awaited = time.monotonic(), set()
        for cluster in self._read:
            topics = self._topics[cluster]
            pause_s = max(REFRESH_INTERVAL_S, BUSY_SHARE * topics.took_s)
            if cluster not in self._looking and now_s - topics.listed_at_s >= pause_s:
                task = asyncio.get_running_loop().create_task(
                    self._read_cluster(cluster, topics, expected[cluster])
                )
                self._looking[cluster] = task
                if cluster not in self._late:
                    awaited.add(task)
        if awaited:
            _, late = await asyncio.wait(awaited, timeout=REFRESH_TIMEOUT_S)
            self._late |= {name for name, task in self._looking.items() if task in late}

    def _meant_of(self, held: Iterable[str]) -> Iterator[tuple[str, str, str]]:
        """(prefix, cluster, topic) of jobs whose plan still counts their topic."""
        for prefix in held:
            if prefix.startswith(PREFIX):
                _, name, topic = prefix.split(":")
                plan, cluster = of_job_name(name)
                governing = self.plan_of(cluster, topic)
                if governing is not None and governing.name == plan:
                    yield prefix, cluster, topic

    def found(self, held: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, TopicPresence]]:
        """How things stand with topics that have, or had, jobs and are still counted; `held` as in `jobs`."""
        assigned = self._control.view.assignments
        for prefix, cluster, topic in self._meant_of(held):
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
            if cluster not in self._away:
                self._away.add(cluster)
                names = ", ".join(plan.name for plan in self._read.get(cluster, ()))
                self._report_incident(
                    "audit-trouble", names, f"cluster {cluster} cannot be read: {error}",
                    "what is counted there goes on with what is known; new topics wait until it answers",
                )  # fmt: skip
            await asyncio.sleep(REFRESH_INTERVAL_S)
        except Exception:
            log.exception("the topics of a cluster could not be read and are read again", cluster=cluster)
            await asyncio.sleep(REFRESH_INTERVAL_S)
        else:
            self._away.discard(cluster)
            if time.monotonic() - began_s < REFRESH_TIMEOUT_S:
                self._late.discard(cluster)

    def jobs(self, held: Mapping[str, Iterable[str]]) -> Iterator[str]:
        """Every job of every plan. `held`: those in the control log, by all of their name but the
        partition."""
        self._refresh_plans()
        for prefix, jobs in held.items():
            if prefix.startswith(PREFIX) and self._stays(prefix):
                assigned = self._control.view.assignments
                yield from (job for job in jobs if job not in assigned or not is_gone(assigned[job]))
        for cluster, topics in self._topics.items():
            for topic, count in topics.sizes.items():
                plan = self.plan_of(cluster, topic)
                if plan is not None:
                    prefix = f"{PREFIX}{job_name(plan.name, cluster)}:{topic}:"
                    yield from (f"{prefix}{partition}" for partition in range(count))

    def _stays(self, prefix: str) -> bool:
        """Rule 1, of jobs that are assigned."""
        _, name, topic = prefix.split(":")
        plan, cluster = of_job_name(name)
        if plan not in self._plans:
            return f"{KEYS}{plan}" in self._control.view.audits
        governing, topics = self.plan_of(cluster, topic), self._topics.get(cluster)
        is_known = topics is not None and topics.listed and (topic in topics.sizes or topics.is_gone(topic))
        return not is_known and governing is not None and governing.name == plan

    def _unread(self, key: str, why: str) -> None:
        self._report_incident("audit-trouble", key.removeprefix(KEYS), why, "deploy it again")


def _parsed(key: str, definition: Mapping[str, Any]) -> AuditPlan:
    """Raises ValueError: it is another one's, or cannot be understood."""
    found = AuditPlan.from_wire(definition)
    if found.key != key:
        raise ValueError(f"it is of {found.key!r}, and stands under {key!r}")
    found.means("")  # whatever is wrong with its entries is said now
    return found
