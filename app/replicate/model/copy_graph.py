"""Proves that no set of accepted routes copies a record in a loop, whether its name stays or grows each time.

Clusters and topics are the nodes of a graph, and copies are its edges. The proof covers all possible topic
names, not only those of today. `TopicRename.origin` gives exactly the topics whose copies arrive at a route's
topics. If a route's own topics are among them, their copies could pass the route again, and a shortest
example exists. As in a topological sort, routes that nothing could pass again are removed first. Then routes
go that could be passed again only through removed ones. The routes that remain form a loop. A set of routes
without a loop stays without one when routes, topics or entries are removed.

Two names mean one cluster if their cluster ids are equal (`OtherRegions.ids`). Known routes of other regions
count too.

Two routes may write the same topic from different sources (an aggregate), but not from the same topic: each
record would arrive twice. Two topics must not have copies whose names collide in Kafka
(`app.kernel.topic_names`), because the second copy cannot be created. The check covers topics that routes
name. For other topics the destination's brokers refuse to create the second copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from app.kernel.topic_names import folded
from app.replicate.model.regular_language import Language, LanguageTable, TooComplicated
from app.replicate.model.route import Route

EXAMPLE = "orders"  # preferred as an example, because people understand it


@dataclass(frozen=True, slots=True)
class Loop:
    """The path on which a topic's copies would return to their source.

    Attributes:
        cluster, topic: Where the path begins.
        hops: For each copy, the route, and the cluster and topic that it copies to. The first route would
            copy the last topic again.
        remedy: What to change.
        same: Pairs of names on the path that mean one cluster.
    """

    cluster: str
    topic: str
    hops: tuple[tuple[str, str, str], ...]
    remedy: str
    same: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        path, name = f"{self.topic}: {self.cluster}", self.topic
        for route, cluster, topic in self.hops:
            path += f" -> {cluster}{f' as {topic}' if topic != name else ''} (route {route})"
            name = topic
        path += "" if name == self.topic else f" -> again route {self.hops[0][0]}"
        return "; ".join(
            [path, *(f"{first} and {second} are the same cluster" for first, second in self.same)]
        )


@dataclass(frozen=True, slots=True)
class OtherRegions:
    """Clusters and routes beyond this region's routes.

    Attributes:
        ids: Kafka's cluster ids, by the cluster names in routes; an unknown id is missing.
        routes: Routes of other regions, under names that no route of this region has.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()

    def place(self, cluster: str) -> str:
        """A key of the cluster, equal for all names of the same cluster."""
        return self.ids.get(cluster) or cluster


ALONE = OtherRegions()


@dataclass(frozen=True, slots=True)
class DuplicateCopy:
    routes: tuple[str, str]
    source: tuple[str, str]
    target: tuple[str, str]

    def __str__(self) -> str:
        one, other = self.routes
        return (
            f"{self.source[1]}: routes {one} and {other} both copy it from {self.source[0]} to "
            f"{self.target[1]} in {self.target[0]}: every record would arrive twice"
        )

    @property
    def remedy(self) -> str:
        return f"exclude it in route {self.routes[0]} or {self.routes[1]}"


@dataclass(frozen=True, slots=True)
class FoldedCopies:
    """Two copies in one cluster whose names collide in Kafka, each as its route and its name."""

    one: tuple[str, str]
    other: tuple[str, str]
    cluster: str

    def __str__(self) -> str:
        (first, copy), (second, twin) = self.one, self.other
        twin_shown = f"{twin} of route {second}" if first != second else twin
        return (
            f"its copy {copy} and {twin_shown} in {self.cluster} collide, because Kafka treats . and _ as "
            "equal in topic names; only one of them can be created"
        )

    @property
    def remedy(self) -> str:
        return "give one of them another name by rename.names, or exclude its topic"


def find_loop(
    routes: Sequence[Route],
    topics: Mapping[str, Collection[str]] | None = None,
    *,
    changed: Collection[str] | None = None,
    other_regions: OtherRegions = ALONE,
) -> Loop | None:
    """A loop that the routes make possible, or None if there can be none.

    `topics` are known topics by cluster. They only serve as examples; the proof covers unknown ones too.
    `changed` are the names of new or changed routes; the other routes are known to make no loop. A loop that
    passes only routes of other regions is returned too.

    Raises:
        TooComplicated: Neither can be proved; names the routes.
    """
    left = _on_cycles([*routes, *other_regions.routes], other_regions)
    unproved = [route for route in left if changed is None or route.name in changed]
    try:
        words = LanguageTable()
        domains = {route.name: route.domain(words) for route in left}
        while True:
            ways = []
            for route in unproved:
                found = _path_back(
                    words,
                    domains,
                    route,
                    left,
                    [*(topics or {}).get(route.source, ()), EXAMPLE],
                    other_regions,
                )
                if found:
                    ways.append(found)
                else:
                    left.remove(route)
            if not ways:
                return None
            if len(ways) == len(unproved) == len(left):
                return _loop(*min(ways, key=lambda found: len(found[0])), other_regions)
            unproved = list(left)
    except TooComplicated as error:
        names = ", ".join(route.name for route in left[:10])
        raise TooComplicated(f"it cannot be proved that no loop is possible among {names}: {error}") from None


def find_duplicate(routes: Sequence[Route], other_regions: OtherRegions = ALONE) -> DuplicateCopy | None:
    """Two routes that copy the same topic to the same topic, or None if there can be none.

    If two renames shift the same letters (`a{topic}` and `{topic}a`), it may report a duplicate that cannot
    happen. It does not look at routes of other regions.

    Raises:
        TooComplicated: It cannot be proved; names the routes.
    """
    between: dict[tuple[str, str], list[Route]] = defaultdict(list)
    for route in sorted(routes, key=lambda route: route.name):
        between[other_regions.place(route.source), other_regions.place(route.target)].append(route)
    for group in between.values():
        source, target = group[0].source, group[0].target
        copies: dict[tuple[str, str], str] = {}
        for topic in sorted({name for route in group for name in (*route.names, *route.rename.names)}):
            for route in group:
                copy = route.destination(topic)
                first = route.name if copy is None else copies.setdefault((topic, copy), route.name)
                if copy is not None and first != route.name:
                    return DuplicateCopy((first, route.name), (source, topic), (target, copy))
        for one, other in _overlapping([r for r in group if len(r.names) < len(set(r.topics))]):
            found = _both_copy(one, other)
            if found is not None:
                return DuplicateCopy((one.name, other.name), (source, found), (target, one.rename(found)))
    return None


def find_folded(
    copies: Iterable[tuple[Route, Iterable[str]]], other_regions: OtherRegions = ALONE
) -> Iterator[FoldedCopies]:
    """Yields each copy whose name collides with an earlier one. `copies`: routes, and names of copies."""
    owners: dict[tuple[str, str], tuple[str, str]] = {}
    for route, names in copies:
        for copy in names:
            owned = route.name, copy
            first = owners.setdefault((other_regions.place(route.target), folded(copy)), owned)
            if first[1] != copy:
                yield FoldedCopies(owned, first, route.target)


def _overlapping(routes: Sequence[Route]) -> Iterator[tuple[Route, Route]]:
    """Pairs of routes whose patterns may share a topic; one question rules out most pairs together."""
    words = LanguageTable()
    earlier: list[tuple[Route, Language]] = []
    together = words.never
    for route in routes:
        pattern = route.patterns(words)
        if _may_meet(words, pattern, together):
            yield from (
                (earlier_route, route)
                for earlier_route, earlier_pattern in earlier
                if _may_meet(words, pattern, earlier_pattern)
            )
        earlier.append((route, pattern))
        together = words.either(together, pattern)


def _may_meet(words: LanguageTable, first: Language, second: Language) -> bool:
    words.next_question()
    try:
        return words.shortest(words.both(first, second)) is not None
    except TooComplicated:
        words.next_question()
        return True  # `_both_copy` decides


def _on_cycles(routes: Sequence[Route], other_regions: OtherRegions) -> list[Route]:
    """The routes that lie on a cycle of clusters, sorted by name; most sets of routes have none."""
    onward: dict[str, set[str]] = defaultdict(set)
    ends = {
        route.name: (other_regions.place(route.source), other_regions.place(route.target)) for route in routes
    }
    for source, target in ends.values():
        onward[source].add(target)

    def reached(cluster: str) -> set[str]:
        seen, line = {cluster}, [cluster]
        for at in line:
            new = onward[at] - seen if at in onward else set()
            seen |= new
            line += new
        return seen

    reach = {target: reached(target) for target in {target for _, target in ends.values()}}
    on_cycles = (route for route in routes if ends[route.name][0] in reach[ends[route.name][1]])
    return sorted(on_cycles, key=lambda route: route.name)


def _path_back(
    words: LanguageTable,
    domains: Mapping[str, Language],
    route: Route,
    routes: Sequence[Route],
    known: Collection[str],
    other_regions: OtherRegions,
) -> tuple[tuple[Route, ...], str] | None:
    """The shortest path from `route` back to itself, and a topic that would take it, best one of `known`."""
    words.next_question()
    reached: dict[str, Language] = defaultdict(lambda: words.never)  # by cluster: topics that arrive
    line: list[tuple[Language, tuple[Route, ...]]] = [(domains[route.name], ())]
    for arriving, way in line:  # grows while it is walked
        cluster = other_regions.place(way[0].source if way else route.source)
        for last in routes:
            # A path that passes another route twice contains a shorter loop, found from that route.
            if other_regions.place(last.target) != cluster or last in way:
                continue
            origins = words.both(domains[last.name], last.rename.origin(words, arriving))
            if last is route:
                shortest = words.shortest(origins)
                if shortest is not None:
                    return (last, *way), next((t for t in known if words.holds(origins, t)), shortest)
                continue
            at = other_regions.place(last.source)
            if words.shortest(words.both(origins, words.no(reached[at]))) is not None:
                reached[at] = words.either(reached[at], origins)
                line.append((origins, (last, *way)))
    return None


def _loop(path: Sequence[Route], topic: str, other_regions: OtherRegions) -> Loop:
    hops, name = [], topic
    for route in path:
        name = route.rename(name)
        hops.append((route.name, route.target, name))
    joints = zip(path, [*path[1:], path[0]], strict=True)
    same = {tuple(sorted((one.target, next_.source))) for one, next_ in joints if one.target != next_.source}
    return Loop(path[0].source, topic, tuple(hops), _remedy(path), tuple((a, b) for a, b in sorted(same)))


def _remedy(path: Sequence[Route]) -> str:
    """A change that breaks the loop: the next route excludes the topics that a renaming route writes."""
    offers = []
    for route, following in zip(path, [*path[1:], path[0]], strict=True):
        if route.rename.after != ("", ""):
            written = ".*".join(part.replace(".", r"\.") for part in route.rename.after)
            offers.append(f"exclude '{written}' in route {following.name}")
    if offers:
        return "; or ".join(offers)
    names = " or ".join(dict.fromkeys(route.name for route in path))
    return f"exclude the topic in route {names}, or let one of them rename it"


def _both_copy(first: Route, second: Route) -> str | None:
    """A topic that expressions of both routes copy to the same name. Named topics are compared before."""
    try:
        words = LanguageTable()
        own = words.one_of({**first.rename.names, **second.rename.names})
        common = words.both(first.by_pattern(words), second.by_pattern(words), words.no(own))
        for first_piece, second_piece in product(_pieces(words, first), _pieces(words, second)):
            if first_piece.longer != second_piece.longer:
                continue  # copies of different length
            both = words.both(
                common, first_piece.names, second_piece.names,
                first.rename.origin(words, second_piece.shape),
                second.rename.origin(words, first_piece.shape),
            )  # fmt: skip
            found = words.shortest(both)
            if found is not None:
                return found
    except TooComplicated as error:
        raise TooComplicated(
            f"it cannot be proved that routes {first.name} and {second.name} never copy the same topic "
            f"twice: {error}"
        ) from None
    return None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Names that a rename changes alike: by how many letters they grow, and the form of their copies."""

    names: Language
    longer: int
    shape: Language


def _pieces(words: LanguageTable, route: Route) -> list[_Piece]:
    (before, after), fits = (route.rename.before, route.rename.after), route.rename.fits(words)
    shape = words.cat(words.literal(after[0]), words.some, words.literal(after[1]))
    return [
        _Piece(fits, len("".join(after)) - len("".join(before)), shape),
        _Piece(words.no(fits), 0, words.every),
    ]
