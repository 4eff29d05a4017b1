"""Gathers the lines, logs and ids with which `app.offsets.model.translation` maps positions.

Rules
1. A cluster is identified by its id, because regions may give it different names. If a cluster does
   not answer, its last known id counts, or the id in the lines of its routes.
2. The destination cluster must answer, because a position must lie within its present logs.
3. A source is not known while this region's routes have a job for it but no line (`resume`, `unknown`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.controllog.events import RoutePut
from app.kafka.client.cluster import EARLIEST, LATEST, ClusterClient, ClusterUnreachable
from app.kernel.job import JobId
from app.offsets.model.translation import (
    NO_LINE,
    CopiedLine,
    CopiedPartition,
    Log,
    ResumePlan,
    TopicIdentity,
    TopicRelation,
    related_topics,
    resume,
)
from app.offsets.store.records import RegionStore
from app.offsets.store.tables import ReadableClusters, RegionTables
from app.replicate.definition import REPLICATE_JOBS, RouteDefinition
from app.replicate.model.route import Route

MAP_READ_TIMEOUT_S = 8.0  # for a request to read the offset map


class NotJoined(LookupError):
    """No line relates the two topics or clusters; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class JoinedTopics:
    """A topic that was read, a topic in another cluster, and what relates them."""

    relation: TopicRelation
    read: TopicIdentity
    to: TopicIdentity
    into_read: list[CopiedLine]
    into_to: list[CopiedLine]
    logs: dict[int, Log]
    unknown: dict[tuple[CopiedPartition, int], str]
    incomplete: str

    def resume(self, next_offsets: Mapping[int, int]) -> ResumePlan:
        return resume(
            self.relation, self.read, self.to, next_offsets, self.into_read, self.into_to, self.logs,
            self.unknown, self.incomplete,
        )  # fmt: skip

    @property
    def lines(self) -> int:
        """The number of lines in memory."""
        return len(self.into_read) + len(self.into_to)


class DestinationTopic(NamedTuple):
    """A destination topic that the caller has just looked up: its cluster's id, its own id, its logs."""

    cluster_id: str
    topic_id: str
    logs: dict[int, Log]


class OffsetMapper:
    """Maps positions by all regions' lines. `routes`: this region's, by name; `jobs`: all that are
    assigned."""

    def __init__(
        self,
        tables: RegionTables,
        clusters: ReadableClusters,
        routes: Callable[[], Mapping[str, RouteDefinition]],
        jobs: Callable[[], Iterable[str]],
    ) -> None:
        self.tables = tables
        self._clusters = clusters
        self._routes = routes
        self._jobs = jobs
        self._copies_of: tuple[list[str], Mapping[str, RouteDefinition]] = [], {}
        self._copies: defaultdict[tuple[str, str], list[tuple[Route, str, int]]] = defaultdict(list)

    async def read(self, timeout_s: float = MAP_READ_TIMEOUT_S) -> None:
        """Reads the offset map to its end. Raises NotRead."""
        await self.tables.read(timeout_s)

    async def cluster_id(self, name: str) -> str:
        """A cluster's id (rule 1). Raises KeyError: not in switchyard.yaml. NotJoined: away and not known."""
        if name not in self._clusters.specs:
            raise KeyError(name)
        try:
            return await (await self.tables.reach(name)).client.cluster_id()
        except ClusterUnreachable as error:
            found = await self.tables.ask(
                lambda store: store.cluster_id(name) or self._from_routes(store, name)
            )
            if not found:
                raise NotJoined(
                    f"{error}, and its id is not known here; ask again when it answers"
                ) from error
            return found

    async def names(self) -> dict[str, str]:
        """This region's names of clusters, by their last known ids."""

        def ids(store: RegionStore) -> dict[str, str]:
            return {found: name for name in sorted(self._clusters.specs) if (found := store.cluster_id(name))}

        return await self.tables.ask(ids)

    def _from_routes(self, store: RegionStore, name: str) -> str:
        for region in self.tables.atlas.regions:
            for key, put in store.definitions(region, RoutePut, "route/"):
                route, spec = key.removeprefix("route/"), put.definition.get("spec", {})
                for end in ("from", "to"):
                    if spec.get(end) == name and (
                        found := store.cluster_of(region, route, target=end == "to")
                    ):
                        return found
        return ""

    async def join(
        self, read_at: str, topic: str, to: str, to_topic: str | None = None
    ) -> list[JoinedTopics]:
        """The topics of cluster `to` that are related to `topic` of `read_at`, or only `to_topic`; `read`
        before.

        Raises:
            KeyError: A cluster does not exist.
            NotJoined: No line relates them.
            NotRead, ClusterUnreachable, KafkaError, ValueError: The tables or `to` cannot be read; too
            many lines.
        """
        read = TopicIdentity(await self.cluster_id(read_at), topic, await self._topic_id(read_at, topic))
        return await self.join_known(read, to, to_topic, read_at)

    async def join_known(
        self,
        read: TopicIdentity,
        to: str,
        to_topic: str | None = None,
        read_at: str = "",
        destination: DestinationTopic | None = None,
    ) -> list[JoinedTopics]:
        """As `join`, for a known `read` topic, and a known `destination` if given."""
        to_id, topic = destination.cluster_id if destination else await self.cluster_id(to), read.topic
        into_read = await self.tables.lines_into(read.cluster_id, topic)
        shared = await self.tables.lines_from(read.cluster_id, topic)
        for cluster_id, source in sorted({c.source[:2] for c in into_read}):
            shared += await self.tables.lines_from(cluster_id, source)
        relations = related_topics(read, into_read, shared, to_id)
        if to_topic is not None:
            relations = {name: relation for name, relation in relations.items() if name == to_topic}
        if not relations:
            copied = f"topic {to_topic} in {to}" if to_topic else f"any topic in {to}"
            raise NotJoined(
                f"no offset sync relates topic {topic} in {read_at or read.cluster_id} to {copied}; "
                "check that a route copies it (`switchyard route list`), and has copied records"
            )
        return [
            await self._join_topic(relation, read, TopicIdentity(to_id, name), into_read, to, destination)
            for name, relation in sorted(relations.items())
        ]

    async def _join_topic(
        self,
        relation: TopicRelation,
        read: TopicIdentity,
        to: TopicIdentity,
        into_read: list[CopiedLine],
        to_name: str,
        destination: DestinationTopic | None,
    ) -> JoinedTopics:
        # Read the id before the logs: if the topic is recreated in between, its lines belong to another log.
        topic_id = destination.topic_id if destination else await self._topic_id_of(to_name, to.topic)
        into_to = await self.tables.lines_into(to.cluster_id, to.topic)
        unknown = await self._unknown(to_name, to.topic, into_to)
        if destination:
            logs = destination.logs
        else:
            logs = await _logs((await self.tables.reach(to_name)).client, to.topic)
        to = to._replace(topic_id=topic_id)
        return JoinedTopics(relation, read, to, into_read, into_to, logs, unknown, self._incomplete())

    async def _topic_id_of(self, cluster: str, topic: str) -> str:
        """Raises NotJoined: the topic does not exist. ClusterUnreachable."""
        ids = await (await self.tables.reach(cluster)).client.topic_ids([topic])
        if topic not in ids:
            raise NotJoined(f"topic {topic} does not exist in {cluster}, or may not be described")
        return ids[topic]

    async def _topic_id(self, cluster: str, topic: str) -> str:
        """ "" when the cluster does not answer; then the lines count."""
        try:
            return (await (await self.tables.reach(cluster)).client.topic_ids([topic])).get(topic, "")
        except ClusterUnreachable:
            return ""

    def _incomplete(self) -> str:
        unread = [one for one in self.tables.regions.values() if not one.is_known]
        if not unread:
            return ""
        return (
            f"the sources that region {unread[0].region} copies here are not known: {unread[0].why}; "
            f"copy its switchyard-{unread[0].region}-checkpoints-changelog into this region's control cluster"
        )

    async def _unknown(
        self, to: str, to_topic: str, into_to: Iterable[CopiedLine]
    ) -> dict[tuple[CopiedPartition, int], str]:
        """Rule 3."""
        here = self.tables.atlas.region
        known = {(c.route, c.source.topic, c.source.partition) for c in into_to if c.region == here}
        found: dict[tuple[CopiedPartition, int], str] = {}
        for route, topic, partition in self._copies_by_topic().get((to, to_topic), ()):
            if (route.name, topic, partition) in known:
                continue
            try:
                source = await self.cluster_id(route.source)
            except (NotJoined, KeyError):
                source = ""
            found[CopiedPartition(source, topic, partition), partition] = NO_LINE
        return found

    def _copies_by_topic(self) -> Mapping[tuple[str, str], list[tuple[Route, str, int]]]:
        """The jobs of routes (route, topic, partition) by the cluster and topic of their copies. There may be
        tens of thousands of jobs, so the result is kept until jobs or routes change."""
        jobs_and_routes = [job for job in self._jobs() if job.startswith(REPLICATE_JOBS)], self._routes()
        if jobs_and_routes != self._copies_of:
            self._copies_of, self._copies = jobs_and_routes, defaultdict(list)
            routes = {name: found.route() for name, found in jobs_and_routes[1].items()}
            copies: dict[tuple[str, str], str | None] = {}
            for job in map(JobId.parse, jobs_and_routes[0]):
                if (route := routes.get(job.name)) is None:
                    continue
                at = job.name, job.topic
                if at not in copies:
                    copies[at] = route.destination(job.topic)
                if (copy := copies[at]) is not None:
                    self._copies[route.target, copy].append((route, job.topic, job.partition))
        return self._copies


async def _logs(client: ClusterClient, topic: str) -> dict[int, Log]:
    count = await client.partitions(topic)
    wanted = [(topic, partition) for partition in range(count or 0)]
    starts, ends = await client.offsets(wanted, EARLIEST), await client.offsets(wanted, LATEST)
    if missing := [at for at in wanted if at not in starts or at not in ends]:
        raise ClusterUnreachable(f"{client.name}: the leader of {topic}-{missing[0][1]} does not answer")
    return {at[1]: Log(starts[at], ends[at]) for at in wanted}
