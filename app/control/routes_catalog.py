"""Which partitions routes copy, and their destination topics, which the leader makes fit.

    definitions -> topics of the source (one request a cluster) -> copies -> plan of each destination topic
                -> created, expanded, configured -> fit: its partitions are jobs

Rules
1. What cannot be known now never ends a job: one that is assigned stays while its cluster is away, or its
   destination topic is not fit (any more). It ends when the route no longer copies the topic, or the topic is
   gone for good (`app.control.cluster_topics`).
2. A destination topic is planned with all topics that are copied to it, by whichever routes, and touched as
   far as all of them allow. While not all of its sources are known, nothing of it is made as at the source.
3. What cannot be done for a topic is told once, costs that topic alone, and is tried again.
4. Nobody waits for a cluster: reading and changing go on beside the rounds.
5. Routes that together would loop or copy twice were deployed at the same moment, past the check of each:
   none of them runs until one is changed. Until a new set of routes is proved, what is new does not begin.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import structlog
from aiokafka.errors import KafkaError

from app.config.route import RouteDefinition
from app.control.beginning import Trouble
from app.control.cluster_topics import ClusterTopics
from app.control.data_clusters import DataClusters
from app.control.definitions import Parsed
from app.control.log import ControlLog
from app.control.route_targets import Targets
from app.core.job import Kind
from app.core.placement_round import is_gone
from app.core.route import Route
from app.core.routes_expressions import is_name
from app.core.routes_graph import find_duplicate, find_loop
from app.core.routes_words import TooComplicated
from app.kafka.clusters import ClusterUnreachable

log = structlog.get_logger(__name__)

REFRESH_S = 2.0
PATIENCE_S = 0.25  # a round's, with clusters that answered in time before
PREFIX = f"{Kind.REPLICATE.value}:"
MAX_TOLD = 100  # topics of a route that are not copied: why takes a moment for each
BUSY_SHARE = 20  # what takes long to read is read rarely: a twentieth of the time


class Known(NamedTuple):
    """A route that can be read."""

    definition: RouteDefinition
    route: Route


class _Copies(NamedTuple):
    """What a route makes of all topics there were when `ClusterTopics.names` was this."""

    route: Route
    names: int
    asked: dict[str, str | None]
    copied: dict[str, str]


class Refused(NamedTuple):
    """Routes that must not run together, and why."""

    names: frozenset[str]
    message: str
    remedy: str


class Told(NamedTuple):
    """What is known of a route's topics, and when that was read (monotonic seconds); `others` is how many the
    source has that the route does not mean."""

    topics: list[dict[str, Any]]
    others: int
    read_at_s: float


class RoutesCatalog:
    """See the module. Only `definition` and `route` are of use where the rounds are not made."""

    def __init__(
        self,
        control: ControlLog,
        clusters: DataClusters,
        on_trouble: Trouble,
    ) -> None:
        self._control = control
        self._clusters = clusters
        self._on_trouble = on_trouble
        self._known = Parsed(lambda: control.view.routes, _parsed, self._unread)
        self._topics: defaultdict[str, ClusterTopics] = defaultdict(ClusterTopics)
        self._copies: dict[str, _Copies] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._late: set[str] = set()
        self._term = 0
        self._proving: asyncio.Task[None] | None = None
        self._proved: dict[str, str] = {}  # the etags of the last set that was looked at
        self._refused: list[Refused] = []
        self._away: dict[str, frozenset[str]] = {}  # clusters that cannot be read, and of whom that was told
        self.targets = Targets(self._topics, clusters, on_trouble)

    def definition(self, name: str) -> RouteDefinition | None:
        """As it stands in the control log, parsed once a change."""
        known = self._known.get(name)
        return None if known is None else known.definition

    def route(self, name: str) -> Route | None:
        """What it copies, and under which names."""
        known = self._known.get(name)
        return None if known is None else known.route

    # -- the leader's rounds -----------------------------------------------------------------------

    async def refresh(self) -> None:
        """Reads what is old, and sees to the destination topics; waits `PATIENCE_S` at most."""
        view = self._control.view
        routes = {name: known for name in list(view.routes) if (known := self._known.get(name)) is not None}
        self._copies = {name: self._copies[name] for name in self._copies.keys() & routes.keys()}
        if view.term != self._term:  # what was known when this worker led before may be old
            self._term = view.term
            self._topics.clear()
            self.targets.forget()
        if not routes and not self._topics:
            return
        began_s = time.monotonic()
        awaited = self._prove(routes)
        awaited |= self._look(routes, began_s)
        if awaited:
            _, late = await asyncio.wait(awaited, timeout=PATIENCE_S)
            self._late |= {name for name, task in self._looking.items() if task in late}
        running = {name: known for name, known in routes.items() if self.refused(name) is None}
        planning = self.targets.look(
            {name: (known.definition, self._copied(known)) for name, known in running.items()},
            {known.route.target for known in routes.values() if not self._topics[known.route.source].listed},
        )
        if planning is not None:
            await asyncio.wait([planning], timeout=max(0.0, began_s + PATIENCE_S - time.monotonic()))

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

    def _jobs_of(self, known: Known, held: Mapping[str, list[str]]) -> Iterator[str]:
        route, topics = known.route, self._topics.get(known.route.source)
        if topics is None or not topics.listed:
            yield from (job for topic, jobs in held.items() if route.destination(topic) for job in jobs)
            return
        is_new = self._proved.get(route.name) != self._control.view.routes[route.name].etag
        for topic, copy in self._copied(known).items():
            count, prefix = topics.sizes[topic], f"{PREFIX}{route.name}:{topic}:"
            fit = 0 if is_new else min(count, self.targets.fit((route.target, copy)))
            for partition in range(fit):
                yield f"{prefix}{partition}"
            if fit < count and topic in held:
                yield from (job for job in held[topic] if int(job.removeprefix(prefix)) < count)

    def _copied(self, known: Known) -> Mapping[str, str]:
        """The topics of the source that the route copies, and their copies' names; the same object while
        nothing changed."""
        name, topics = known.route.name, self._topics[known.route.source]
        before = self._copies.get(name)
        if before is None or before.route is not known.route:
            before = _Copies(known.route, -1, {}, {})
        if before.names != topics.names:
            asked = before.asked
            found = {
                topic: asked[topic] if topic in asked else known.route.destination(topic)
                for topic in topics.sizes
            }
            copied = {topic: copy for topic, copy in found.items() if copy is not None}
            before = self._copies[name] = _Copies(known.route, topics.names, found, copied)
        return before.copied

    def told(self, name: str) -> Told | None:
        """What becomes of each topic that the route means, those it copies first; None: that is not known."""
        known = self._known.get(name)
        topics = None if known is None else self._topics.get(known.route.source)
        if known is None or topics is None or not topics.listed:
            return None
        route, copied = known.route, self._copied(known)
        refused, there = self.refused(name), self._topics.get(route.target)
        shown = []
        for topic, copy in sorted(copied.items()):
            state, why = self.targets.told((route.target, copy))
            if refused is not None:
                state, why = "refused", f"{refused.message}; {refused.remedy}"
            shown.append({
                "topic": topic, "partitions": topics.sizes[topic], "copy": copy, "state": state, "why": why,
                "copy_partitions": None if there is None else there.sizes.get(copy),
            })  # fmt: skip
        meant = sorted(topic for topic in topics.sizes if topic not in copied and route.means(topic))
        shown += [
            {"topic": topic, "partitions": topics.sizes[topic], "copy": None, "copy_partitions": None,
             "state": "not-copied", "why": route.why_not(topic) or ""}
            for topic in meant[:MAX_TOLD]
        ]  # fmt: skip
        return Told(shown, len(topics.sizes) - len(copied) - len(meant), topics.listed_at_s)

    # -- clusters ----------------------------------------------------------------------------------

    def _look(self, routes: Mapping[str, Known], now_s: float) -> set[asyncio.Task[None]]:
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
            pause_s = max(REFRESH_S, BUSY_SHARE * topics.took_s)
            relist = now_s - topics.listed_at_s >= pause_s or not topics.knows(*of)
            # What is there and not described yet must not wait for the next turn.
            if cluster not in self._looking and (relist or topics.stale or topics.lacks(of)):
                look = self._read(cluster, names, routes, relist=relist)
                task = asyncio.get_running_loop().create_task(look)
                self._looking[cluster] = task
                if cluster not in self._late:
                    awaited.add(task)
        return awaited

    def _described(self, cluster: str, routes: Mapping[str, Known]) -> set[str]:
        """The topics of `cluster` whose settings matter."""
        found = set(self.targets.of(cluster))
        for known in routes.values():
            if known.route.source == cluster:
                found.update(self._copied(known))
        return found

    async def _read(
        self, cluster: str, names: Collection[str] | None, routes: Mapping[str, Known], *, relist: bool
    ) -> None:
        topics = self._topics[cluster]
        try:
            if cluster not in self._clusters.specs:
                raise ClusterUnreachable(
                    "it is not in this worker's configuration; add it to switchyard.yaml"
                )
            client = (await self._clusters.get(cluster)).client
            began_s = time.monotonic()
            described = partial(self._described, cluster, routes)
            await topics.look(client, names, described, began_s, relist=relist)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as error:
            of = frozenset(n for n, k in routes.items() if cluster in {k.route.source, k.route.target})
            for name in sorted(of - self._away.get(cluster, frozenset())):
                self._on_trouble(
                    "route-trouble", name, f"cluster {cluster} cannot be read: {error}",
                    "what is copied goes on with what is known; new topics wait until it answers",
                )  # fmt: skip
            self._away[cluster] = of
            await asyncio.sleep(REFRESH_S)
        except Exception:
            log.exception("the topics of a cluster could not be read and are read again", cluster=cluster)
            await asyncio.sleep(REFRESH_S)
        else:
            self._away.pop(cluster, None)
            if time.monotonic() - began_s < PATIENCE_S:
                self._late.discard(cluster)

    # -- loops -------------------------------------------------------------------------------------

    def refused(self, name: str) -> Refused | None:
        """Why the route does not run beside the others; None: it does."""
        return next((found for found in self._refused if name in found.names), None)

    def _prove(self, routes: Mapping[str, Known]) -> set[asyncio.Task[None]]:
        etags = {name: self._control.view.routes[name].etag for name in routes}
        if etags == self._proved or (self._proving is not None and not self._proving.done()):
            return set()
        changed = {name for name, etag in etags.items() if self._proved.get(name) != etag}
        changed |= {name for found in self._refused for name in found.names}
        self._proving = asyncio.get_running_loop().create_task(self._prove_them(routes, etags, changed))
        return {self._proving}

    async def _prove_them(
        self, routes: Mapping[str, Known], etags: dict[str, str], changed: Collection[str]
    ) -> None:
        found = await asyncio.to_thread(_conflicts, [known.route for known in routes.values()], changed)
        for refused in found:
            for name in sorted(refused.names if refused not in self._refused else ()):
                self._on_trouble("route-refused", name, refused.message, refused.remedy)
        self._refused, self._proved = found, etags

    def _unread(self, name: str, why: str) -> None:
        self._on_trouble("route-trouble", name, why, "deploy it again")


def _parsed(name: str, definition: Mapping[str, Any]) -> Known:
    """Raises ValueError: it is another route's, or cannot be understood."""
    found = RouteDefinition.from_wire(definition)
    if found.key != name:
        raise ValueError(f"it is of {found.key!r}, and stands under {name!r}")
    return Known(found, found.route())


def _conflicts(routes: list[Route], changed: Collection[str]) -> list[Refused]:
    """Sets of routes that must not run together."""
    found: list[Refused] = []
    left = list(routes)
    try:
        while True:
            if loop := find_loop(left, changed=changed):
                names = frozenset(name for name, _, _ in loop.hops)
                found.append(Refused(names, f"would loop: {loop}", loop.remedy))
            elif double := find_duplicate(left):
                names = frozenset(double.routes)
                found.append(Refused(names, f"would copy twice: {double}", double.remedy))
            else:
                return found
            left = [route for route in left if route.name not in names]
    except TooComplicated as error:  # it was proved when it was deployed, by a version that could
        log.warning("it cannot be proved that routes do not loop", error=str(error))
        return found
