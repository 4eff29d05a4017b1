"""Accepted routes cannot loop, for present and for all possible topic names."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from app.replicate.model import regular_language
from app.replicate.model.copy_graph import OtherRegions, find_duplicate, find_loop
from app.replicate.model.regular_language import TooComplicated
from app.replicate.model.route import Route, TopicRename
from tests.replicate.model.route_oracle import CLUSTERS, SHORT, copies, goes_round, routes, sets_of_routes

SOURCE_TOPIC = "{cluster}.{topic}"


def route(
    name: str, source: str, target: str, *topics: str, exclude: tuple[str, ...] = (), to: str = "{topic}"
) -> Route:
    return Route(name, source, target, topics or (".*",), exclude, TopicRename.of(after=to, cluster=source))


# -- whatever the routes ---------------------------------------------------------------------------


@given(sets_of_routes)
def test_no_record_loops_through_accepted_routes(chosen: tuple[Route, ...]) -> None:
    loop = find_loop(chosen)

    event("accepted" if loop is None else "refused")
    if loop is None:
        assert not [(c, t) for c in CLUSTERS for t in SHORT if goes_round(chosen, c, t)]


@given(sets_of_routes)
def test_a_refusal_names_a_topic_that_does_loop(chosen: tuple[Route, ...]) -> None:
    loop = find_loop(chosen)

    if loop is not None:
        by_name = {one.name: one for one in chosen}
        cluster, topic = loop.cluster, loop.topic
        for name, target, copy in loop.hops:
            one = by_name[name]
            assert one.source == cluster
            assert copies(one, topic)
            assert (target, copy) == (one.target, one.rename(topic))
            cluster, topic = target, copy
        again = by_name[loop.hops[0][0]]
        assert again.source == cluster
        assert copies(again, topic)


@given(sets_of_routes, st.data())
def test_removing_routes_or_topics_makes_no_loop(chosen: tuple[Route, ...], data: st.DataObject) -> None:
    if find_loop(chosen) is None:
        kept = [one for one in chosen if data.draw(st.booleans())]
        fewer = [
            Route(f"x{n}", one.source, one.target, one.topics[:1], (*one.exclude, "a.*"), one.rename)
            for n, one in enumerate(kept)
        ]
        assert find_loop(kept) is None
        assert find_loop(fewer) is None


@given(sets_of_routes, st.randoms(use_true_random=False))
def test_whether_there_is_a_loop_does_not_depend_on_order_nor_on_how_much_was_known(
    chosen: tuple[Route, ...], random: Random
) -> None:
    shuffled = list(chosen)
    random.shuffle(shuffled)

    assert (find_loop(shuffled) is None) == (find_loop(chosen) is None)
    if find_loop(chosen[:-1]) is None:
        only = find_loop(chosen, changed=[chosen[-1].name])
        assert (only is None) == (find_loop(chosen) is None)


@given(routes("one"), routes("other"))
def test_routes_that_are_accepted_copy_no_topic_twice(one: Route, other: Route) -> None:
    double = find_duplicate([one, other])

    if double is None and (one.source, one.target) == (other.source, other.target):
        for topic in SHORT:
            both = one.destination(topic), other.destination(topic)
            assert both[0] is None or both[0] != both[1]


# -- as people have them ---------------------------------------------------------------------------


def test_a_loop_is_spelled_out_though_no_topic_exists() -> None:
    loop = find_loop([route("a", "east", "west"), route("b", "west", "east")])

    assert str(loop) == "orders: east -> west (route a) -> east (route b)"


def test_a_loop_is_shown_by_a_topic_that_exists() -> None:
    pair = [route("a", "east", "west", "pay.*"), route("b", "west", "east", ".*s")]

    assert str(find_loop(pair)).startswith("pays: ")
    known = {"east": ["orders", "payments"], "west": []}
    assert str(find_loop(pair, known)) == "payments: east -> west (route a) -> east (route b)"


def test_names_that_grow_with_each_round_are_a_loop_too() -> None:
    loop = find_loop(
        [route("a", "east", "west", to=SOURCE_TOPIC), route("b", "west", "east", to=SOURCE_TOPIC)]
    )

    assert str(loop) == (
        "orders: east -> west as east.orders (route a) -> east as west.east.orders (route b) -> again route a"
    )
    assert loop is not None
    assert loop.remedy == r"exclude 'east\..*' in route b; or exclude 'west\..*' in route a"


@pytest.mark.parametrize("excluding", ["a", "b"])
def test_routes_changed_by_the_remedy_are_accepted(excluding: str) -> None:
    excluded = {"a": (r"west\..*",), "b": (r"east\..*",)}
    pair = [
        route(name, *ends, exclude=excluded[name] if name == excluding else (), to=SOURCE_TOPIC)
        for name, ends in (("a", ("east", "west")), ("b", ("west", "east")))
    ]

    assert find_loop(pair) is None


def test_a_full_mesh_like_mirrormakers_is_accepted_and_one_hole_in_it_is_found() -> None:
    clusters = ["east", "west", "north", "south"]
    mesh = {
        (one, other): route(f"{one}-{other}", one, other, exclude=(rf"(.*\.)?{other}\..*",), to=SOURCE_TOPIC)
        for one, other in permutations(clusters, 2)
    }
    assert find_loop(list(mesh.values())) is None

    direct = [one.name for one in mesh.values()]
    holes = {ends: route(f"{ends[0]}-{ends[1]}", *ends, to=SOURCE_TOPIC) for ends in mesh}
    assert find_loop(list(holes.values()), changed=direct[:1]) is not None


def test_an_aggregate_of_many_is_no_loop_and_no_duplicate() -> None:
    many = [route(region, f"{region}-regional", "aggregate") for region in ("east", "west", "north")]
    onward = route("on", "aggregate", "archive")

    assert find_loop([*many, onward]) is None
    assert find_duplicate([*many, onward]) is None


def test_ways_that_part_and_meet_again_are_no_loop() -> None:
    diamond = [route("1", "a", "b"), route("2", "a", "c"), route("3", "b", "d"), route("4", "c", "d")]

    assert find_loop(diamond) is None


def test_a_copy_that_comes_back_and_goes_no_further_is_no_loop() -> None:
    back = route("back", "west", "east")
    there = route("there", "east", "west", "orders", to=SOURCE_TOPIC)  # comes back as east.orders

    assert find_loop([there, back]) is None
    assert find_loop([there, back], changed=["there"]) is None
    assert find_loop([route("again", "east", "west", "east.orders"), there, back]) is not None


@pytest.mark.parametrize(
    ("one", "loops"),
    [(route("self", "east", "east"), True),
     (route("self", "east", "east", to="copy.{topic}"), True),
     (route("self", "east", "east", exclude=(r"copy\..*",), to="copy.{topic}"), False),
     (route("self", "east", "east", "orders", to="copy.{topic}"), False)],
)  # fmt: skip
def test_a_route_within_one_cluster_must_never_meet_its_own_copies(one: Route, loops: bool) -> None:
    assert (find_loop([one]) is not None) == loops


def test_a_loop_of_one_named_topic_is_found_among_many() -> None:
    there = route("there", "east", "west", *(f"orders-{n}" for n in range(300)))
    back = route("back", "west", "east", *(f"refunds-{n}" for n in range(300)))

    assert find_loop([there, back]) is None
    closing = route("closing", "west", "east", "orders-77")
    assert (
        str(find_loop([there, back, closing]))
        == "orders-77: west -> east (route closing) -> west (route there)"
    )


def test_the_same_topic_twice_under_the_same_name_is_refused_in_words() -> None:
    double = find_duplicate([route("a", "east", "west", "o.*"), route("b", "east", "west", "orders")])

    assert str(double) == (
        "orders: routes a and b both copy it from east to orders in west: every record would arrive twice"
    )


@pytest.mark.parametrize(
    "other",
    [route("b", "east", "west", "o.*", to=SOURCE_TOPIC), route("b", "east", "north", "o.*"),
     route("b", "north", "west", "o.*"), route("b", "east", "west", ".*", exclude=("o.*",))],
)  # fmt: skip
def test_another_name_another_source_or_another_topic_is_no_duplicate(other: Route) -> None:
    assert find_duplicate([route("a", "east", "west", "o.*"), other]) is None


def test_routes_that_cannot_be_proved_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_language, "MAX_WORK", 50_000)
    there, back = route("there", "east", "west", "(.*a.{12})"), route("back", "west", "east", "(.*b.{12})")

    with pytest.raises(TooComplicated, match="among back, there"):
        find_loop([there, back])
    with pytest.raises(TooComplicated, match="there and too"):
        find_duplicate([there, route("too", "east", "west", "(.*b.{12})")])


# -- clusters by their ids, and routes of other regions ----------------------------------------------


@given(sets_of_routes, st.data())
def test_neither_another_name_of_a_cluster_nor_another_region_hides_a_loop(
    chosen: tuple[Route, ...], data: st.DataObject
) -> None:
    called = [f"{cluster}{n}" for cluster in CLUSTERS for n in ("", "-too")]
    ids = {name: name.removesuffix("-too").upper() for name in called}
    alias = st.sampled_from(["", "-too"])
    here, remote = [], []
    for one in chosen:
        renamed = replace(one, source=one.source + data.draw(alias), target=one.target + data.draw(alias))
        (here if data.draw(st.booleans()) else remote).append(renamed)
    loop = find_loop(here, other_regions=OtherRegions(ids, tuple(remote)))
    event("accepted" if loop is None else "refused")
    assert (loop is None) == (find_loop(chosen) is None)
    if loop is not None:
        by_name = {one.name: one for one in (*here, *remote)}
        assert ids[loop.cluster] == ids[loop.hops[-1][1]], "the path returns to its start"
        assert all(ids[one] == ids[other] and one != other for one, other in loop.same)
        assert all(by_name[name].target == target for name, target, _ in loop.hops)


def test_two_names_of_a_cluster_are_reported_as_one_cluster() -> None:
    there, back = route("there", "east", "west", "orders"), route("back", "west", "east-vip", "orders")
    assert find_loop([there, back]) is None, "nothing shows that they are one cluster"
    beside = OtherRegions({"east": "X", "east-vip": "X", "west": "Y"})
    assert str(find_loop([there, back], other_regions=beside)) == (
        "orders: west -> east-vip (route back) -> west (route there); east and east-vip are the same cluster"
    )
    again = route("again", "east-vip", "west", "orders")
    assert find_duplicate([there, again]) is None
    assert str(find_duplicate([there, again], beside)).startswith("orders: routes again and there both copy")
    assert find_loop([route("in-place", "east", "east-vip")], other_regions=beside) is not None


def test_a_loop_among_other_regions_alone_is_not_a_changed_routes() -> None:
    others = route("x", "east", "west"), route("y", "west", "east")
    mine = route("mine", "north", "east", "orders")
    assert find_loop([mine], changed=["mine"], other_regions=OtherRegions({}, others)) is None
    assert find_loop([mine], other_regions=OtherRegions({}, others)) is not None
