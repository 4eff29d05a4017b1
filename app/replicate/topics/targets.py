"""Creates and configures destination topics as `app.replicate.model.destination_topic` plans them.

A topic is fit, and copying to it may begin, once nothing is left to do and nothing blocks it. If a cluster
refuses a change, its words are reported and the topic is planned without the change, because it may be fit
without it. The change is tried again every `TOPIC_RETRY_INTERVAL_S`.

A topic is the routes' own if it had no record when the leader first saw it, which is before any route writes
to it. The control log keeps the topic's id (`app.controllog.events.DestinationTopic`), so neither another
leader nor another route looks again. A recreated topic has another id. Topics of others keep the
settings that decide which of their records stay (`app.replicate.model.destination_topic`, rule 2).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

import structlog
from aiokafka.errors import KafkaError

from app.controllog.events import DestinationTopic
from app.controllog.leader_reports import until_deposed
from app.controllog.log import ControlLog
from app.dispatch.topics.settings import safe_replication
from app.kafka.client.cluster import EARLIEST, LATEST, ClusterClient, ClusterUnreachable
from app.kafka.client.permissions import allow, grant, lacks
from app.kafka.client.topic_configs import alter, create, expand
from app.kafka.client.topics import INVALID_NAME, TopicRefused, TopicSpec
from app.kafka.data_clusters import DataClusters
from app.kernel.clock import now_ms
from app.kernel.incidents import IsOver, ReportIncident
from app.replicate.definition import RouteDefinition
from app.replicate.model.destination_topic import (
    KEPT,
    STRICTEST,
    SYNCED,
    SettingChange,
    TopicFinding,
    TopicPlan,
    TopicState,
    TopicSync,
    plan_topic,
)
from app.replicate.model.route import RENAME
from app.worker.jobs.topic_inventory import AUTHORISATION, ClusterTopics

log = structlog.get_logger(__name__)

TOPIC_RETRY_INTERVAL_S = 60.0
CLUSTER_RETRY_INTERVAL_S = 2.0
SHOWN_ROUTES = 20  # of an activity
TOPICS_PER_TURN = 100  # planned before other tasks run; each takes a tenth of a millisecond

TargetTopic = tuple[str, str]  # cluster and topic
RoutesWithNames = Mapping[str, tuple[RouteDefinition, Mapping[str, str]]]  # with the copies' names, by topic

REFUSED = {
    "create": "could not be created",
    "partitions": "could not be given more partitions",
    "configuration": "could not be configured",
}
NO_REMEDY = "no action is needed, unless this matters"
RETRIES = "the worker retries every minute"
PERMISSIONS = {"create": "Create", "partitions": "Alter", "configuration": "AlterConfigs"}


@dataclass(slots=True)
class WantedTopic:
    """A destination topic: everything that is copied to it, and the changes that are allowed."""

    sources: set[TargetTopic] = field(default_factory=set)
    routes: set[str] = field(default_factory=set)
    sync: TopicSync | None = None
    replication: int | None = None

    def add(self, definition: RouteDefinition, topic: str) -> None:
        self.sources.add((definition.spec.source, topic))
        self.routes.add(definition.key)
        sync, earlier = definition.topic_sync(), self.sync
        if earlier is not None:
            sync = TopicSync(
                sync.create and earlier.create,
                sync.partitions and earlier.partitions,
                sync.configuration and earlier.configuration,
                frozenset(sync.leave) | frozenset(earlier.leave),
                min(sync.smaller, earlier.smaller, key=STRICTEST.index),
                sync.adopt and earlier.adopt,
            )
        self.sync = sync
        self.replication = max(definition.spec.sync.replication or 0, self.replication or 0) or None


@dataclass(frozen=True, slots=True)
class _Look:
    """The input of a plan."""

    sources: Mapping[str, TopicState]
    present: TopicState | None
    sync: TopicSync
    is_own: bool


@dataclass(frozen=True, slots=True)
class _Refused:
    """A refused change: when, and why."""

    at_s: float
    why: TopicFinding


def wanted_topics(
    routes: Iterable[tuple[RouteDefinition, Mapping[str, str]]],
) -> dict[TargetTopic, WantedTopic]:
    """Every topic that routes copy to. Each route comes with its copies' names, by topic."""
    wanted: defaultdict[TargetTopic, WantedTopic] = defaultdict(WantedTopic)
    for definition, copies in routes:
        for topic, copy in copies.items():
            wanted[definition.spec.target, copy].add(definition, topic)
    return dict(wanted)


def topic_to_create(topic: str, plan: TopicPlan, wanted: WantedTopic | None, brokers: int) -> TopicSpec:
    """The missing topic as the plan wants it, with a safe replication if there are enough brokers."""
    assert plan.create is not None, "the topic is there"
    partitions, config = plan.create
    replication, safe = safe_replication(brokers)
    replication = (wanted.replication if wanted else None) or replication
    leave = () if wanted is None or wanted.sync is None else wanted.sync.leave
    safe = {name: value for name, value in safe.items() if replication > 2 and name not in leave}
    return TopicSpec(topic, partitions, replication, {**safe, **config})


async def own_topics(
    client: ClusterClient, sizes: Mapping[str, int], known: Callable[[str], str | None]
) -> dict[str, tuple[str, bool]]:
    """Topic -> its id, and whether it is the routes' own; without topics of which that is not known now.

    `sizes`: the partitions of each topic. `known`: the id of a topic that was found to be their own.

    Raises:
        ClusterUnreachable, KafkaError: The cluster cannot be read now.
    """
    ids = await client.topic_ids(sizes)
    found = {topic: (id_, True) for topic, id_ in ids.items() if known(topic) == id_}
    asked = [(topic, at) for topic in ids.keys() - found.keys() for at in range(sizes[topic])]
    starts, ends = await client.offsets(asked, EARLIEST), await client.offsets(asked, LATEST)
    for topic in ids.keys() - found.keys():
        parts = [(topic, at) for at in range(sizes[topic])]
        known_parts = [at for at in parts if at in starts and at in ends]
        is_empty = all(starts[at] == ends[at] for at in known_parts)
        if not is_empty or known_parts == parts:
            found[topic] = ids[topic], is_empty
    return found


class DestinationTopics:
    """The destination topics of all routes.

    `topics`: the inventories of the clusters. `cluster_ids`: the ids of the clusters that were read.
    """

    def __init__(
        self,
        topics: Mapping[str, ClusterTopics],
        cluster_ids: Mapping[str, str],
        clusters: DataClusters,
        control: ControlLog,
        report_incident: ReportIncident,
    ) -> None:
        self._topics = topics
        self._cluster_ids = cluster_ids
        self._control = control
        self._is_own: dict[TargetTopic, bool] = {}
        self._to_examine: defaultdict[str, set[str]] = defaultdict(set)
        self._clusters = clusters
        self._report_incident = report_incident
        self._wanted: dict[TargetTopic, WantedTopic] = {}
        self._of: dict[str, set[str]] = {}
        self._plans: dict[TargetTopic, tuple[_Look, TopicPlan]] = {}
        self._to_do: defaultdict[str, dict[str, TopicPlan]] = defaultdict(dict)
        self._refused: dict[tuple[TargetTopic, str], _Refused] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._done_s: dict[str, float] = {}
        self._fit: dict[TargetTopic, int] = {}
        self._stamp: object = None
        self._planning: asyncio.Task[None] | None = None
        self._reported: set[tuple[str, str]] = set()

    def forget(self) -> None:
        self._plans, self._fit, self._is_own, self._stamp = {}, {}, {}, None
        self._reported.clear()

    def of(self, cluster: str) -> Set[str]:
        return self._of.get(cluster, frozenset())

    def fit(self, target: TargetTopic) -> int:
        """The number of its partitions to which copying may begin."""
        return self._fit.get(target, 0)

    def plan(self, target: TargetTopic) -> TopicPlan | None:
        found = self._plans.get(target)
        return None if found is None else found[1]

    def state_of(self, target: TargetTopic) -> tuple[str, str]:
        """The topic's state (copied, preparing or blocked), and the reason for people."""
        plan = self.plan(target)
        if self._denied(target):
            return "blocked", lacks(self._clusters.specs[target[0]], "topic", target[1], "Describe")
        if plan is None:
            return "preparing", "not planned yet"
        if plan.blocked:
            return "blocked", "; ".join(map(str, plan.blocked))
        if plan.create is not None:
            return "preparing", f"to be created with {plan.create[0]} partitions"
        if plan.expand_to is not None:
            return "preparing", f"to be given {plan.expand_to} partitions"
        if plan.alter:
            return "preparing", f"to be configured: {', '.join(sorted(plan.alter))}"
        return "copied", "; ".join(map(str, plan.notes))

    def _denied(self, target: TargetTopic) -> bool:
        topics = self._topics.get(target[0])
        return topics is not None and target[1] in topics.denied

    def reconcile(self, routes: RoutesWithNames, unknown: Collection[str]) -> asyncio.Task[None] | None:
        """Plans changed topics, or carries plans out. `unknown`: clusters with copies of a source not known
        yet."""
        if self._planning is not None and not self._planning.done():
            return self._planning
        now_s = time.monotonic()
        resting = {
            key for key, refused in self._refused.items() if now_s - refused.at_s < TOPIC_RETRY_INTERVAL_S
        }
        stamp = (
            [(name, definition, copies) for name, (definition, copies) in routes.items()],
            {name: topics.version for name, topics in self._topics.items()},
            set(unknown),
            resting,
        )
        if stamp != self._stamp:
            self._stamp = stamp
            self._planning = asyncio.get_running_loop().create_task(self._plan_all(routes, unknown, resting))
            return self._planning
        self._start_round()
        return None

    def _gather(self, routes: RoutesWithNames) -> None:
        wanted = self._wanted = wanted_topics(routes.values())
        self._of = {}
        for cluster, topic in wanted:
            self._of.setdefault(cluster, set()).add(topic)
        self._plans = {target: plan for target, plan in self._plans.items() if target in wanted}
        self._fit = {target: count for target, count in self._fit.items() if target in wanted}

    async def _plan_all(
        self, routes: RoutesWithNames, unknown: Collection[str], resting: Collection[tuple[TargetTopic, str]]
    ) -> None:
        self._gather(routes)
        self._to_examine.clear()
        for number, (target, wanted) in enumerate(self._wanted.items()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            look = self._look_at(target, wanted, self._refused_of(target), target[0] in unknown)
            if look is None:
                continue  # not described or not examined yet, so the earlier plan stays
            before = self._plans.get(target)
            if before is not None and before[0] == look:
                continue
            plan = plan_topic(look.sources, look.present, look.sync, is_own=look.is_own)
            self._plans[target] = look, plan
            is_fit = look.present is not None and not plan.changes and not plan.blocked
            self._fit[target] = look.present.partitions if is_fit and look.present is not None else 0
        self._to_do.clear()
        for number, (target, (look, plan)) in enumerate(list(self._plans.items())):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if retried := {action for action in self._refused_of(target) if (target, action) not in resting}:
                plan = self._plan_retry(target, look, retried)  # noqa: PLW2901 - `_plans` keeps the reported plan
            if plan.changes:
                self._to_do[target[0]][target[1]] = plan
        self._report_all()
        self._start_round()

    def _refused_of(self, target: TargetTopic) -> dict[str, _Refused]:
        return {
            action: found for action in REFUSED if (found := self._refused.get((target, action))) is not None
        }

    def _plan_retry(self, target: TargetTopic, look: _Look, retried: Collection[str]) -> TopicPlan:
        """The plan with the refused changes; forgets refusals of changes that are no longer needed."""
        sync, wanted = look.sync, self._wanted[target].sync or look.sync
        plan = plan_topic(
            look.sources,
            look.present,
            replace(
                sync,
                create=sync.create or (wanted.create and "create" in retried),
                partitions=sync.partitions or (wanted.partitions and "partitions" in retried),
                configuration=sync.configuration or (wanted.configuration and "configuration" in retried),
            ),
            is_own=look.is_own,
        )
        to_do = {"create": plan.create, "partitions": plan.expand_to, "configuration": plan.alter}
        for action in retried:
            if not to_do[action]:
                del self._refused[target, action]
        return plan

    def _look_at(
        self, target: TargetTopic, wanted: WantedTopic, refused: Mapping[str, _Refused], unknown: bool
    ) -> _Look | None:
        cluster, topic = target
        topics = self._topics.get(cluster)
        if topics is None or not topics.listed or not topics.knows(topic) or wanted.sync is None:
            return None
        if topic in topics.denied:
            return None  # whether it exists is not known; copying to it continues
        sources: dict[str, TopicState] = {}
        for source, name in sorted(wanted.sources):
            state = self._topics[source].state(name)
            if state is None:
                return None
            sources[f"{name} in {source}"] = state
            unknown = unknown or name in self._topics[source].troubles
        present = topics.state(topic)
        if present is None:
            if topic in topics.sizes:
                return None
            self._is_own.pop(target, None)
        elif target not in self._is_own:
            self._to_examine[cluster].add(topic)
            return None
        sync = replace(
            wanted.sync,
            leave=frozenset(wanted.sync.leave) | (SYNCED if unknown else frozenset()),
            create=wanted.sync.create and "create" not in refused,
            partitions=wanted.sync.partitions and "partitions" not in refused,
            configuration=wanted.sync.configuration
            and "configuration" not in refused
            and topic not in topics.troubles,
            refused={action: found.why for action, found in refused.items()},
        )
        return _Look(sources, present, sync, self._is_own.get(target, True))

    # -- carrying out plans ------------------------------------------------------------------------

    def _start_round(self) -> None:
        for cluster in self._to_do.keys() | self._to_examine.keys():
            plans = self._to_do.get(cluster, {})
            running = self._running.get(cluster)
            # Not before the cluster was read since the last changes, which would be made again.
            is_read = self._topics[cluster].read_at_s > self._done_s.get(cluster, float("-inf"))
            if is_read and (running is None or running.done()):
                self._running[cluster] = asyncio.get_running_loop().create_task(
                    self._carry_out(cluster, dict(plans), set(self._to_examine.get(cluster, ())))
                )

    async def _carry_out(
        self, cluster: str, plans: Mapping[str, TopicPlan], examined: Collection[str]
    ) -> None:
        try:
            client = (await self._clusters.get(cluster)).client
            risky = {topic for topic, plan in plans.items() if KEPT & plan.alter.keys()}
            await self._examine(client, {*examined, *risky})
            present = {topic: look.present for (at, topic), (look, _) in self._plans.items() if at == cluster}
            plans = {  # without those of topics that were recreated, or are no longer wanted, by now
                topic: plan
                for topic, plan in plans.items()
                if topic in present and (topic not in risky or self._may_alter((cluster, topic)))
            }
            async for action, tried, refused in self._steps(client, plans):
                for topic in tried:
                    self._refused.pop(((cluster, topic), action), None)
                    if topic in refused:
                        self._refused[(cluster, topic), action] = self._refusal(
                            client, topic, action, refused[topic]
                        )
                made = {topic: plan for topic, plan in tried.items() if topic not in refused}
                await self._record(cluster, made, present)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
            log.warning("destination topics could not be changed yet", cluster=cluster, error=repr(error))
            await asyncio.sleep(CLUSTER_RETRY_INTERVAL_S)
        except Exception:
            log.exception("destination topics could not be changed; the worker retries", cluster=cluster)
            await asyncio.sleep(CLUSTER_RETRY_INTERVAL_S)
        self._topics[cluster].forget(plans)
        self._done_s[cluster] = time.monotonic()
        self._stamp = None  # plan again, so that refusals are reported

    async def _examine(self, client: ClusterClient, topics: Collection[str]) -> None:
        """Finds out whether topics are the routes' own, and records in the control log those that are."""
        cluster, view = client.name, self._control.view
        at, sizes = self._cluster_ids.get(cluster) or cluster, self._topics[cluster].sizes
        wanted = {topic: sizes[topic] for topic in topics if topic in sizes}
        found = (
            await own_topics(client, wanted, lambda topic: view.own_topics.get((at, topic))) if wanted else {}
        )
        new = [
            self._event(cluster, topic, topic_id, is_own=True)
            for topic, (topic_id, is_own) in found.items()
            if is_own and view.own_topics.get((at, topic)) != topic_id
        ]
        if new:
            await self._control.append(*new)
        for topic in wanted:
            if topic in found:
                self._is_own[cluster, topic] = found[topic][1]
            else:
                self._is_own.pop((cluster, topic), None)

    def _may_alter(self, target: TargetTopic) -> bool:
        wanted = self._wanted.get(target)
        adopts = wanted is not None and wanted.sync is not None and wanted.sync.adopt
        return adopts or self._is_own.get(target, False)

    def _event(
        self,
        cluster: str,
        topic: str,
        topic_id: str,
        changes: Iterable[SettingChange] = (),
        *,
        is_own: bool,
    ) -> DestinationTopic:
        wanted = self._wanted.get((cluster, topic))
        routes = [] if wanted is None else sorted(wanted.routes)[:SHOWN_ROUTES]
        return DestinationTopic(
            at_ms=now_ms(), cluster=cluster, cluster_id=self._cluster_ids.get(cluster, ""), topic=topic,
            topic_id=topic_id, routes=routes, is_own=is_own,
            changes=[(change.setting, change.old, change.new) for change in changes],
        )  # fmt: skip

    async def _record(
        self, cluster: str, made: Mapping[str, TopicPlan], present: Mapping[str, TopicState | None]
    ) -> None:
        """Logs changes that were made, and writes them to the control log, for people."""
        events, at = [], self._cluster_ids.get(cluster) or cluster
        for topic, plan in made.items():
            changes = plan.setting_changes(present.get(topic))
            known = None if plan.create is not None else self._control.view.own_topics.get((at, topic))
            event = self._event(cluster, topic, known or "", changes, is_own=known is not None)
            log.info(
                "destination topic created" if plan.create is not None else "destination topic changed",
                cluster=cluster, topic=topic, routes=event.routes, changes=[*map(str, changes)],
            )  # fmt: skip
            events.append(event)
        if events:
            await self._control.append(*events)

    def _refusal(self, client: ClusterClient, topic: str, action: str, error: KafkaError) -> _Refused:
        remedy = f"do it by hand ({RETRIES})"
        if isinstance(error, AUTHORISATION):
            remedy = f"{allow(client.spec, 'topic', topic, PERMISSIONS[action])}, or {remedy}"
        elif isinstance(error, TopicRefused):
            remedy = f"{RENAME if error.code == INVALID_NAME else error.remedy} ({RETRIES})"
        return _Refused(time.monotonic(), TopicFinding(f"{REFUSED[action]}: {error}", remedy))

    async def _steps(
        self, client: ClusterClient, plans: Mapping[str, TopicPlan]
    ) -> AsyncIterator[tuple[str, Mapping[str, TopicPlan], Mapping[str, KafkaError]]]:
        """Yields each action, its part of the plans, and the topics that refused it."""
        cluster, topics = client.name, self._topics[client.name]
        specs: list[TopicSpec] = []
        if new := {topic: plan.create for topic, plan in plans.items() if plan.create is not None}:
            brokers = await client.broker_count()
            specs = [
                topic_to_create(topic, plans[topic], self._wanted.get((cluster, topic)), brokers)
                for topic in new
            ]
            created, refused = await create(client, specs)
            tried = {spec.name: TopicPlan((spec.partitions, dict(spec.config))) for spec in specs}
            yield "create", {topic: tried[topic] for topic in created | refused.keys()}, refused
            topics.grown({spec.name: spec.partitions for spec in specs if spec.name in created})
        more = {topic: plan.expand_to for topic, plan in plans.items() if plan.expand_to is not None}
        refused = await expand(client, more)
        yield "partitions", {topic: TopicPlan(expand_to=count) for topic, count in more.items()}, refused
        topics.grown({topic: count for topic, count in more.items() if topic not in refused})
        settings = {topic: plan.alter for topic, plan in plans.items() if plan.alter}
        altered = {topic: TopicPlan(alter=changes) for topic, changes in settings.items()}
        yield "configuration", altered, await _alter(client, settings)

    def _report_all(self) -> None:
        reports: dict[tuple[str, str], tuple[str, str]] = {}  # (route, message) -> (kind, remedy)
        self._refused = {key: refused for key, refused in self._refused.items() if key[0] in self._wanted}
        for ((cluster, topic), action), refused in self._refused.items():
            if action == "configuration":  # the other refusals block the topic, which is reported below
                text = f"topic {topic} in {cluster} {refused.why.message}"
                reports |= {
                    (name, text): ("route-topic", refused.why.remedy)
                    for name in self._wanted[cluster, topic].routes
                }
        for target, (_, plan) in self._plans.items():
            for name in self._wanted[target].routes:
                where = f"topic {target[1]} in {target[0]}"
                for message, remedy in plan.blocked:
                    reports[name, f"nothing new is copied to {where}: {message}"] = ("route-blocked", remedy)
                for message, remedy in plan.notes:
                    reports[name, f"{where}: {message}"] = ("route-topic", remedy or NO_REMEDY)
        for (cluster, topic), wanted in self._wanted.items():
            if self._denied((cluster, topic)):
                spec = self._clusters.specs[cluster]
                remedy = grant(spec, "topic", topic, "Read", "Write", "Describe")
                for name in wanted.routes:
                    message = f"nothing new is copied to topic {topic} in {cluster}"
                    reports[name, f"{message}: {lacks(spec, 'topic', topic, 'Describe')}"] = (
                        "route-blocked", remedy,
                    )  # fmt: skip
            for source, source_topic in sorted(wanted.sources):
                if trouble := self._topics[source].troubles.get(source_topic):
                    remedy = grant(self._clusters.specs[source], "topic", source_topic, "DescribeConfigs")
                    text = f"the copy does not follow settings of topic {source_topic} in {source}: {trouble}"
                    reports |= {(name, text): ("route-topic", remedy) for name in wanted.routes}
        for cluster, topics in self._topics.items():
            for topic, why in topics.troubles.items():
                known = self._wanted.get((cluster, topic))
                for name in known.routes if known else ():
                    remedy = grant(self._clusters.specs[cluster], "topic", topic, "DescribeConfigs")
                    reports[name, f"topic {topic} in {cluster} keeps its settings: {why}"] = (
                        "route-topic", remedy,
                    )  # fmt: skip
        for (name, message), (kind, remedy) in reports.items():
            if (name, message) not in self._reported:
                self._report_incident(kind, name, message, remedy, self._is_over(name, message))
        self._reported = set(reports)

    def _is_over(self, name: str, message: str) -> IsOver:
        return until_deposed(self._control, lambda: (name, message) not in self._reported)


async def _alter(
    client: ClusterClient, settings: Mapping[str, Mapping[str, str | None]]
) -> dict[str, KafkaError]:
    try:
        return await alter(client, settings)
    except NotImplementedError:  # brokers before Kafka 2.3
        return {topic: KafkaError("the cluster's brokers are too old for it") for topic in settings}
