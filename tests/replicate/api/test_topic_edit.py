"""Adding and removing one topic: the route changes by exactly that topic."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.problems import InvalidConfiguration
from app.definitions.registry import parse_route
from app.replicate.api.topic_edit import NoSuchEdit, with_topic, without_topic
from app.replicate.definition import RouteDefinition

TOPICS = ["orders", "orders.eu", "refunds", "a", "b.test"]
ENTRIES = [*TOPICS, "orders.*", ".*\\.test", "[ab].*"]


def route_with(topics: list[str], exclude: list[str] | None = None) -> RouteDefinition:
    return parse_route({
        "apiVersion": "switchyard/v1", "kind": "Route", "metadata": {"name": "mirror"},
        "spec": {"from": "east", "to": "west", "topics": topics, "exclude": exclude or []},
    })[0]  # fmt: skip


def copied(route: RouteDefinition) -> set[str]:
    found = route.route()
    return {topic for topic in TOPICS if found.destination(topic) is not None}


entries = st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=3, unique=True)


@given(entries, st.lists(st.sampled_from(ENTRIES), max_size=2, unique=True), st.sampled_from(TOPICS))
def test_an_edit_is_of_one_topic_only_and_doing_it_again_changes_nothing(
    topics: list[str], exclude: list[str], topic: str
) -> None:
    try:
        route = route_with(topics, exclude)
    except InvalidConfiguration:
        return  # it copies nothing
    for edit, there in ((with_topic, True), (without_topic, False)):
        with contextlib.suppress(NoSuchEdit, InvalidConfiguration):
            edited, done = edit(route, topic)
            assert copied(edited) == (copied(route) | {topic} if there else copied(route) - {topic})
            assert topic in done
            assert edit(edited, topic)[0] is edited


def test_the_answer_describes_the_change() -> None:
    route = route_with(["orders", "r.*"])

    assert with_topic(route, "a")[1] == "a: added to topics"
    assert with_topic(route, "refunds")[1] == "refunds is copied already"
    assert with_topic(route_with(["r.*"], ["refunds"]), "refunds")[1] == "refunds: taken out of exclude"
    assert without_topic(route, "refunds")[1] == "refunds: added to exclude"
    assert without_topic(route, "orders")[1] == "orders: taken out of topics"
    assert without_topic(route, "x")[1] == "x is not copied: no entry of topics matches it"


def test_an_edit_that_no_single_entry_can_make_is_refused_with_a_remedy() -> None:
    with pytest.raises(NoSuchEdit, match=r"excluded by '\.\*\\\.test'; change the definition"):
        with_topic(route_with(["orders"], [".*\\.test"]), "b.test")
    with pytest.raises(NoSuchEdit, match="delete the route, or pause it"):
        without_topic(route_with(["orders"]), "orders")
