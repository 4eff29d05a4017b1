"""Routes and clusters beyond a region's routes, and deployments that are checked against them."""

from __future__ import annotations

from typing import Any

import pytest

from app.definitions.plan import plan
from app.replicate.definition import RouteDefinition
from app.replicate.definition_checks import RemoteRoute, beside_of
from tests.web.runtime_fake import route

IDS = {"east": "E", "west": "W", "west-vip": "W", "north": ""}


def remote_route(source: str, target: str, *ids: str, name: str = "back") -> RemoteRoute:
    return RemoteRoute("west", route(name, source, target), *ids)


@pytest.mark.parametrize(
    ("source", "ids", "called"),
    [
        ("west", ("W", "E"), "west"),
        (
            "main",
            ("W", "E"),
            "west",
        ),  # the first local name of the cluster, whatever the other region calls it
        ("west", ("", "E"), "west"),  # its id is not known yet, so its name decides
        ("west", ("Z", "E"), "west/west"),  # the other region uses the name for another cluster
        ("main", ("", "E"), "west/main"),
        ("north", ("", "E"), "north"),
    ],
)
def test_clusters_are_known_by_their_ids_and_else_by_their_names(
    source: str, ids: tuple[str, str], called: str
) -> None:
    beside = beside_of(IDS, [remote_route(source, "other", *ids)])
    (found,) = beside.routes
    assert (found.name, found.source, found.target) == ("back of region west", called, "east")
    assert beside.ids == {"east": "E", "west": "W", "west-vip": "W"} | (
        {"west/west": "Z"} if called == "west/west" else {}
    )


def test_unreadable_routes_are_left_out() -> None:
    bad: list[dict[str, Any]] = [{}, {"spec": {}}, route("bad", "a", "b", "(")]
    assert beside_of(IDS, [RemoteRoute("west", one) for one in bad]).routes == ()


def test_a_deployment_that_would_loop_with_another_regions_route_is_refused_with_the_loop() -> None:
    wanted = [RouteDefinition.model_validate(route("there", "east", "west"))]
    assert plan({}, wanted).conflicts == ()
    beside = beside_of(IDS, [remote_route("west-there", "east", "W", "E")])
    (conflict,) = plan({}, wanted, other_regions=beside).conflicts
    assert conflict == (
        "there: would loop: orders: west -> east (route back of region west) -> west (route there); "
        "exclude the topic in route back of region west or there, or let one of them rename it"
    )
    known = {"there": wanted[0]}
    assert plan(known, wanted, other_regions=beside).conflicts == (), (
        "the route is deployed already; the leader checks it"
    )
