"""Finds both sides of a drill-down: the logs that may hold a window's records, and how they were copied.

Rules
1. A side has all clusters of the tier in which a plan counts the topic, as in the audit's comparison.
2. The offset map is read first, then upstream's logs, then downstream's. So the copies that the map knows lie
   within the offsets that are read.
3. A copy's topic may have another name; the route says which.
4. Records of clusters that no plan counts are left out. A copy is skipped if it is known to come from there.
   Any other foreign copy may come from there, so it is unclear.
5. A tier that clients or consumer groups report has no log. It is a side without parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from app.audit.definition import AuditPlan
from app.audit.drilldown.copy_origins import ClusterPartition, CopyOrigins
from app.audit.drilldown.findings import LossExclusions
from app.audit.drilldown.prints import EventTimeWindow, PrintReader
from app.audit.drilldown.scan import ScanRange
from app.audit.folds.tier_pairs import OF_CLUSTERS
from app.audit.pump.counting_spec import how_of, open_times
from app.failover.topology import AGGREGATE, Layout
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_configs import TopicSettings, describe
from app.kafka.fetch.offsets_at_time import LogSpan, spans
from app.kernel.clock import iso
from app.kernel.fencing import LogId
from app.kernel.json_types import JsonMapping
from app.offsets.model.offset_map import OffsetMapLine
from app.offsets.model.translation import CopiedLine
from app.offsets.store.tables import NotRead
from app.payload.event_time.instant import UnusableField
from app.payload.event_time.source import EventTime
from app.payload.schema_files import DescriptorError
from app.replicate.definition import RouteDefinition
from switchyard.audit.model.fingerprint import FingerprintSource

if TYPE_CHECKING:
    from app.worker.runtime.service import Runtime

TIMESTAMP_TYPE, LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"
CLEANUP_POLICY, COMPACT = "cleanup.policy", "compact"
CUT = "the log begins at {start}; retention may have deleted records of the window"


class NotReadable(ValueError):
    """No log answers the question. The text has the reason and the remedy."""


class Question(NamedTuple):
    """Asks which records of a window did not come from one tier to another. `group`: the consumer group, if
    several have finished the topic; else ""."""

    topic: str
    from_tier: str
    to_tier: str
    start_ms: int
    group: str = ""

    def __str__(self) -> str:
        window = f"{self.topic}/{self.from_tier}/{self.to_tier}/{self.start_ms}"
        return f"{window}/{self.group}" if self.group else window


class CopyRoute(NamedTuple):
    """A route from one cluster to another. Without a `definition` there is none: a missing record would be
    copied into the topic of the same name."""

    source: str
    target: str
    topic: str
    target_topic: str
    definition: RouteDefinition | None = None


class AuditedTopic(NamedTuple):
    """A topic in a cluster, as it is now. `partitions` is 0 if it does not exist."""

    cluster: str
    name: str
    client: ClusterClient
    cluster_id: str
    topic_id: str
    partitions: int
    plan: AuditPlan
    is_timed: bool = True
    is_compacted: bool = False


class Sides(NamedTuple):
    """The logs to read, and the facts to judge the findings by.

    Attributes:
        upstream, downstream: Topics; empty for a tier without a log.
        cut: Partition of either side -> why its log may have lost records of the window.
        notes: Texts for the reader of the answer.
    """

    window: EventTimeWindow
    parts: list[ScanRange]
    upstream: list[AuditedTopic]
    downstream: list[AuditedTopic]
    copiers: list[CopyRoute]
    bounds: LossExclusions
    notes: list[str]
    cut: dict[ClusterPartition, str]


def clusters_of(
    layout: Layout, plan_of: Callable[[str, str], AuditPlan | None], topic: str, tier: str
) -> dict[str, AuditPlan]:
    """The clusters of a tier in which a plan counts the topic (rule 1); none for a tier without a log. Raises
    NotReadable: no plan counts it there."""
    if tier not in OF_CLUSTERS:
        return {}
    sites = sorted(name for name, site in layout.sites.items() if site.tier == tier)
    found = {name: plan for name in sites if (plan := plan_of(name, topic)) is not None}
    if not found:
        raise NotReadable(f"no audit plan counts topic {topic[:100]!r} at tier {tier}")
    return found


class SideFinder:
    """Finds the sides. `lateness_ms`: how late records of the window may have been written."""

    def __init__(self, runtime: Runtime, question: Question, lateness_ms: int = 0) -> None:
        self._runtime = runtime
        self._question = question
        self._lateness_ms = lateness_ms
        self._notes: list[str] = []
        self._mapped_names: dict[str, str] = {}  # names of clusters here, by their ids

    def plans(self) -> tuple[dict[str, AuditPlan], dict[str, AuditPlan]]:
        """The clusters of both tiers, with the plans that count them. Raises NotReadable."""
        audits, (topic, before, after, start_ms, _) = self._runtime.catalog.audits, self._question
        if audits.layout is None:
            raise NotReadable("this worker's configuration has no regions; ask another worker")
        if before == after:
            raise NotReadable(f"from_tier and to_tier are both {before!r}; name two tiers")
        sides = tuple(clusters_of(audits.layout, audits.plan_of, topic, tier) for tier in (before, after))
        if not any(sides):
            raise NotReadable(
                f"tiers {before} and {after} have no log, only reports; name a tier of clusters"
            )
        plan = next(plan for side in sides for plan in side.values())
        if not all(sides) and plan.spec.id is None:
            raise NotReadable(
                f"tier {after if sides[0] else before} has no log, only reports, and plan {plan.name} names "
                "no id, so the records that differ cannot be named; audit loss compares counts"
            )
        widths = {plan.width_ms for side in sides for plan in side.values()}
        if len(widths) > 1 or start_ms % min(widths):
            within_ms = start_ms - start_ms % min(widths)
            raise NotReadable(
                f"no window of {topic[:100]} begins at {start_ms}: windows are {min(widths)} ms long and "
                f"begin at multiples of that; the window of this time begins {iso(within_ms)} ({within_ms})"
            )
        return sides[0], sides[1]

    async def find(self) -> Sides:
        """Reads the offset map and the logs' bounds. Raises NotReadable, ClusterUnreachable, KafkaError."""
        before, after = self.plans()
        plans = {plan.name: plan for plan in (*before.values(), *after.values())}
        times = {name: await self._times(plan) for name, plan in plans.items()}
        plan = next(iter(plans.values()))
        start_ms = self._question.start_ms
        window = EventTimeWindow(start_ms, start_ms + plan.width_ms)
        copiers = self._copiers(before, after)
        upstream = [await self._topic(name, self._question.topic, plan) for name, plan in before.items()]
        downstream = [
            await self._topic(name, topic, plan)
            for name, plan in after.items()
            for topic in sorted({c.target_topic for c in copiers if c.target == name})
        ]
        names = {topic.cluster_id: topic.cluster for topic in upstream if topic.cluster_id}
        lines, unknown = await self._lines(downstream)
        timed = all(topic.is_timed for topic in (*upstream, *downstream))
        keeps = {c.source: c.definition.keeps_header() for c in copiers if c.definition is not None}
        uncounted = self._uncounted(before)
        parts: list[ScanRange] = []
        cut: dict[ClusterPartition, str] = {}
        ends: dict[ClusterPartition, int] = {}
        for topic in (*upstream, *downstream):
            is_up = topic in upstream
            for partition, span in (await self._spans(topic, window)).items():
                place = ClusterPartition(topic.cluster, topic.name, partition)
                if span.is_cut:
                    cut[place] = CUT.format(start=span.log_start)
                origins, end = None, span.end
                if is_up:
                    ends[place] = span.end
                else:
                    of_log = [(self._source_place(copying, names), copying.line) for copying in lines[topic]]
                    origins = CopyOrigins(of_log, partition, LogId(topic.cluster_id, topic.topic_id))
                    end = max(end, min(_copied_by(of_log, partition, ends), span.log_end))
                source = FingerprintSource(topic.cluster_id, topic.topic_id, partition)
                reader = PrintReader(
                    place, how_of(topic.plan, source, times[topic.plan.name]), window,
                    keeps=keeps.get(topic.cluster) if is_up else None, timed=timed, origins=origins,
                    uncounted=uncounted, cluster_names=names,
                )  # fmt: skip
                parts.append(ScanRange(topic.client, reader, span.start, end, span.log_end, is_up))
        reached = {} if unknown else _reached(copiers, upstream, lines, names)
        unread = {place.partition: unknown for place in ends if unknown and _is_copied(copiers)}
        unread |= {
            p.partition: why for p, why in cut.items() if any(p.cluster == t.cluster for t in downstream)
        }
        missing = [topic for topic in downstream if not topic.partitions]
        self._notes += [f"topic {topic.name} does not exist in {topic.cluster}" for topic in missing]
        self._notes += [
            f"topic {topic.name} in {topic.cluster} is compacted: later records of the same keys may have "
            "replaced the missing ones"
            for topic in downstream
            if topic.is_compacted
        ]
        why_uncounted = ""
        if uncounted:
            why_uncounted = f"it may come from {', '.join(sorted(uncounted))}, where no plan counts the topic"
        ups = {place: why for place, why in cut.items() if place in ends}
        bounds = LossExclusions(reached, unread, ups, why_uncounted)
        return Sides(window, parts, upstream, downstream, copiers, bounds, self._notes, cut)

    async def _times(self, plan: AuditPlan) -> EventTime | None:
        try:
            return await open_times(plan, self._runtime.schemas)
        except (UnusableField, DescriptorError) as error:
            raise NotReadable(
                f"this worker cannot read the event time of plan {plan.name}: {error}; change the plan"
            ) from error

    # -- topics, logs and lines ---------------------------------------------------------------------

    def _copiers(self, before: JsonMapping, after: JsonMapping) -> list[CopyRoute]:
        routes, topic = self._runtime.catalog.routes, self._question.topic
        found: list[CopyRoute] = []
        for name in sorted(self._runtime.control.view.routes):
            route, definition = routes.route(name), routes.definition(name)
            if route is None or definition is None or route.source not in before or route.target not in after:
                continue
            copy = route.destination(topic)
            if copy is not None:
                found.append(CopyRoute(route.source, route.target, topic, copy, definition))
        covered = {(copier.source, copier.target) for copier in found}
        pairs = ((source, target) for source in before for target in after)
        return found + [CopyRoute(*pair, topic, topic) for pair in pairs if pair not in covered]

    async def _topic(self, cluster: str, name: str, plan: AuditPlan) -> AuditedTopic:
        try:
            client = (await self._runtime.clusters.get(cluster)).client
        except KeyError as error:
            raise NotReadable(
                f"cluster {cluster} is not in this worker's configuration; add it to switchyard.yaml"
            ) from error
        cluster_id, ids = await client.cluster_id(), await client.topic_ids([name])
        count = await client.partitions(name) or 0
        config: Mapping[str, str] = {}
        if count:
            found = (await describe(client, [name], [TIMESTAMP_TYPE, CLEANUP_POLICY])).get(name)
            config = found.config if isinstance(found, TopicSettings) else {}
        return AuditedTopic(
            cluster, name, client, cluster_id, ids.get(name, ""), count, plan,
            config.get(TIMESTAMP_TYPE) != LOG_APPEND_TIME, COMPACT in config.get(CLEANUP_POLICY, ""),
        )  # fmt: skip

    async def _spans(self, topic: AuditedTopic, window: EventTimeWindow) -> dict[int, LogSpan]:
        if not topic.partitions:
            return {}
        bounds, own_time = topic.plan.bounds, topic.plan.spec.timestamp.source == "record"
        margin_ms = max(bounds.lateness_ms, self._lateness_ms)
        from_ms = window.start_ms if own_time else window.start_ms - margin_ms
        return dict(
            await spans(
                topic.client, topic.name, topic.partitions, max(0, from_ms), window.end_ms + margin_ms
            )
        )

    async def _lines(
        self, downstream: list[AuditedTopic]
    ) -> tuple[dict[AuditedTopic, list[CopiedLine]], str]:
        """The lines into each topic; and why they are not known, "" if they are."""
        regions = self._runtime.regions
        found: dict[AuditedTopic, list[CopiedLine]] = {topic: [] for topic in downstream}
        if regions is None:
            return (
                found,
                "this worker reads no offset map, so it does not know whether it was copied yet; ask another",
            )
        why = ""
        try:
            await regions.mapper.read()
            self._mapped_names = await regions.mapper.names()
            for topic in downstream:
                found[topic] = await regions.tables.lines_into(topic.cluster_id, topic.name)
        except NotRead as error:
            why = f"the offset map cannot be read, so it is not known whether it was copied yet: {error}"
            self._notes.append(
                f"the offset map cannot be read, so equal records are not distinguished: {error}"
            )
        return found, why

    def _source_place(self, copying: CopiedLine, names: Mapping[str, str]) -> ClusterPartition:
        source = copying.source
        name = names.get(source.cluster_id) or self._mapped_names.get(source.cluster_id, source.cluster_id)
        return ClusterPartition(name, source.topic, source.partition)

    def _uncounted(self, before: JsonMapping) -> frozenset[str]:
        """The clusters of `from_tier` that no plan counts (rule 4)."""
        layout = self._runtime.catalog.audits.layout
        if layout is None or self._question.to_tier != AGGREGATE:
            return frozenset()
        of_tier = {n for n, site in layout.sites.items() if site.tier == self._question.from_tier}
        return frozenset(of_tier - before.keys())


def _is_copied(copiers: list[CopyRoute]) -> bool:
    return any(copier.definition is not None for copier in copiers)


def _copied_by(
    lines: list[tuple[ClusterPartition, OffsetMapLine]], partition: int, ends: Mapping[ClusterPartition, int]
) -> int:
    """The offset below which the copies of the upstream records to read lie; -1: unknown."""
    found = -1
    for source, line in lines:
        end = ends.get(source)
        if end is not None and line.target_partition == partition:
            found = max(
                found,
                next((barrier.target_end for barrier in line.barriers if barrier.source_end >= end), -1),
            )
    return found


def _reached(
    copiers: list[CopyRoute],
    upstream: list[AuditedTopic],
    lines: Mapping[AuditedTopic, list[CopiedLine]],
    names: Mapping[str, str],
) -> dict[ClusterPartition, int]:
    """Partition upstream -> the offset up to which an existing route has copied it."""
    found: dict[ClusterPartition, int] = {}
    ids = {topic.cluster: topic.topic_id for topic in upstream}
    for copier in copiers:
        if copier.definition is None:
            continue
        topic = next(topic for topic in upstream if topic.cluster == copier.source)
        target = [copyings for into, copyings in lines.items() if into.name == copier.target_topic]
        for partition in range(topic.partitions):
            place, ends = ClusterPartition(copier.source, copier.topic, partition), [0]
            for copying in (line for copyings in target for line in copyings):
                at = copying.source
                is_place = (names.get(at.cluster_id), at.topic, at.partition) == tuple(place)
                is_other_log = copying.line.source.is_another(LogId(topic.cluster_id, ids[copier.source]))
                if is_place and not is_other_log and copying.line.barriers:
                    ends.append(copying.line.barriers[-1].source_end)
            found[place] = max(ends)
    return found
