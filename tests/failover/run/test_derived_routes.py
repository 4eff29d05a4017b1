"""Derived routes follow failover definitions; unreadable definitions and unknown clusters change nothing."""

from __future__ import annotations

import msgspec

from app.controllog.events import ALL, FailoverDeleted, Paused, RouteDeleted, RoutePut
from app.failover.topology import Layout
from app.replicate.definition import RouteDefinition
from tests.failover.run.region_fakes import SITES, FakeRegion, failover
from tests.web.runtime_fake import put_route, route

WEST = {
    "orders-east-to-west", "orders-west-to-west", "switchyard-east-to-west", "switchyard-east-to-west.events",
}  # fmt: skip


def routes(region: FakeRegion) -> dict[str, RoutePut]:
    return dict(region.log.view.routes)


async def test_routes_follow_a_definition_and_name_it_as_their_maker() -> None:
    west = FakeRegion("west", failover())

    await west.round()

    made = routes(west)
    assert set(made) == WEST
    assert {(put.made_by, put.actor) for put in made.values()} == {
        ("orders", "made by failover definition orders")
    }
    spec = RouteDefinition.from_wire(made["orders-east-to-west"].definition).spec
    assert (spec.source, spec.target, spec.topics) == ("east-regional", "west-aggregate", ("orders",))
    assert [e for e in await west.round(0.25) if isinstance(e, RoutePut)] == [], "nothing is written twice"


async def test_a_changed_definition_changes_only_the_routes_that_differ() -> None:
    west = FakeRegion("west", failover())
    await west.round()
    before = routes(west)
    west.log.apply(failover(topics=["orders", "refunds"]))
    await west.round()
    assert {name for name, put in routes(west).items() if put != before[name]} == {
        "orders-east-to-west", "orders-west-to-west",
    }  # fmt: skip
    west.log.apply(failover("east", "west", "north", topics=["orders", "refunds"]))
    await west.round()
    assert set(routes(west)) == WEST | {
        "orders-north-to-west", "switchyard-north-to-west", "switchyard-north-to-west.events",
    }  # fmt: skip


async def test_a_route_that_no_longer_follows_is_deleted_with_its_pause() -> None:
    by_hand = put_route(route("by-hand", "east-regional", "west-regional"))
    west = FakeRegion("west", failover(), by_hand)
    await west.round()
    west.log.apply(Paused(at_ms=0, key="orders-east-to-west", partition=ALL, paused=True, actor="me"))
    west.log.apply(FailoverDeleted(at_ms=0, key="failover:orders", actor="me"))
    events = await west.round()

    assert {event.key for event in events if isinstance(event, RouteDeleted)} == WEST
    assert set(routes(west)) == {"by-hand"}
    assert "orders-east-to-west" not in west.log.view.paused


async def test_a_users_own_route_is_never_overwritten() -> None:
    west = FakeRegion(
        "west", put_route(route("orders-east-to-west", "east-regional", "west-regional")), failover()
    )
    await west.round()
    await west.round()

    assert routes(west)["orders-east-to-west"].made_by == ""
    assert set(routes(west)) == WEST
    assert len(west.incidents) == 1
    assert "somebody defined a route so named; delete that route" in west.incidents[0]


async def test_a_change_by_hand_past_the_interface_is_put_back() -> None:
    west = FakeRegion("west", failover())
    await west.round()
    put = routes(west)["orders-east-to-west"]
    west.log.apply(msgspec.structs.replace(put, etag="other"))
    await west.round()

    assert routes(west)["orders-east-to-west"].etag == put.etag


async def test_a_definition_that_cannot_be_read_keeps_its_routes() -> None:
    west = FakeRegion("west", failover())
    await west.round()
    unreadable = msgspec.structs.replace(failover(), etag="new", definition={"kind": "Failover"})
    west.log.apply(unreadable)
    events = await west.round()
    assert not [event for event in events if isinstance(event, RouteDeleted)]
    new_leader = FakeRegion("west", *routes(west).values(), unreadable)  # it never read the valid definition
    await new_leader.round()

    assert set(routes(new_leader)) == WEST
    assert any("cannot be read" in incident for incident in new_leader.incidents)


async def test_a_leader_whose_configuration_lacks_a_cluster_leaves_its_routes_alone() -> None:
    west = FakeRegion("west", failover())
    await west.round()
    less = {name: site for name, site in SITES.items() if name != "east-regional"}
    west.failovers.layout = Layout("west", less, "west-regional")
    west.log.apply(failover(exclude=["refunds"]))
    await west.round()

    assert set(routes(west)) == WEST
    assert any(
        "region east has no cluster of tier regional; give each" in incident for incident in west.incidents
    )


async def test_a_region_that_is_not_named_makes_nothing() -> None:
    north = FakeRegion("north", failover())

    assert await north.round() == []
