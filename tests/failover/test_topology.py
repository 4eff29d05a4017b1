"""Routes derived from regions: every pair of regions once, no loops, no record copied twice."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.controllog.topics import ControlTopics
from app.failover.topology import (
    AGGREGATE,
    REGIONAL,
    Failover,
    Layout,
    Site,
    control_route,
    data_route,
    derive,
    events_route,
    governing,
)
from app.replicate.model.copy_graph import find_duplicate, find_loop
from tests.examples import as_profile

NAMES = ("east", "west", "north", "south", "eu-1", "eu-1-to-eu-2")
some_regions = st.lists(st.sampled_from(NAMES), min_size=2, unique=True).map(tuple)
TOPICS = ("orders", r"payments\..*", r"audit-\d+", "refunds")


def layout_of(own: str, *, without: frozenset[str] = frozenset(), control: str = "") -> Layout:
    sites = {
        f"{region}-{tier}": Site(region, tier)
        for region, tier in product(NAMES, (REGIONAL, AGGREGATE))
        if f"{region}-{tier}" not in without
    }
    return Layout(own, sites, control or f"{own}-regional")


def control_topics(region: str) -> list[str]:
    return [topic.name for topic in ControlTopics(region).needed_by_other_regions]


def control_events(region: str) -> list[str]:
    return [topic.name for topic in ControlTopics(region).followed_by_other_regions]


@given(some_regions)
def test_of_every_pair_of_regions_exactly_one_has_the_route(regions: tuple[str, ...]) -> None:
    failover = Failover("orders", regions, ("orders", r"payments\..*"))
    routes_of = {
        own: derive([failover], layout_of(own), control_topics, control_events).routes for own in NAMES
    }

    data = Counter(
        (r.region, own) for own, routes in routes_of.items() for r in routes.values() if not r.is_control
    )
    control = Counter(
        (r.region, own, r.from_end)
        for own, routes in routes_of.items()
        for r in routes.values()
        if r.is_control
    )
    others = [(one, other) for one, other in product(regions, regions) if one != other]
    assert data == Counter(product(regions, regions))
    assert control == Counter((*pair, from_end) for pair in others for from_end in (False, True))
    for own, routes in routes_of.items():
        for route in routes.values():
            tier = REGIONAL if route.is_control else AGGREGATE
            assert (route.source, route.target) == (f"{route.region}-regional", f"{own}-{tier}")


@settings(max_examples=as_profile(20))  # each example checks up to a hundred routes
@given(st.lists(st.tuples(some_regions, st.sampled_from(TOPICS)), min_size=1, max_size=len(TOPICS),
                unique_by=lambda pair: pair[1]))  # fmt: skip
def test_all_routes_of_all_regions_make_no_loop_and_copy_nothing_twice(
    shared: list[tuple[tuple[str, ...], str]],
) -> None:
    failovers = [Failover(f"f{n}", regions, (topic,)) for n, (regions, topic) in enumerate(shared)]
    everywhere = [
        route.route()
        for own in NAMES
        for route in derive(failovers, layout_of(own), control_topics, control_events).routes.values()
    ]

    assert len({route.name for route in everywhere}) == len(everywhere)
    assert find_loop(everywhere) is None
    assert find_duplicate(everywhere) is None


@given(st.lists(some_regions, min_size=1, max_size=4))
def test_control_topics_are_copied_once_however_many_definitions_name_the_regions(
    all_regions: list[tuple[str, ...]],
) -> None:
    failovers = [Failover(f"f{n}", regions, (f"t{n}",)) for n, regions in enumerate(all_regions)]
    routes = derive(failovers, layout_of("east"), control_topics, control_events).routes
    others = {region for regions in all_regions if "east" in regions for region in regions} - {"east"}

    assert {name for name, route in routes.items() if route.is_control} == {
        name for region in others for name in (control_route(region, "east"), events_route(region, "east"))
    }
    for found in routes.values():
        if found.is_control:
            topics = (control_events if found.from_end else control_topics)(found.region)
            assert found.topics == tuple(topics)
            assert [found.route().destination(topic) for topic in topics] == topics


def test_the_log_positions_and_offset_map_of_a_lost_region_are_copied() -> None:
    failover = Failover("orders", ("east", "west"), ("orders",))
    routes = derive([failover], layout_of("west"), control_topics, control_events).routes
    tables, events = (routes[name("east", "west")].topics for name in (control_route, events_route))

    assert tables == (
        "switchyard-east-control", "switchyard-east-checkpoints-changelog",
        "switchyard-east-trackers-changelog",
    )  # fmt: skip
    assert events == ("switchyard-east-trackers", "switchyard-east-checkpoints")
    assert {*tables, *events} <= {topic.name for topic in ControlTopics("east").all()}


words = st.text("ab-.", min_size=1, max_size=6) | st.sampled_from(("to", "-to-", "events", ".events"))
region_names = st.lists(words, min_size=1, max_size=4).map("".join).filter(lambda name: name[0] not in "-.")


@given(region_names, region_names, region_names)
def test_no_two_routes_of_a_region_have_one_name_whatever_regions_are_called(
    own: str, one: str, other: str
) -> None:
    assert control_route(one, own) != events_route(other, own)
    assert (events_route(one, own) == events_route(other, own)) == (one == other)


def test_a_control_cluster_of_its_own_gets_the_control_topics() -> None:
    regions = layout_of("west", control="west-other")
    routes = derive(
        [Failover("orders", ("east", "west"), ("orders",))], regions, control_topics, control_events
    ).routes

    assert routes[control_route("east", "west")].target == "west-other"


def test_a_cluster_that_is_not_configured_here_leaves_a_name_and_the_reason() -> None:
    regions = layout_of("west", without=frozenset({"east-regional"}))
    found = derive(
        [Failover("orders", ("east", "west"), ("orders",))], regions, control_topics, control_events
    )

    assert set(found.routes) == {data_route("orders", "west", "west")}
    made_by, why = found.unknown[data_route("orders", "east", "west")]
    assert (made_by, control_route("east", "west") in found.unknown) == ("orders", True)
    assert why.startswith("region east has no cluster of tier regional; give each region one")


def test_a_region_that_is_not_named_has_no_routes() -> None:
    found = derive(
        [Failover("orders", ("east", "west"), ("orders",))],
        layout_of("north"),
        control_topics,
        control_events,
    )

    assert (found.routes, found.unknown) == ({}, {})


def test_a_region_reads_its_own_cluster_of_the_same_tier() -> None:
    west = layout_of("west")

    assert west.local("east-aggregate") == west.local("west-aggregate") == "west-aggregate"
    assert west.local("east-regional") == "west-regional"
    with pytest.raises(LookupError, match=r"is not configured here; add it"):
        west.local("mars-aggregate")
    two = Layout("west", {**west.sites, "second": Site("west", AGGREGATE)}, "west-regional")
    with pytest.raises(LookupError, match=r"has 2 clusters of tier aggregate \(second, west-aggregate\)"):
        two.local("east-aggregate")


def test_the_first_definition_by_name_that_shares_a_topic_governs_it() -> None:
    one = Failover("b", ("east", "west"), ("orders",))
    other = Failover("a", ("north", "south"), (r"orders.*",), exclude=("orders",))

    assert governing([one, other], "orders") is one
    assert governing([one, other], "orders.eu") is other
    assert governing([one, other], "refunds") is None
