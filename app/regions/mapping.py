"""Where consumers go on elsewhere: gathers what `app.core.resume` needs to know, and asks it.

Rules
1. Clusters are known by their ids, which regions share, not by their names, which they need not. The id of
   one that is away is what it was when it was last heard here, or what lines of a route from or to it say.
2. A cluster that is gone on to has to answer: an answer lies within the logs that there are.
3. A source of which this region's routes have a job and no line yet is not known (`resume`, `unknown`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from app import wire
from app.config.route import RouteDefinition
from app.core.control_events import RoutePut
from app.core.job import JobId, Kind
from app.core.resume import NO_LINE, Copying, Log, Place, Resumed, Road, Topic, resume, roads
from app.kafka.clusters import EARLIEST, LATEST, ClusterClient, ClusterUnreachable
from app.regions.store import ROUTES, Store
from app.regions.tables import Clusters, NotRead, Tables

READ_S = 8.0  # a request's patience with the offset map


class NoRoad(LookupError):
    """Nothing joins the two: why, and what to do."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A topic of one cluster, and one of another, as they stand to each other now."""

    road: Road
    read: Topic
    to: Topic
    into_read: list[Copying]
    into_to: list[Copying]
    logs: dict[int, Log]
    unknown: dict[tuple[Place, int], str]
    incomplete: str

    def resume(self, next_offsets: Mapping[int, int]) -> Resumed:
        """Where a reader goes on."""
        return resume(
            self.road, self.read, self.to, next_offsets, self.into_read, self.into_to, self.logs,
            self.unknown, self.incomplete,
        )  # fmt: skip

    @property
    def lines(self) -> int:
        """How many are held."""
        return len(self.into_read) + len(self.into_to)


class Mapper:
    """See the module.

    Args:
        routes: this region's, by name. jobs: all that are assigned.
    """

    def __init__(
        self,
        tables: Tables,
        clusters: Clusters,
        routes: Callable[[], Mapping[str, RouteDefinition]],
        jobs: Callable[[], Iterable[str]],
    ) -> None:
        self.tables = tables
        self._clusters = clusters
        self._routes = routes
        self._jobs = jobs

    async def read(self, timeout_s: float = READ_S) -> None:
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
            found = await self.tables.ask(lambda store: store.named(name) or self._from_routes(store, name))
            if not found:
                raise NoRoad(
                    f"{error}, and nothing here says which cluster it was; ask when it answers"
                ) from error
            return found

    async def names(self) -> dict[str, str]:
        """The names here of clusters by their ids, as they were heard last."""

        def heard(store: Store) -> dict[str, str]:
            return {found: name for name in sorted(self._clusters.specs) if (found := store.named(name))}

        return await self.tables.ask(heard)

    def _from_routes(self, store: Store, name: str) -> str:
        for region in self.tables.atlas.regions:
            for key, value in store.records(ROUTES, region, "route/"):
                try:
                    put = wire.control_event(value)
                except wire.BadEvent:
                    continue
                route = key.removeprefix("route/")
                spec = put.definition.get("spec", {}) if isinstance(put, RoutePut) else {}
                for end in ("from", "to"):
                    if spec.get(end) == name and (
                        found := store.cluster_of(region, route, target=end == "to")
                    ):
                        return found
        return ""

    async def join(self, read_at: str, topic: str, to: str, to_topic: str | None = None) -> list[Joined]:
        """The topics of cluster `to` that are joined with `topic` of `read_at`; only `to_topic`, if given.

        Call `read` before.

        Raises:
            KeyError: no such cluster. NoRoad: nothing joins them. NotRead. ValueError: there is too much.
            ClusterUnreachable, KafkaError: `to` cannot be asked.
        """
        read = Topic(await self.cluster_id(read_at), topic, await self._topic_id(read_at, topic))
        return await self.joined(read, to, to_topic, read_at)

    async def joined(
        self, read: Topic, to: str, to_topic: str | None = None, read_at: str = ""
    ) -> list[Joined]:
        """The same, where nobody has to be asked which topic `read` is."""
        to_id, topic = await self.cluster_id(to), read.topic
        into_read = await self.tables.into(read.cluster_id, topic)
        shared = await self.tables.of(read.cluster_id, topic)
        for cluster_id, source in sorted({c.source[:2] for c in into_read}):
            shared += await self.tables.of(cluster_id, source)
        found = roads(read, into_read, shared, to_id)
        if to_topic is not None:
            found = {name: road for name, road in found.items() if name == to_topic}
        if not found:
            copied = f"topic {to_topic} in {to}" if to_topic else f"any topic in {to}"
            raise NoRoad(
                f"no barrier joins topic {topic} in {read_at or read.cluster_id} with {copied}; "
                "see that a route copies it (route list), and that it has copied something"
            )
        client = (await self.tables.reach(to)).client
        return [
            await self._joined(road, read, Topic(to_id, name), into_read, client, to)
            for name, road in sorted(found.items())
        ]

    async def _joined(
        self,
        road: Road,
        read: Topic,
        to: Topic,
        into_read: list[Copying],
        client: ClusterClient,
        to_name: str,
    ) -> Joined:
        # Before the logs: should the topic be made anew in between, its lines are of another one.
        ids = await client.topic_ids([to.topic])
        if to.topic not in ids:
            raise NoRoad(f"topic {to.topic} does not exist in {to_name}, or may not be described")
        into_to = await self.tables.into(to.cluster_id, to.topic)
        unknown = await self._unknown(to_name, to.topic, into_to)
        return Joined(
            road, read, to._replace(topic_id=ids[to.topic]), into_read, into_to,
            await _logs(client, to.topic), unknown, self._incomplete(),
        )  # fmt: skip

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
        self, to: str, to_topic: str, into_to: Iterable[Copying]
    ) -> dict[tuple[Place, int], str]:
        """Rule 3."""
        here = self.tables.atlas.region
        known = {(c.route, c.source.topic, c.source.partition) for c in into_to if c.region == here}
        routes = {name: found for name, found in self._routes().items() if found.spec.target == to}
        prefixes = tuple(f"{Kind.REPLICATE.value}:{name}:" for name in routes)
        copied: dict[tuple[str, str], bool] = {}
        found: dict[tuple[Place, int], str] = {}
        for job in [job for job in self._jobs() if prefixes and job.startswith(prefixes)]:
            identity = JobId.parse(job)
            name, topic = identity.name, identity.topic
            if (name, topic, identity.partition) in known:
                continue
            if (name, topic) not in copied:
                copied[name, topic] = routes[name].route().destination(topic) == to_topic
            if copied[name, topic]:
                try:
                    source = await self.cluster_id(routes[name].spec.source)
                except (NoRoad, KeyError):
                    source = ""
                found[Place(source, topic, identity.partition), identity.partition] = NO_LINE
        return found


async def _logs(client: ClusterClient, topic: str) -> dict[int, Log]:
    count = await client.partitions(topic)
    wanted = [(topic, partition) for partition in range(count or 0)]
    starts, ends = await client.offsets(wanted, EARLIEST), await client.offsets(wanted, LATEST)
    if missing := [at for at in wanted if at not in starts or at not in ends]:
        raise ClusterUnreachable(f"{client.name}: the leader of {topic}-{missing[0][1]} does not answer")
    return {at[1]: Log(starts[at], ends[at]) for at in wanted}


__all__ = ["Joined", "Mapper", "NoRoad", "NotRead"]
