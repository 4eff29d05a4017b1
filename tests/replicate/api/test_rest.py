"""Routes over the REST API: defined, changed topic by topic, paused, shown; never two that would loop."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.controllog.codec import CopyingStatus, JobStatus
from app.controllog.events import ALL, Paused, Released, RouteDeleted, RoutePut, StartRecorded
from app.placement.model.round import GONE
from tests.web.client import Console
from tests.web.runtime_fake import FakeRuntime, assigned, beat, copying, flowing, put_route, route, serving

PATH = "/api/v1/routes/mirror"


def listed(fed: FakeRuntime, cluster: str, **sizes: int) -> None:
    """Sets the leader's list of topics."""
    topics = fed.catalog.routes._topics[cluster]
    topics.update_sizes({name.replace("_", "."): count for name, count in sizes.items()}, 0.0)
    topics.listed_at_s = time.monotonic()


def test_a_route_is_created_changed_and_deleted_each_by_one_event(console: Console) -> None:
    created = console.ask("PUT", PATH, route())
    assert created.status == 201, created.text
    read = console.ask("GET", PATH)
    assert read.headers["ETag"] == created.headers["ETag"]
    assert read.json["definition"]["spec"]["from"] == "east"
    assert console.ask("PUT", PATH, route()).json["changed"] is False
    changed = console.ask("PUT", PATH, route(start="latest"), If_Match=read.headers["ETag"])
    assert changed.status == 200
    assert console.ask("PUT", PATH, route(), If_Match=read.headers["ETag"]).status == 412
    assert console.ask("PUT", PATH, route(), If_None_Match="*").status == 412
    assert console.ask("POST", f"{PATH}/pause").json == {"key": "mirror", "changed": True, "paused": True}
    assert console.ask("DELETE", PATH, If_Match=changed.headers["ETag"]).status == 200
    assert console.ask("GET", PATH).status == 404
    kinds = [type(event) for event in console.fed.control.appended]
    assert kinds == [RoutePut, RoutePut, Paused, RouteDeleted, Paused]


def test_of_two_changes_at_the_same_moment_the_later_one_changes_nothing(console: Console) -> None:
    etag = console.ask("PUT", PATH, route()).headers["ETag"]
    for method, path in (("PUT", PATH), ("PUT", f"{PATH}/topics/refunds"), ("DELETE", PATH)):
        theirs = put_route(route("mirror", "east", "west", "orders", f"other-{method}", path[-3:]))
        console.fed.control.meanwhile = [theirs]
        body = route(start="latest") if path == PATH and method == "PUT" else None
        assert console.ask(method, path, body, If_Match=etag).status == 412
        assert console.fed.control.view.routes["mirror"].etag == theirs.etag
        etag = console.ask("GET", PATH).headers["ETag"]


def test_a_loop_is_refused_with_the_loop_spelled_out_and_so_are_copies_that_come_twice(
    console: Console,
) -> None:
    console.ask("PUT", PATH, route())
    for dry_run in ("", "?dry_run=true"):
        loop = console.ask("PUT", f"/api/v1/routes/back{dry_run}", route("back", "west", "east"))
        assert loop.status == 409
        assert "would loop: orders: west -> east (route back) -> west (route mirror)" in loop.json["detail"]
    twice = console.ask("PUT", "/api/v1/routes/again", route("again"))
    assert twice.status == 409
    assert "every record would arrive twice; exclude it in route again or mirror" in twice.json["detail"]
    console.ask("PUT", "/api/v1/routes/back", route("back", "west", "east", "refunds"))
    edited = console.ask("PUT", f"{PATH}/topics/refunds")
    assert (edited.status, "would loop: refunds" in edited.json["detail"]) == (409, True)
    assert set(console.fed.control.view.routes) == {"mirror", "back"}


def test_an_unknown_cluster_is_refused_with_the_known_ones(console: Console) -> None:
    answer = console.ask("PUT", PATH, route("mirror", "nowhere-at-all", "west"))
    assert answer.status == 422
    (problem,) = answer.json["errors"]
    assert (problem["field"], problem["remedy"]) == ("spec.from", "known: east, west")


def test_adding_or_removing_a_topic_changes_one_entry_and_names_it(console: Console) -> None:
    console.ask("PUT", PATH, route("mirror", "east", "west", "orders", "pay.*"))
    foreseen = console.ask("PUT", f"{PATH}/topics/refunds?dry_run=true")
    assert (foreseen.json["done"], foreseen.json["dry_run"]) == ("refunds: added to topics", True)
    added = console.ask("PUT", f"{PATH}/topics/refunds", If_Match=console.ask("GET", PATH).headers["ETag"])
    assert (added.status, added.json["changed"]) == (200, True), added.text
    again = console.ask("PUT", f"{PATH}/topics/refunds")
    assert (again.json["changed"], again.json["done"]) == (False, "refunds is copied already")
    assert console.ask("DELETE", f"{PATH}/topics/payments").json["done"] == "payments: added to exclude"
    assert console.ask("DELETE", f"{PATH}/topics/orders").json["done"] == "orders: taken out of topics"
    spec = console.ask("GET", PATH).json["definition"]["spec"]
    assert (spec["topics"], spec["exclude"]) == (["pay.*", "refunds"], ["payments"])
    assert console.ask("PUT", f"{PATH}/topics/x", If_Match='"old"').status == 412
    assert console.ask("PUT", f"{PATH}/topics/a%20b").status == 400
    assert console.ask("PUT", "/api/v1/routes/none/topics/x").status == 404


def test_the_last_topic_is_not_removed(console: Console) -> None:
    console.ask("PUT", PATH, route())
    answer = console.ask("DELETE", f"{PATH}/topics/orders")
    assert (answer.status, "delete the route, or pause it" in answer.json["detail"]) == (409, True)


def test_pausing_and_resuming_are_events_of_all_of_the_route(console: Console) -> None:
    console.ask("PUT", PATH, route())
    assert console.ask("POST", f"{PATH}/pause").json["changed"]
    assert console.ask("GET", PATH).json["status"]["paused"]
    assert not console.ask("POST", f"{PATH}/pause").json["changed"]
    assert console.ask("POST", f"{PATH}/resume").json["changed"]
    assert not console.ask("GET", PATH).json["status"]["paused"]
    pauses = [event for event in console.fed.control.appended if isinstance(event, Paused)]
    assert {(event.key, event.partition) for event in pauses} == {("mirror", ALL)}


def test_lag_and_troubles_are_summed_and_what_ended_is_not_counted(console: Console) -> None:
    fed = console.fed
    gone = Released(at_ms=1, job=copying(0, "old"), worker=fed.worker, epoch=1, reason=f"{GONE}: excluded")
    fed.apply(put_route(route()), *(assigned(copying(p)) for p in (0, 1)), assigned(copying(0, "old")), gone)
    fed.observe(beat(flowing(copying(0)), flowing(copying(1), delivered=7, trouble="slow"), url=fed.url))
    (shown,) = console.ask("GET", "/api/v1/routes").json["items"]
    wanted = {"name": "mirror", "from": "east", "to": "west", "lag_messages": 60, "topics": 1, "copied": 7,
              "partitions": 2, "waiting": 0, "troubles": ["slow"]}  # fmt: skip
    assert {name: shown[name] for name in wanted} == wanted
    assert [p["job"] for p in console.ask("GET", PATH).json["partitions"]] == [copying(0), copying(1)]
    assert console.ask("GET", "/api/v1/overview").json["routes"] == [shown]
    (fleet,) = console.ask("GET", "/api/v1/sizing").json["fleets"]
    assert fleet["jobs"] == 2


def copying_job(**more: Any) -> JobStatus:
    """The status of a replica with a value in every field."""
    status = CopyingStatus(
        encoded=2,
        left_out=3,
        lost=5,
        lost_ms=7_000,
        compared=4,
        differing=1,
        uncompared=6,
        begun_anew=2,
        destination_losses=7,
        limited=True,
        rate=12.5,
        barrier=(10, 11, 1_000),
        **more,
    )
    return flowing(copying(0), delivered=8, copying=status)


def test_the_counts_of_copies_are_shown_by_partition_and_as_sums(console: Console) -> None:
    fed = console.fed
    fed.apply(put_route(route()), assigned(copying(0)), assigned(copying(1)))
    quiet = flowing(copying(1), delivered=2, copying=CopyingStatus(rate=2.5))
    fed.observe(beat(copying_job(halted="a gap", stuck=(10, 12)), quiet, url=fed.url))
    body = console.ask("GET", PATH).json
    sums = {"verbatim": 8, "encoded": 2, "left_out": 3, "lost": 5, "compared": 4, "differing": 1,
            "uncompared": 6, "begun_anew": 2, "destination_losses": 7,
            "limited": 1, "rate": 15.0, "halted": 1, "stuck": 1, "lost_ms": 7_000}  # fmt: skip
    assert {name: body["status"][name] for name in sums} == sums
    first, second = body["partitions"]
    assert (first["halted"], first["stuck"], first["verbatim"], first["rate"]) == ("a gap", [10, 12], 6, 12.5)
    assert first["barrier"] == {"source_end": 10, "target_end": 11, "at_ms": 1_000}
    assert (first["lost"], first["lost_ms"], second["lost"], second["lost_ms"]) == (5, 7_000, 0, None)
    assert (second["halted"], second["stuck"], second["barrier"]) == ("", None, None)
    fed.observe(beat(copying_job(), flowing(copying(1)), url=fed.url))
    assert console.ask("GET", PATH).json["status"]["rate"] == 12.5, (
        "a partition without a report adds nothing"
    )


def test_metrics_have_the_counts_of_copies(console: Console) -> None:
    fed = console.fed
    fed.apply(put_route(route()), assigned(copying(0)))
    fed.leader.leads = False
    fed.observe(beat(copying_job(halted="a gap", stuck=(10, 12)), url=fed.url))
    lines = console.metrics().splitlines()
    found = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines if 'route="mirror"' in line}
    wanted = {"halted": "1.0", "stuck_messages": "2.0", "limited": "1.0", "encoded_messages_total": "2.0",
              "left_out_total": "3.0", "lost_records_total": "5.0", "compared_total": "4.0",
              "differing_total": "1.0", "uncompared_total": "6.0", "logs_begun_anew_total": "2.0",
              "destination_losses_total": "7.0"}  # fmt: skip
    assert {name: found[f"switchyard_route_{name}"] for name in wanted} == wanted
    assert float(found["switchyard_route_barrier_seconds"]) > 1e6


def test_the_start_of_a_route_is_shown_once_it_is_recorded(console: Console) -> None:
    console.fed.apply(put_route(route(start="latest")))
    assert console.ask("GET", PATH).json["begins_ms"] is None
    console.fed.apply(StartRecorded(at_ms=7, key="mirror", ends=[]))
    assert console.ask("GET", PATH).json["begins_ms"] == 7


def test_metrics_have_the_lag_of_each_partition_and_take_no_route_for_a_workload(console: Console) -> None:
    fed = console.fed
    fed.apply(put_route(route()), assigned(copying(1)))
    fed.leader.leads = False
    fed.observe(beat(flowing(copying(1), delivered=5), url=fed.url))
    lines = console.metrics().splitlines()
    labels = '{partition="1",route="mirror",topic="orders"}'
    values = {line.partition("{")[0]: line for line in lines if labels_of(line) == labels_of(labels)}
    assert values["switchyard_route_lag_messages"].endswith(" 30.0")
    assert values["switchyard_route_copied_messages_total"].endswith(" 5.0")
    assert not [line for line in lines if 'workload="mirror"' in line]


def labels_of(line: str) -> set[str]:
    return set(line.partition("{")[2].partition("}")[0].split(","))


def test_the_leader_returns_the_state_of_each_topic(console: Console) -> None:
    fed = console.fed
    fed.apply(put_route(route("mirror", "east", "west", "orders.*", exclude=["orders.test"])))
    topics = console.ask("GET", f"{PATH}/topics").json
    assert (topics["items"], topics["read_s_ago"]) == ([], None)
    listed(fed, "east", orders=2, orders_test=1, unrelated=1)
    topics = console.ask("GET", f"{PATH}/topics").json
    assert [(t["topic"], t["state"], t["why"]) for t in topics["items"]] == [
        ("orders", "preparing", "not planned yet"),
        ("orders.test", "not-copied", "excluded by 'orders.test'"),
    ]
    assert topics["others"] == 1
    with serving(FakeRuntime()) as url:
        other = Console(url, FakeRuntime())
        other.ask("PUT", PATH, route())
        assert other.ask("GET", f"{PATH}/topics").json["read_s_ago"] is None


def test_another_worker_forwards_the_request_for_topics_to_the_leader(console: Console) -> None:
    leader = FakeRuntime()
    with serving(leader) as url:
        leader.worker, leader.url = "worker-b", url
        for fed in (leader, console.fed):
            fed.apply(put_route(route()))
            fed.control.view.leader = "worker-b"
        listed(leader, "east", orders=3)
        console.fed.leader.leads = False
        assert console.ask("GET", f"{PATH}/topics").status == 503
        console.fed.observe(beat(worker="worker-b", url=url))
        (topic,) = console.ask("GET", f"{PATH}/topics").json["items"]
        assert topic["partitions"] == 3


@pytest.mark.parametrize("name", ["a%2Fb", "x" * 300, "%3Cimg%3E"])
def test_a_name_that_no_route_has_is_a_problem(console: Console, name: str) -> None:
    for method in ("GET", "DELETE"):
        answer = console.ask(method, f"/api/v1/routes/{name}")
        assert (answer.status, answer.headers["Content-Type"]) == (404, "application/problem+json")


def test_a_workload_is_no_route_and_a_route_no_workload(console: Console) -> None:
    assert console.ask("PUT", "/api/v1/workloads/billing/orders", route()).status == 422
    answer = console.ask("PUT", PATH, {**route(), "kind": "Workload"})
    assert answer.status == 422
    assert not console.fed.control.appended
