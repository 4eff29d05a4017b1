"""An oracle for routes with another engine, RE2 and plain loops, to check the model's proofs and tables."""

from __future__ import annotations

from itertools import product

import re2  # type: ignore[import-untyped]
from hypothesis import strategies as st

from app.replicate.model.name_patterns import is_name
from app.replicate.model.route import INTERNAL, Route, TopicRename, is_topic

CLUSTERS = "abc"  # their names are letters of the topics, so that prefixes and topics meet
SHORT = ["".join(word) for length in range(1, 4) for word in product("ab.", repeat=length)]

atoms = st.sampled_from(["a", "b", "c", r"\.", ".", "[ab]", "[^a]", r"\w", "[.a-b]", ".*", "(a|b.)"])
expressions = st.recursive(
    st.lists(atoms, min_size=1, max_size=3).map("".join),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
        st.tuples(inner, inner).map("".join),
    ),
    max_leaves=4,
).map(lambda text: f"({text})" if is_name(text) else text)
templates = st.sampled_from(
    ["{topic}", "{cluster}.{topic}", "a{topic}", "{topic}b", "a.{topic}.b", "b.{topic}"]
)
names = st.sampled_from(SHORT[:40])
entries = st.one_of(expressions, names, st.just(".*"))


@st.composite
def routes(draw: st.DrawFn, name: str = "r") -> Route:
    source = draw(st.sampled_from(CLUSTERS))
    rename = TopicRename.of(
        draw(templates), draw(templates), draw(st.dictionaries(names, names, max_size=2)), cluster=source
    )
    return Route(
        name,
        source,
        draw(st.sampled_from(CLUSTERS)),
        tuple(draw(st.lists(entries, min_size=1, max_size=2))),
        tuple(draw(st.lists(entries, max_size=2))),
        rename,
    )


sets_of_routes = st.integers(1, 4).flatmap(lambda n: st.tuples(*(routes(f"r{i}") for i in range(n))))


def means(entry: str, topic: str) -> bool:
    """Whether an entry matches a topic."""
    return topic == entry if is_name(entry) else re2.fullmatch(entry, topic) is not None


def copies(route: Route, topic: str) -> bool:
    """Whether the route copies the topic, by the documented rules."""
    if any(means(entry, topic) for entry in route.exclude):
        return False
    if topic in route.topics:
        return True
    internal = any(re2.fullmatch(entry, topic) for entry in INTERNAL)
    return not internal and any(means(entry, topic) for entry in route.topics)


def goes_round(routes: tuple[Route, ...], cluster: str, topic: str) -> bool:
    """Whether copies of the topic would be copied for ever.

    Without a loop no path is longer than 2 ** routes - 1. Remove the routes one by one: a path passes
    the first at most once, the second once before and once after it, and so on."""
    limit = 2 ** len(routes) - 1
    line = {(cluster, topic)}
    for _ in range(limit + 1):
        line = {
            (route.target, copy)
            for at, name in line
            for route in routes
            if route.source == at and copies(route, name) and is_topic(copy := route.rename(name))
        }
    return bool(line)
