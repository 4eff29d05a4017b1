"""Finds the partitions that routes copy; on the leader, with the destination topics that it prepares.

    definitions -> topics of the source (one request a cluster) -> copies -> plan of each destination topic
                -> created, expanded, configured -> fit: its partitions are jobs

Rules
1. Missing knowledge never ends a job. An assigned job stays while its cluster is unreachable, its destination
   topic is not fit (any more), or its topic may not be described. It ends when the route no longer copies the
   topic, or the topic has vanished (`app.worker.jobs.topic_inventory`), which is reported
   (`app.worker.jobs.vanished_topics`).
2. A destination topic is planned for all topics that any route copies to it, and changed as far as all of
   these routes allow. Settings follow the source only while all sources are known.
3. A failure for a topic is reported once, affects only that topic, and is retried.
4. Rounds do not wait for clusters: reads and changes run in tasks beside them.
5. A route with `start: latest` starts no job before its start offsets are recorded
   (`app.replicate.topics.source_ends`).
6. Routes that were deployed at the same moment pass the check of each and may still loop or copy twice
   together. None of them runs until one is changed. New routes do not begin until the new set is proved. The
   same holds for loops that show only once a cluster's id or another region's routes are known.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import structlog
from aiokafka.errors import KafkaError

from app.controllog.leader_reports import NewTerm, until_deposed
from app.controllog.log import ControlLog
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.data_clusters import DataClusters
from app.kernel.incidents import ReportIncident
from app.kernel.json_types import JsonObject
from app.placement.model.round import is_gone
from app.replicate.definition import REPLICATE_JOBS, RouteDefinition
from app.replicate.model.copy_graph import ALONE, OtherRegions
from app.replicate.model.name_patterns import is_name
from app.replicate.model.route import Route
from app.replicate.topics.conflicts import ConflictingRoutes, conflicts
from app.replicate.topics.readable_routes import ReadableRoute, ReadableRoutes
from app.replicate.topics.source_ends import beginning_of, lacks_beginning, not_known
from app.replicate.topics.targets import DestinationTopics
from app.worker.jobs.topic_inventory import ClusterTopics, TopicExistence
from app.worker.jobs.vanished_topics import ExpectedTopic, TopicPresence, was_held

log = structlog.get_logger(__name__)

REFRESH_INTERVAL_S = 2.0
REFRESH_TIMEOUT_S = 0.25  # of a round, for clusters that answered in time before
WHY_VANISHED = {
    "absent": "it was copied, and no longer exists: create it again, or drop it from the route",
    "denied": "Switchyard may not describe it: grant its principal Describe and Read on it",
}
BUSY_SHARE = 20  # a cluster is read for at most a twentieth of the time


class _Copies(NamedTuple):
    """The copies that a route makes of all topics that existed when `ClusterTopics.names` had this value.

    Attributes:
        destinations: The copy of each topic; None: not copied.
        copied: The copies of the topics that are copied.
        matched: For topics that are not copied, whether an entry of the route matches them.
        shown: The topics that an entry matches, copied ones first; None until it is needed.
    """

    route: Route
    names: int
    destinations: dict[str, str | None]
    copied: dict[str, str]
    matched: dict[str, bool]
    shown: list[str] | None = None


class TopicsOfRoute(NamedTuple):
    """The state of a route's topics.

    Attributes:
        topics: The topics that an entry matches, copied ones first.
        row: The state of one topic, as JSON.
        unmatched_count: How many topics of the source no entry matches.
        read_at_s: When the source was read; monotonic.
    """

    topics: list[str]
    row: Callable[[str], JsonObject]
    unmatched_count: int
    read_at_s: float


class RoutesCatalog:
    """The control log's routes. On workers that do not lead only `definition` and `route` are valid.

    Args:
        other_regions: Other regions' routes and cluster ids (`app.offsets.sync.remote_routes`).
    """

    def __init__(
        self,
        control: ControlLog,
        clusters: DataClusters,
        report_incident: ReportIncident,
        routes: ReadableRoutes,
        other_regions: Callable[[], OtherRegions] = lambda: ALONE,
    ) -> None:
        self._control = control
        self._clusters = clusters
        self._report_incident = report_incident
        self._known = routes
        self._expected: dict[str, set[str]] = {}  # source -> topics that have jobs
        self._lost: dict[str, dict[str, TopicExistence]] = {}  # route -> topics that vanished
        self._topics: defaultdict[str, ClusterTopics] = defaultdict(ClusterTopics)
        self._copies: dict[str, _Copies] = {}
        self._reads: dict[str, asyncio.Task[None]] = {}  # by cluster
        self._late: set[str] = set()  # clusters that did not answer in time
        self._new_term = NewTerm()
        self._proving: asyncio.Task[None] | None = None
        self._proved: dict[str, str] = {}  # the stamps of the last set of routes that was examined
        self._refused: list[ConflictingRoutes] = []
        self._ids: dict[str, str] = {}  # the ids of the clusters that were read
        self._proved_beside = ALONE
        self._other_regions = other_regions
        self._unreachable: dict[str, frozenset[str]] = {}  # cluster -> routes for which that was reported
        self.targets = DestinationTopics(self._topics, self._ids, clusters, control, report_incident)

    def definition(self, name: str) -> RouteDefinition | None:
        """The definition in the control log, parsed once for each change."""
        known = self._known.get(name)
        return None if known is None else known.definition

    def route(self, name: str) -> Route | None:
        known = self._known.get(name)
        return None if known is None else known.route

    # -- the leader's rounds -----------------------------------------------------------------------

    async def refresh(self, held: Iterable[str] = ()) -> None:
        """Reads clusters again, prepares destination topics; takes at most `REFRESH_TIMEOUT_S`. `held`: see
        `jobs`."""
        view = self._control.view
        routes = self._known.all()
        self._copies = {name: self._copies[name] for name in self._copies.keys() & routes.keys()}
        if self._new_term.has_begun(view.term):
            self._topics.clear()
            self._unreachable.clear()
            self.targets.forget()
            for refused in self._refused:
                self._report_refused(refused, routes)
        if not routes and not self._topics:
            return
        self._expected = self._held_topics(held, routes)
        began_s = time.monotonic()
        awaited = self._prove(routes)
        awaited |= self._refresh_clusters(routes, began_s)
        if awaited:
            _, late = await asyncio.wait(awaited, timeout=REFRESH_TIMEOUT_S)
            self._late |= {name for name, task in self._reads.items() if task in late}
        running = {name: known for name, known in routes.items() if self.refused(name) is None}
        planning = self.targets.reconcile(
            {name: (known.definition, self._copied(known)) for name, known in running.items()},
            {known.route.target for known in routes.values() if not self._topics[known.route.source].listed},
        )
        if planning is not None:
            await asyncio.wait([planning], timeout=max(0.0, began_s + REFRESH_TIMEOUT_S - time.monotonic()))

    def jobs(self, held: Mapping[str, Iterable[str]]) -> Iterator[str]:
        """Every job of every route. `held`: the control log's jobs, by their name without the partition."""
        assigned = self._control.view.assignments
        by_route: dict[str, dict[str, list[str]]] = {}
        for prefix, jobs in held.items():
            if prefix.startswith(REPLICATE_JOBS):
                _, name, topic = prefix.split(":")
                by_route.setdefault(name, {})[topic] = [job for job in jobs if not is_gone(assigned[job])]
        for name in list(self._control.view.routes):
            known, present = self._known.get(name), by_route.get(name, {})
            if known is None:  # unreadable, so its jobs stay as they are
                yield from (job for jobs in present.values() for job in jobs)
            elif self.refused(name) is None:
                yield from self._jobs_of(known, present)

    def _held_topics(self, held: Iterable[str], routes: Mapping[str, ReadableRoute]) -> dict[str, set[str]]:
        """Topics that have, or had, jobs and are still copied, by their cluster."""
        found: dict[str, set[str]] = {}
        for prefix in held:
            if prefix.startswith(REPLICATE_JOBS):
                _, name, topic = prefix.split(":")
                known = routes.get(name)
                if known is not None and self._copies_topic(known, topic):
                    found.setdefault(known.route.source, set()).add(topic)
        return found

    def _copies_topic(self, known: ReadableRoute, topic: str) -> bool:
        before = self._copies.get(known.route.name)
        if before is not None and before.route is known.route and topic in before.destinations:
            return before.destinations[topic] is not None
        return known.route.destination(topic) is not None

    def found(self, held: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, TopicPresence]]:
        """Yields the state of topics that have, or had, jobs and are still copied. `held`: see `jobs`."""
        assigned = self._control.view.assignments
        self._lost = {}
        for prefix, jobs in held.items():
            if not prefix.startswith(REPLICATE_JOBS):
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
            count, prefix = topics.sizes[topic], f"{REPLICATE_JOBS}{route.name}:{topic}:"
            fit = 0 if is_new else min(count, self.targets.fit((route.target, copy)))
            for partition in range(fit):
                yield f"{prefix}{partition}"
            if fit < count and topic in held:
                yield from (job for job in held[topic] if int(job.removeprefix(prefix)) < count)
        for topic, jobs in held.items():  # rule 1
            if topic not in topics.sizes and not topics.is_gone(topic) and self._copies_topic(known, topic):
                yield from jobs

    def _copied(self, known: ReadableRoute) -> Mapping[str, str]:
        """The topics that the route copies, with their copies' names; the same object until they change."""
        name, topics = known.route.name, self._topics[known.route.source]
        before = self._copies.get(name)
        if before is None or before.route is not known.route:
            before = _Copies(known.route, -1, {}, {}, {})
        if before.names != topics.names:
            cached = before.destinations
            found = {
                topic: cached[topic] if topic in cached else known.route.destination(topic)
                for topic in topics.sizes
            }
            copied = {topic: copy for topic, copy in found.items() if copy is not None}
            before = self._copies[name] = _Copies(known.route, topics.names, found, copied, before.matched)
        return before.copied

    def topics_of(self, name: str) -> TopicsOfRoute | None:
        """The state of each topic that an entry of the route matches; None: not known."""
        known = self._known.get(name)
        topics = None if known is None else self._topics.get(known.route.source)
        if known is None or topics is None or not topics.listed:
            return None
        route, copied = known.route, self._copied(known)
        refused, target_topics = self.refused(name), self._topics.get(route.target)
        copies = self._copies[name]
        if copies.shown is None:  # once for each change of the topics
            uncopied, before = topics.sizes.keys() - copied.keys(), copies.matched
            matched = {t: before[t] if t in before else route.means(t) for t in uncopied}
            shown = sorted(copied) + sorted(topic for topic in uncopied if matched[topic])
            copies = self._copies[name] = copies._replace(matched=matched, shown=shown)

        lost = self._lost.get(name, {})

        def row(topic: str) -> JsonObject:
            copy, count = copied.get(topic), topics.sizes.get(topic, 0)
            if topic in lost:
                state, why = "vanished", WHY_VANISHED[lost[topic]]
            elif copy is None:
                state, why = "not-copied", route.why_not(topic) or ""
            elif refused is not None:
                state, why = "refused", f"{refused.message}; {refused.remedy}"
            else:
                state, why = self.targets.state_of((route.target, copy))
            copy_count = None if target_topics is None or copy is None else target_topics.sizes.get(copy)
            return {
                "topic": topic, "partitions": count, "copy": copy, "copy_partitions": copy_count,
                "state": state, "why": why,
            }  # fmt: skip

        absent = [topic for topic in sorted(lost) if topic not in topics.sizes]
        matched_count = len(copies.shown or [])
        return TopicsOfRoute(
            absent + (copies.shown or []), row, len(topics.sizes) - matched_count, topics.listed_at_s
        )

    # -- clusters ----------------------------------------------------------------------------------

    def _refresh_clusters(self, routes: Mapping[str, ReadableRoute], now_s: float) -> set[asyncio.Task[None]]:
        """Begins to read clusters that were not read lately; returns the reads that are worth a wait."""
        self._reads = {name: task for name, task in self._reads.items() if not task.done()}
        wanted: dict[str, set[str] | None] = {}  # cluster -> topic names; None: all topics
        for known in routes.values():
            names = set(known.route.names) if all(map(is_name, known.route.topics)) else None
            before = wanted.setdefault(known.route.source, set())
            wanted[known.route.source] = None if before is None or names is None else before | names
            wanted.setdefault(known.route.target, set())
        for cluster, names in wanted.items():
            if names is not None:
                names.update(self.targets.of(cluster))
        for unused in self._topics.keys() - wanted.keys():
            del self._topics[unused]
        for unused in self._unreachable.keys() - wanted.keys():
            del self._unreachable[unused]
        awaited = set()
        for cluster, names in wanted.items():
            topics, described = self._topics[cluster], self._described(cluster, routes)
            pause_s = max(REFRESH_INTERVAL_S, BUSY_SHARE * topics.took_s)
            begins = bool(self._awaiting_start(cluster, routes))
            relist = begins or now_s - topics.listed_at_s >= pause_s or not topics.knows(*described)
            # A topic that exists and is not described yet must not wait for the next turn.
            if cluster not in self._reads and (relist or topics.stale or topics.lacks(described)):
                read = self._read(cluster, names, routes, relist=relist)
                task = asyncio.get_running_loop().create_task(read)
                self._reads[cluster] = task
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
            for known in self._awaiting_start(cluster, routes):
                if self._topics.get(cluster) is topics:
                    await self._record_start(known, client)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as error:
            affected = frozenset(n for n, k in routes.items() if cluster in {k.route.source, k.route.target})
            for name in sorted(affected - self._unreachable.get(cluster, frozenset())):
                self._report_incident(
                    "route-trouble", name, f"cluster {cluster} cannot be read: {error}",
                    "check the cluster; topics that are copied already continue, new ones wait",
                    until_deposed(self._control, partial(self._is_read, cluster, name)),
                )  # fmt: skip
            self._unreachable[cluster] = affected
            await asyncio.sleep(REFRESH_INTERVAL_S)
        except Exception:
            log.exception("the topics of a cluster could not be read; the worker retries", cluster=cluster)
            await asyncio.sleep(REFRESH_INTERVAL_S)
        else:
            self._unreachable.pop(cluster, None)
            if time.monotonic() - began_s < REFRESH_TIMEOUT_S:
                self._late.discard(cluster)

    def _is_read(self, cluster: str, route: str) -> bool:
        """Whether a route's cluster can be read again, or the route no longer needs it."""
        return route not in self._unreachable.get(cluster, ()) or route not in self._control.view.routes

    def _awaiting_start(self, source: str, routes: Mapping[str, ReadableRoute]) -> list[ReadableRoute]:
        view = self._control.view
        return [
            known
            for name, known in routes.items()
            if known.route.source == source and lacks_beginning(view, name, known.definition.spec.start)
        ]

    async def _record_start(self, known: ReadableRoute, client: ClusterClient) -> None:
        name, sizes = known.route.name, self._topics[known.route.source].sizes
        put = self._control.view.routes[name]
        starts = await beginning_of(client, put, {topic: sizes[topic] for topic in self._copied(known)})
        if unknown := not_known(starts):
            some = ", ".join(unknown[:3])
            self._report_incident(
                "route-begins-earlier", name,
                f"the end offsets of {len(unknown)} partitions are not known: no leader answers for {some}",
                "once they have a leader they are copied from their first record on; nothing is lost",
            )  # fmt: skip
        if self._known.get(name) is known:  # else it has just changed, and the next round records it
            await self._control.append(*starts)

    # -- loops -------------------------------------------------------------------------------------

    def refused(self, name: str) -> ConflictingRoutes | None:
        """The conflict that keeps the route from running; None: there is none."""
        return next((found for found in self._refused if name in found.names), None)

    def _prove(self, routes: Mapping[str, ReadableRoute]) -> set[asyncio.Task[None]]:
        etags, remote = {name: self._stamp(known) for name, known in routes.items()}, self._other_regions()
        known_beside = remote == self._proved_beside
        if (etags == self._proved and known_beside) or (
            self._proving is not None and not self._proving.done()
        ):
            return set()
        changed = {name for name, etag in etags.items() if not known_beside or self._proved.get(name) != etag}
        changed |= {name for found in self._refused for name in found.names}
        self._proving = asyncio.get_running_loop().create_task(
            self._prove_routes(routes, etags, changed, remote)
        )
        return {self._proving}

    def _stamp(self, known: ReadableRoute) -> str:
        """The subject of a proof: the route's definition, and the ids of its clusters."""
        route = known.route
        ids = self._ids.get(route.source, ""), self._ids.get(route.target, "")
        return f"{self._control.view.routes[route.name].etag} {ids}"

    async def _prove_routes(
        self,
        routes: Mapping[str, ReadableRoute],
        etags: dict[str, str],
        changed: Collection[str],
        remote: OtherRegions,
    ) -> None:
        beside = OtherRegions({**remote.ids, **self._ids}, remote.routes)
        own = [known.route for known in routes.values()]
        found = await asyncio.to_thread(conflicts, own, changed, beside)
        for refused in found:
            if refused not in self._refused:
                self._report_refused(refused, routes)
        self._refused, self._proved, self._proved_beside = found, etags, remote

    def _report_refused(self, refused: ConflictingRoutes, routes: Mapping[str, ReadableRoute]) -> None:
        for name in sorted(refused.names & routes.keys()):
            is_over = until_deposed(self._control, partial(self._runs, name, refused))
            self._report_incident("route-refused", name, refused.message, refused.remedy, is_over)

    def _runs(self, name: str, refused: ConflictingRoutes) -> bool:
        """Whether the conflict no longer keeps the route from running."""
        return refused not in self._refused or name not in self._control.view.routes
