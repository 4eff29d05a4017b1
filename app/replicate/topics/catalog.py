"""Which partitions routes copy, and their destination topics, which the leader makes fit.

    definitions -> topics of the source (one request a cluster) -> copies -> plan of each destination topic
                -> created, expanded, configured -> fit: its partitions are jobs

Rules
1. What cannot be known now never ends a job: one that is assigned stays while its cluster is away, or its
   destination topic is not fit (any more), or a topic may not be described. It ends when the route no longer
   copies the topic, or the topic is gone for good (`app.worker.jobs.topic_inventory`), which is told
   (`app.worker.jobs.vanished_topics`).
2. A destination topic is planned with all topics that are copied to it, by whichever routes, and touched as
   far as all of them allow. While not all of its sources are known, nothing of it is made as at the source.
3. What cannot be done for a topic is told once, costs that topic alone, and is tried again.
4. Nobody waits for a cluster: reading and changing go on beside the rounds.
5. A route with `start: latest` begins nothing before it is recorded where
   (`app.replicate.topics.source_ends`).
6. Routes that together would loop or copy twice were deployed at the same moment, past the check of each:
   none of them runs until one is changed. Until a new set of routes is proved, what is new does not begin.
   So it is with loops that show only once a cluster has told its id, or another region's routes are heard.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import structlog
from aiokafka.errors import KafkaError

from app.controllog.definition_cache import DefinitionCache
from app.controllog.log import ControlLog
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.data_clusters import DataClusters
from app.kernel.job import Kind
from app.placement.model.round import is_gone
from app.replicate.definition import RouteDefinition
from app.replicate.model.copy_graph import ALONE, OtherRegions
from app.replicate.model.name_patterns import is_name
from app.replicate.model.route import Route
from app.replicate.topics.conflicts import ConflictingRoutes, conflicts
from app.replicate.topics.source_ends import beginning_of, lacks_beginning, not_known
from app.replicate.topics.targets import DestinationTopics
from app.worker.jobs.start_position import ReportIncident
from app.worker.jobs.topic_inventory import ClusterTopics, TopicExistence
from app.worker.jobs.vanished_topics import ExpectedTopic, TopicPresence, was_held

log = structlog.get_logger(__name__)

REFRESH_INTERVAL_S = 2.0
REFRESH_TIMEOUT_S = 0.25  # a round's, with clusters that answered in time before
PREFIX = f"{Kind.REPLICATE.value}:"
WHY_VANISHED = {
    "absent": "it was copied, and is not there any more: create it again, or drop it from the route",
    "denied": "it may not be described: grant Switchyard's principal Describe and Read on it",
}
BUSY_SHARE = 20  # what takes long to read is read rarely: a twentieth of the time


class ReadableRoute(NamedTuple):
    """A route that can be read."""

    definition: RouteDefinition
    route: Route


class _Copies(NamedTuple):
    """What a route makes of all topics there were when `ClusterTopics.names` was this.

    `shown` is what it means of them, those it copies first, once somebody has asked; `meant`: whether it does
    mean one that it does not copy.
    """

    route: Route
    names: int
    asked: dict[str, str | None]
    copied: dict[str, str]
    meant: dict[str, bool]
    shown: list[str] | None = None


class TopicsOfRoute(NamedTuple):
    """What is known of a route's topics, and when that was read (monotonic seconds); `others` is how many the
    source has that the route does not mean. `topics`: those it copies first; `row` is what becomes of one."""

    topics: list[str]
    row: Callable[[str], dict[str, Any]]
    others: int
    read_at_s: float


class RoutesCatalog:
    """See the module. Only `definition` and `route` are of use where the rounds are not made."""

    def __init__(
        self,
        control: ControlLog,
        clusters: DataClusters,
        report_incident: ReportIncident,
    ) -> None:
        self._control = control
        self._clusters = clusters
        self._report_incident = report_incident
        self._known = DefinitionCache(lambda: control.view.routes, _parsed, self._unread)
        self._expected: dict[str, set[str]] = {}  # source -> topics that have jobs
        self._lost: dict[str, dict[str, TopicExistence]] = {}  # route -> topics that vanished
        self._topics: defaultdict[str, ClusterTopics] = defaultdict(ClusterTopics)
        self._copies: dict[str, _Copies] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._late: set[str] = set()
        self._term = 0
        self._proving: asyncio.Task[None] | None = None
        self._proved: dict[str, str] = {}  # the etags of the last set that was looked at
        self._refused: list[ConflictingRoutes] = []
        self._ids: dict[str, str] = {}  # of clusters that were read
        self._proved_beside = ALONE
        # What is known beyond this region's routes (`app.offsets.sync.remote_routes`).
        self.other_regions: Callable[[], OtherRegions] = lambda: ALONE
        self._away: dict[str, frozenset[str]] = {}  # clusters that cannot be read, and of whom that was told
        self.targets = DestinationTopics(self._topics, clusters, report_incident)

    def definition(self, name: str) -> RouteDefinition | None:
        """As it stands in the control log, parsed once a change."""
        known = self._known.get(name)
        return None if known is None else known.definition

    def route(self, name: str) -> Route | None:
        """What it copies, and under which names."""
        known = self._known.get(name)
        return None if known is None else known.route

    # -- the leader's rounds -----------------------------------------------------------------------

    async def refresh(self, held: Iterable[str] = ()) -> None:
        """Reads what is old, and sees to the destination topics; waits `REFRESH_TIMEOUT_S` at most. `held`:
        as for `jobs`."""
        view = self._control.view
        routes = {name: known for name in list(view.routes) if (known := self._known.get(name)) is not None}
        self._copies = {name: self._copies[name] for name in self._copies.keys() & routes.keys()}
        if view.term != self._term:  # what was known when this worker led before may be old
            self._term = view.term
            self._topics.clear()
            self.targets.forget()
        if not routes and not self._topics:
            return
        self._expected = self._held_topics(held, routes)
        began_s = time.monotonic()
        awaited = self._prove(routes)
        awaited |= self._refresh_clusters(routes, began_s)
        if awaited:
            _, late = await asyncio.wait(awaited, timeout=REFRESH_TIMEOUT_S)
            self._late |= {name for name, task in self._looking.items() if task in late}
        running = {name: known for name, known in routes.items() if self.refused(name) is None}
        planning = self.targets.reconcile(
            {name: (known.definition, self._copied(known)) for name, known in running.items()},
            {known.route.target for known in routes.values() if not self._topics[known.route.source].listed},
        )
        if planning is not None:
            await asyncio.wait([planning], timeout=max(0.0, began_s + REFRESH_TIMEOUT_S - time.monotonic()))

    def jobs(self, held: Mapping[str, Iterable[str]]) -> Iterator[str]:
        """Every job of every route. `held`: those in the control log, by all of their name but the
        partition."""
        assigned = self._control.view.assignments
        of: dict[str, dict[str, list[str]]] = {}
        for prefix, jobs in held.items():
            if prefix.startswith(PREFIX):
                _, name, topic = prefix.split(":")
                of.setdefault(name, {})[topic] = [job for job in jobs if not is_gone(assigned[job])]
        for name in list(self._control.view.routes):
            known, mine = self._known.get(name), of.get(name, {})
            if known is None:  # cannot be read: it stays as it was
                yield from (job for jobs in mine.values() for job in jobs)
            elif self.refused(name) is None:
                yield from self._jobs_of(known, mine)

    def _held_topics(self, held: Iterable[str], routes: Mapping[str, ReadableRoute]) -> dict[str, set[str]]:
        """Topics that have, or had, jobs and are still meant, by their cluster."""
        found: dict[str, set[str]] = {}
        for prefix in held:
            if prefix.startswith(PREFIX):
                _, name, topic = prefix.split(":")
                known = routes.get(name)
                if known is not None and self._copies_topic(known, topic):
                    found.setdefault(known.route.source, set()).add(topic)
        return found

    def _copies_topic(self, known: ReadableRoute, topic: str) -> bool:
        before = self._copies.get(known.route.name)
        if before is not None and before.route is known.route and topic in before.asked:
            return before.asked[topic] is not None
        return known.route.destination(topic) is not None

    def found(self, held: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, TopicPresence]]:
        """How things stand with topics that have, or had, jobs and are still copied; `held` as for `jobs`."""
        assigned = self._control.view.assignments
        self._lost = {}
        for prefix, jobs in held.items():
            if not prefix.startswith(PREFIX):
                continue
            _, name, topic = prefix.split(":")
            known = self._known.get(name)
            if known is None or not self._copies_topic(known, topic):
                continue
            if not was_held(assigned[job] for job in jobs):
                continue
            topics = self._topics.get(known.route.source)
            state = "unknown" if topics is None else topics.stands(topic)
            if state in {"absent", "denied"}:
                self._lost.setdefault(name, {})[topic] = state
            yield prefix, TopicPresence(ExpectedTopic("route", name, known.route.source, topic), state)

    def _jobs_of(self, known: ReadableRoute, held: Mapping[str, list[str]]) -> Iterator[str]:
        route, topics = known.route, self._topics.get(known.route.source)
        if topics is None or not topics.listed:
            yield from (job for topic, jobs in held.items() if route.destination(topic) for job in jobs)
            return
        view = self._control.view
        is_new = self._proved.get(route.name) != self._stamp(known) or (
            known.definition.spec.start == "latest" and not view.start_parts_of(route.name)
        )
        for topic, copy in self._copied(known).items():
            count, prefix = topics.sizes[topic], f"{PREFIX}{route.name}:{topic}:"
            fit = 0 if is_new else min(count, self.targets.fit((route.target, copy)))
            for partition in range(fit):
                yield f"{prefix}{partition}"
            if fit < count and topic in held:
                yield from (job for job in held[topic] if int(job.removeprefix(prefix)) < count)
        for topic, jobs in held.items():  # rule 1
            if topic not in topics.sizes and not topics.is_gone(topic) and self._copies_topic(known, topic):
                yield from jobs

    def _copied(self, known: ReadableRoute) -> Mapping[str, str]:
        """The topics of the source that the route copies, and their copies' names; the same object while
        nothing changed."""
        name, topics = known.route.name, self._topics[known.route.source]
        before = self._copies.get(name)
        if before is None or before.route is not known.route:
            before = _Copies(known.route, -1, {}, {}, {})
        if before.names != topics.names:
            asked = before.asked
            found = {
                topic: asked[topic] if topic in asked else known.route.destination(topic)
                for topic in topics.sizes
            }
            copied = {topic: copy for topic, copy in found.items() if copy is not None}
            before = self._copies[name] = _Copies(known.route, topics.names, found, copied, before.meant)
        return before.copied

    def topics_of(self, name: str) -> TopicsOfRoute | None:
        """What becomes of each topic that the route means; None: that is not known."""
        known = self._known.get(name)
        topics = None if known is None else self._topics.get(known.route.source)
        if known is None or topics is None or not topics.listed:
            return None
        route, copied = known.route, self._copied(known)
        refused, there = self.refused(name), self._topics.get(route.target)
        copies = self._copies[name]
        if copies.shown is None:  # once a change of the topics there are
            others, before = topics.sizes.keys() - copied.keys(), copies.meant
            meant = {one: before[one] if one in before else route.means(one) for one in others}
            shown = sorted(copied) + sorted(topic for topic in others if meant[topic])
            copies = self._copies[name] = copies._replace(meant=meant, shown=shown)

        lost = self._lost.get(name, {})

        def row(topic: str) -> dict[str, Any]:
            copy, count = copied.get(topic), topics.sizes.get(topic, 0)
            if topic in lost:
                state, why = "vanished", WHY_VANISHED[lost[topic]]
            elif copy is None:
                state, why = "not-copied", route.why_not(topic) or ""
            elif refused is not None:
                state, why = "refused", f"{refused.message}; {refused.remedy}"
            else:
                state, why = self.targets.state_of((route.target, copy))
            copy_count = None if there is None or copy is None else there.sizes.get(copy)
            return {
                "topic": topic, "partitions": count, "copy": copy, "copy_partitions": copy_count,
                "state": state, "why": why,
            }  # fmt: skip

        absent = [topic for topic in sorted(lost) if topic not in topics.sizes]
        meant_count = len(copies.shown or [])
        return TopicsOfRoute(
            absent + (copies.shown or []), row, len(topics.sizes) - meant_count, topics.listed_at_s
        )

    # -- clusters ----------------------------------------------------------------------------------

    def _refresh_clusters(self, routes: Mapping[str, ReadableRoute], now_s: float) -> set[asyncio.Task[None]]:
        """Begins to read clusters that were not read lately; those worth waiting for."""
        self._looking = {name: task for name, task in self._looking.items() if not task.done()}
        asked: dict[str, set[str] | None] = {}
        for known in routes.values():
            names = set(known.route.names) if all(map(is_name, known.route.topics)) else None
            before = asked.setdefault(known.route.source, set())
            asked[known.route.source] = None if before is None or names is None else before | names
            asked.setdefault(known.route.target, set())
        for cluster, names in asked.items():
            if names is not None:
                names.update(self.targets.of(cluster))
        for gone in self._topics.keys() - asked.keys():
            del self._topics[gone]
        awaited = set()
        for cluster, names in asked.items():
            topics, of = self._topics[cluster], self._described(cluster, routes)
            pause_s = max(REFRESH_INTERVAL_S, BUSY_SHARE * topics.took_s)
            begins = bool(self._without_beginning(cluster, routes))
            relist = begins or now_s - topics.listed_at_s >= pause_s or not topics.knows(*of)
            # What is there and not described yet must not wait for the next turn.
            if cluster not in self._looking and (relist or topics.stale or topics.lacks(of)):
                look = self._read(cluster, names, routes, relist=relist)
                task = asyncio.get_running_loop().create_task(look)
                self._looking[cluster] = task
                if cluster not in self._late:
                    awaited.add(task)
        return awaited

    def _described(self, cluster: str, routes: Mapping[str, ReadableRoute]) -> set[str]:
        """The topics of `cluster` whose settings matter."""
        found = set(self.targets.of(cluster))
        for known in routes.values():
            if known.route.source == cluster:
                found.update(self._copied(known))
        return found

    async def _read(
        self,
        cluster: str,
        names: Collection[str] | None,
        routes: Mapping[str, ReadableRoute],
        *,
        relist: bool,
    ) -> None:
        topics = self._topics[cluster]
        try:
            if cluster not in self._clusters.specs:
                raise ClusterUnreachable(
                    "it is not in this worker's configuration; add it to switchyard.yaml"
                )
            client = (await self._clusters.get(cluster)).client
            self._ids[cluster] = await client.cluster_id()
            began_s = time.monotonic()
            described = partial(self._described, cluster, routes)
            expected = self._expected.get(cluster, set()) | self.targets.of(cluster)
            await topics.refresh(client, names, described, began_s, relist=relist, expected=expected)
            for known in self._without_beginning(cluster, routes):
                if self._topics.get(cluster) is topics:
                    await self._record_beginning(known, client)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as error:
            of = frozenset(n for n, k in routes.items() if cluster in {k.route.source, k.route.target})
            for name in sorted(of - self._away.get(cluster, frozenset())):
                self._report_incident(
                    "route-trouble", name, f"cluster {cluster} cannot be read: {error}",
                    "what is copied goes on with what is known; new topics wait until it answers",
                )  # fmt: skip
            self._away[cluster] = of
            await asyncio.sleep(REFRESH_INTERVAL_S)
        except Exception:
            log.exception("the topics of a cluster could not be read and are read again", cluster=cluster)
            await asyncio.sleep(REFRESH_INTERVAL_S)
        else:
            self._away.pop(cluster, None)
            if time.monotonic() - began_s < REFRESH_TIMEOUT_S:
                self._late.discard(cluster)

    def _without_beginning(self, source: str, routes: Mapping[str, ReadableRoute]) -> list[ReadableRoute]:
        """Routes of which it has to be recorded where they begin."""
        view = self._control.view
        return [
            known
            for name, known in routes.items()
            if known.route.source == source and lacks_beginning(view, name, known.definition.spec.start)
        ]

    async def _record_beginning(self, known: ReadableRoute, client: ClusterClient) -> None:
        name, sizes = known.route.name, self._topics[known.route.source].sizes
        put = self._control.view.routes[name]
        begun = await beginning_of(client, put, {topic: sizes[topic] for topic in self._copied(known)})
        if unknown := not_known(begun):
            some = ", ".join(unknown[:3])
            self._report_incident(
                "route-begins-earlier", name,
                f"where {len(unknown)} partitions end is not known: no leader answers for {some}",
                "they are copied from their first record on once they have a leader; nothing is lost",
            )  # fmt: skip
        if self._known.get(name) is known:  # else it has just been changed, and is looked at again
            await self._control.append(*begun)

    # -- loops -------------------------------------------------------------------------------------

    def refused(self, name: str) -> ConflictingRoutes | None:
        """Why the route does not run beside the others; None: it does."""
        return next((found for found in self._refused if name in found.names), None)

    def _prove(self, routes: Mapping[str, ReadableRoute]) -> set[asyncio.Task[None]]:
        etags, told = {name: self._stamp(known) for name, known in routes.items()}, self.other_regions()
        known_beside = told == self._proved_beside
        if (etags == self._proved and known_beside) or (
            self._proving is not None and not self._proving.done()
        ):
            return set()
        changed = {name for name, etag in etags.items() if not known_beside or self._proved.get(name) != etag}
        changed |= {name for found in self._refused for name in found.names}
        self._proving = asyncio.get_running_loop().create_task(self._prove_them(routes, etags, changed, told))
        return {self._proving}

    def _stamp(self, known: ReadableRoute) -> str:
        """Of what is proved of a route: its definition, between the clusters that these names mean."""
        route = known.route
        ids = self._ids.get(route.source, ""), self._ids.get(route.target, "")
        return f"{self._control.view.routes[route.name].etag} {ids}"

    async def _prove_them(
        self,
        routes: Mapping[str, ReadableRoute],
        etags: dict[str, str],
        changed: Collection[str],
        told: OtherRegions,
    ) -> None:
        beside = OtherRegions({**told.ids, **self._ids}, told.routes)
        ours = [known.route for known in routes.values()]
        found = await asyncio.to_thread(conflicts, ours, changed, beside)
        for refused in found:
            for name in sorted(refused.names & routes.keys() if refused not in self._refused else ()):
                self._report_incident("route-refused", name, refused.message, refused.remedy)
        self._refused, self._proved, self._proved_beside = found, etags, told

    def _unread(self, name: str, why: str) -> None:
        self._report_incident("route-trouble", name, why, "deploy it again")


def _parsed(name: str, definition: Mapping[str, Any]) -> ReadableRoute:
    """Raises ValueError: it is another route's, or cannot be understood."""
    found = RouteDefinition.from_wire(definition)
    if found.key != name:
        raise ValueError(f"it is of {found.key!r}, and stands under {name!r}")
    return ReadableRoute(found, found.route())
