"""Where consumers go on elsewhere: gathers what `app.offsets.model.translation` needs to know, and asks it.

Rules
1. Clusters are known by their ids, which regions share, not by their names, which they need not. The id of
   one that is away is what it was when it was last heard here, or what lines of a route from or to it say.
2. A cluster that is gone on to has to answer: an answer lies within the logs that there are.
3. A source of which this region's routes have a job and no line yet is not known (`resume`, `unknown`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.controllog.events import RoutePut
from app.kafka.client.cluster import EARLIEST, LATEST, ClusterClient, ClusterUnreachable
from app.kernel.job import JobId, Kind
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
from app.replicate.definition import RouteDefinition
from app.replicate.model.route import Route

COPIES = f"{Kind.REPLICATE.value}:"
MAP_READ_TIMEOUT_S = 8.0  # a request's patience with the offset map


class NoRoad(LookupError):
    """Nothing joins the two: why, and what to do."""


@dataclass(frozen=True, slots=True)
class JoinedTopics:
    """A topic of one cluster, and one of another, as they stand to each other now."""

    relation: TopicRelation
    read: TopicIdentity
    to: TopicIdentity
    into_read: list[CopiedLine]
    into_to: list[CopiedLine]
    logs: dict[int, Log]
    unknown: dict[tuple[CopiedPartition, int], str]
    incomplete: str

    def resume(self, next_offsets: Mapping[int, int]) -> ResumePlan:
        """Where a reader goes on."""
        return resume(
            self.relation, self.read, self.to, next_offsets, self.into_read, self.into_to, self.logs,
            self.unknown, self.incomplete,
        )  # fmt: skip

    @property
    def lines(self) -> int:
        """How many are held."""
        return len(self.into_read) + len(self.into_to)


class DestinationTopic(NamedTuple):
    """A topic that is gone on to, as somebody has just found it: its cluster's id, its own, its logs."""

    cluster_id: str
    topic_id: str
    logs: dict[int, Log]


class OffsetMapper:
    """See the module.

    Args:
        routes: this region's, by name. jobs: all that are assigned.
    """

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
        self._made_of: tuple[list[str], Mapping[str, RouteDefinition]] = [], {}
        self._copies: defaultdict[tuple[str, str], list[tuple[Route, str, int]]] = defaultdict(list)

    async def read(self, timeout_s: float = MAP_READ_TIMEOUT_S) -> None:
        """Reads the offset map to its end. Raises NotRead."""
        await self.tables.read(timeout_s)

    async def cluster_id(self, name: str) -> str:
        """A cluster's id (rule 1).

        Raises:
            KeyError: it is not in switchyard.yaml. NoRoad: it is away and was never heard of.
        """
        if name not in self._clusters.specs:
            raise KeyError(name)
        try:
            return await (await self.tables.reach(name)).client.cluster_id()
        except ClusterUnreachable as error:
            found = await self.tables.ask(
                lambda store: store.cluster_id(name) or self._from_routes(store, name)
            )
            if not found:
                raise NoRoad(
                    f"{error}, and nothing here says which cluster it was; ask when it answers"
                ) from error
            return found

    async def names(self) -> dict[str, str]:
        """The names here of clusters by their ids, as they were heard last."""

        def heard(store: RegionStore) -> dict[str, str]:
            return {found: name for name in sorted(self._clusters.specs) if (found := store.cluster_id(name))}

        return await self.tables.ask(heard)

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
        """The topics of cluster `to` that are joined with `topic` of `read_at`; only `to_topic`, if given.

        Call `read` before.

        Raises:
            KeyError: no such cluster. NoRoad: nothing joins them. NotRead. ValueError: there is too much.
            ClusterUnreachable, KafkaError: `to` cannot be asked.
        """
        read = TopicIdentity(await self.cluster_id(read_at), topic, await self._topic_id(read_at, topic))
        return await self.joined(read, to, to_topic, read_at)

    async def joined(
        self,
        read: TopicIdentity,
        to: str,
        to_topic: str | None = None,
        read_at: str = "",
        found: DestinationTopic | None = None,
    ) -> list[JoinedTopics]:
        """The same, where nobody has to be asked which topic `read` is; nor, with what was `found` of it,
        about `to_topic`."""
        to_id, topic = found.cluster_id if found else await self.cluster_id(to), read.topic
        into_read = await self.tables.lines_into(read.cluster_id, topic)
        shared = await self.tables.lines_from(read.cluster_id, topic)
        for cluster_id, source in sorted({c.source[:2] for c in into_read}):
            shared += await self.tables.lines_from(cluster_id, source)
        by_topic = related_topics(read, into_read, shared, to_id)
        if to_topic is not None:
            by_topic = {name: road for name, road in by_topic.items() if name == to_topic}
        if not by_topic:
            copied = f"topic {to_topic} in {to}" if to_topic else f"any topic in {to}"
            raise NoRoad(
                f"no barrier joins topic {topic} in {read_at or read.cluster_id} with {copied}; "
                "see that a route copies it (route list), and that it has copied something"
            )
        return [
            await self._joined(road, read, TopicIdentity(to_id, name), into_read, to, found)
            for name, road in sorted(by_topic.items())
        ]

    async def _joined(
        self,
        relation: TopicRelation,
        read: TopicIdentity,
        to: TopicIdentity,
        into_read: list[CopiedLine],
        to_name: str,
        found: DestinationTopic | None,
    ) -> JoinedTopics:
        # Before the logs: should the topic be made anew in between, its lines are of another one.
        topic_id = found.topic_id if found else await self._topic_id_of(to_name, to.topic)
        into_to = await self.tables.lines_into(to.cluster_id, to.topic)
        unknown = await self._unknown(to_name, to.topic, into_to)
        logs = found.logs if found else await _logs((await self.tables.reach(to_name)).client, to.topic)
        return JoinedTopics(
            relation,
            read,
            to._replace(topic_id=topic_id),
            into_read,
            into_to,
            logs,
            unknown,
            self._incomplete(),
        )

    async def _topic_id_of(self, cluster: str, topic: str) -> str:
        """Raises NoRoad: it does not exist. ClusterUnreachable."""
        ids = await (await self.tables.reach(cluster)).client.topic_ids([topic])
        if topic not in ids:
            raise NoRoad(f"topic {topic} does not exist in {cluster}, or may not be described")
        return ids[topic]

    async def _topic_id(self, cluster: str, topic: str) -> str:
        """ "" when nobody can be asked: then what the lines say is believed."""
        try:
            return (await (await self.tables.reach(cluster)).client.topic_ids([topic])).get(topic, "")
        except ClusterUnreachable:
            return ""

    def _incomplete(self) -> str:
        away = [one for one in self.tables.regions.values() if not one.is_known]
        if not away:
            return ""
        return (
            f"which sources region {away[0].region} copies here is not known: {away[0].why}; copy its "
            f"switchyard-{away[0].region}-checkpoints-changelog into this region's control cluster"
        )

    async def _unknown(
        self, to: str, to_topic: str, into_to: Iterable[CopiedLine]
    ) -> dict[tuple[CopiedPartition, int], str]:
        """Rule 3."""
        here = self.tables.atlas.region
        known = {(c.route, c.source.topic, c.source.partition) for c in into_to if c.region == here}
        found: dict[tuple[CopiedPartition, int], str] = {}
        for route, topic, partition in self._copying().get((to, to_topic), ()):
            if (route.name, topic, partition) in known:
                continue
            try:
                source = await self.cluster_id(route.source)
            except (NoRoad, KeyError):
                source = ""
            found[CopiedPartition(source, topic, partition), partition] = NO_LINE
        return found

    def _copying(self) -> Mapping[tuple[str, str], list[tuple[Route, str, int]]]:
        """The jobs of routes, by the cluster and topic that they copy into: route, topic, partition. Of tens
        of thousands who asks wants a few: they are looked through only when they have changed."""
        made_of = [job for job in self._jobs() if job.startswith(COPIES)], self._routes()
        if made_of != self._made_of:
            self._made_of, self._copies = made_of, defaultdict(list)
            routes = {name: found.route() for name, found in made_of[1].items()}
            copies: dict[tuple[str, str], str | None] = {}
            for job in map(JobId.parse, made_of[0]):
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
