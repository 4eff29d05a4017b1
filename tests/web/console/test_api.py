"""The REST API as a client meets it: a real server over a fake runtime (see `runtime_fake`)."""

from __future__ import annotations

import http.client
import json
import socket
import time
from urllib.parse import urlsplit

import orjson
import pytest
from aiokafka.errors import NotLeaderForPartitionError
from msgspec.structs import replace

from app.config.definition_base import MAX_DEFINITION_BYTES
from app.controllog.codec import MAX_EVENT_BYTES, encode
from app.controllog.events import ALL, Paused, WorkloadDeleted, WorkloadPut
from tests.config.examples import with_bytes
from tests.web.client import Console
from tests.web.runtime_fake import (
    FakeRuntime,
    a_pump,
    assigned,
    beat,
    definition,
    flowing,
    incident,
    job,
    put,
    serving,
)

PATH = "/api/v1/workloads/billing/orders"


# -- definitions -----------------------------------------------------------------------------------


def test_a_workload_is_created_changed_and_deleted_each_by_one_event(console: Console) -> None:
    created = console.ask("PUT", PATH, definition())
    assert created.status == 201
    read = console.ask("GET", PATH)
    assert read.headers["ETag"] == created.headers["ETag"]
    assert read.json["definition"]["metadata"]["group"] == "billing"
    changed = console.ask("PUT", PATH, definition(tracker={"capacity": 5}), If_Match=read.headers["ETag"])
    assert changed.status == 200
    assert changed.headers["ETag"] != created.headers["ETag"]
    assert console.ask("DELETE", PATH).status == 200
    assert console.ask("GET", PATH).status == 404
    assert [type(event) for event in console.fed.control.appended] == [
        WorkloadPut,
        WorkloadPut,
        WorkloadDeleted,
    ]


def test_of_two_changes_at_the_same_moment_the_later_one_is_refused(
    console: Console,
) -> None:
    read = console.ask("PUT", PATH, definition())
    for method, body, capacity in (("PUT", definition(tracker={"capacity": 5}), 7), ("DELETE", None, 8)):
        theirs = put(definition(tracker={"capacity": capacity}))
        console.fed.control.meanwhile = [theirs]
        answer = console.ask(method, PATH, body, If_Match=read.headers["ETag"])
        assert answer.status == 412
        assert console.fed.control.view.workloads["billing/orders"].etag == theirs.etag
        read = console.ask("GET", PATH)


def test_a_pause_does_not_outlive_its_workload(console: Console) -> None:
    console.ask("PUT", PATH, definition())
    assert console.ask("POST", f"{PATH}/pause").status == 200
    assert console.ask("DELETE", PATH).status == 200
    last = console.fed.control.appended[-1]
    assert isinstance(last, Paused)
    assert (last.partition, last.paused) == (ALL, False)


def test_an_unchanged_definition_makes_no_event(console: Console) -> None:
    console.ask("PUT", PATH, definition())
    repeated = console.ask("PUT", PATH, definition())
    assert (repeated.status, repeated.json["changed"]) == (200, False)
    assert len(console.fed.control.appended) == 1


def test_a_dry_run_checks_everything_and_changes_nothing(console: Console) -> None:
    good = console.ask("PUT", PATH + "?dry_run=true", definition())
    assert (good.status, good.json["changed"], good.json["dry_run"]) == (200, True, True)
    assert console.ask("PUT", PATH + "?dry_run=true", definition(ordering="sideways")).status == 422
    assert not console.fed.control.appended


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_stale_if_match_changes_nothing(console: Console, method: str) -> None:
    console.fed.apply(put(definition()))
    stale = console.ask(method, PATH, definition(dlq={"enabled": False}), If_Match='"0123456789abcdef"')
    assert stale.status == 412
    assert not console.fed.control.appended


def test_if_match_any_needs_a_workload_and_if_none_match_any_needs_none(console: Console) -> None:
    assert console.ask("PUT", PATH, definition(), If_Match="*").status == 412
    assert console.ask("PUT", PATH, definition(), If_None_Match="*").status == 201
    assert console.ask("PUT", PATH, definition(dlq={"enabled": False}), If_None_Match="*").status == 412
    assert console.ask("PUT", PATH, definition(dlq={"enabled": False}), If_Match="*").status == 200


def test_a_condition_names_one_of_several_etags_or_none_of_them(console: Console) -> None:
    etag = console.ask("PUT", PATH, definition()).headers["ETag"]
    changed = definition(dlq={"enabled": False})
    assert console.ask("PUT", PATH, changed, If_None_Match=f'"another", {etag}').status == 412
    assert console.ask("PUT", PATH, changed, If_Match='"another"').status == 412
    assert console.ask("PUT", PATH, changed, If_Match=f'"another", {etag}').status == 200
    assert console.ask("PUT", PATH, definition(), If_None_Match=etag).status == 200
    assert console.ask("DELETE", PATH, If_Match=f"W/{etag}").status == 200
    assert console.ask("DELETE", PATH, If_Match=etag).status == 404


def test_a_definition_may_be_yaml_or_json(console: Console) -> None:
    yaml = (
        "# a comment\napiVersion: switchyard/v1\nkind: Workload\n"
        "metadata: {group: billing, topic: orders, cluster: east, owner: équipe 😀}\n"
        "spec:\n  target: {address: '127.0.0.1:50051'}\n"
    )
    assert console.ask("PUT", PATH, yaml.encode()).status == 201
    wanted = definition()
    wanted["metadata"]["owner"] = "équipe 😀"  # json escapes it as a surrogate pair
    assert console.ask("PUT", PATH, json.dumps(wanted)).json["changed"] is False


def test_all_problems_are_answered_at_once_with_field_line_and_remedy(console: Console) -> None:
    yaml = (
        "apiVersion: switchyard/v1\nkind: Workload\n"
        "metadata: {group: billing, topic: orders, cluster: eats}\n"
        "spec:\n  target: {address: nowhere}\n  orderin: key\n"
    )
    answer = console.ask("PUT", PATH, yaml)
    assert answer.status == 422
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    problems = {p["field"]: p for p in answer.json["errors"]}
    assert set(problems) == {"metadata.cluster", "spec.target.address", "spec.orderin"}
    assert problems["metadata.cluster"]["remedy"] == "did you mean east?"
    assert problems["spec.orderin"]["line"] == 6


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("[]", 422),
        ("just words", 422),
        ("{", 422),
        (b"\xff\xfe", 400),
        ('{"kind": "Workload", "kind": "Workload"}', 422),
        ("kind: a\n---\nkind: b\n", 400),
        ('{"metadata": ' + "[" * 3000, 422),
        ("a: &a [b, b]\nb: &b [*a, *a, *a]\n" * 2, 422),
        ('{"metadata": {"group": "\\ud83d"}}', 422),
        ('{"spec": {"delay": NaN}}', 422),
        ("x" * (MAX_DEFINITION_BYTES + 1), 413),
    ],
)  # fmt: skip
def test_a_body_that_is_no_definition_is_refused_in_words(
    console: Console, body: str | bytes, status: int
) -> None:
    answer = console.ask("PUT", PATH, body)
    assert answer.status == status, answer.text
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert answer.json["detail"]
    assert not console.fed.control.appended


@pytest.mark.parametrize("spare", [0, -1])
def test_a_definition_is_taken_up_to_its_limit(console: Console, spare: int) -> None:
    wanted = with_bytes(definition(), MAX_DEFINITION_BYTES - spare)
    answer = console.ask("PUT", PATH, orjson.dumps(wanted))
    assert answer.status == (201 if spare == 0 else 413), answer.text
    if answer.status == 201:
        (event,) = console.fed.control.appended
        assert MAX_DEFINITION_BYTES < len(encode(event)) < MAX_EVENT_BYTES
    else:
        assert f"at most {MAX_DEFINITION_BYTES} bytes are taken" in answer.json["detail"]


def test_the_address_and_the_definition_must_name_the_same_workload(console: Console) -> None:
    answer = console.ask("PUT", "/api/v1/workloads/billing/other", definition())
    assert answer.status == 422
    assert "billing/orders" in answer.json["detail"]


def test_a_workload_cannot_move_to_another_cluster(console: Console) -> None:
    console.fed.clusters.specs["west"] = None
    console.ask("PUT", PATH, definition())
    moved = definition()
    moved["metadata"]["cluster"] = "west"
    answer = console.ask("PUT", PATH, moved)
    assert answer.status == 409
    assert "delete it first" in answer.json["detail"]
    assert len(console.fed.control.appended) == 1


def test_trouble_with_the_control_log_is_a_503_and_no_internal_error(console: Console) -> None:
    for failure in (NotLeaderForPartitionError(), TimeoutError()):
        console.fed.control.failure = failure
        answer = console.ask("PUT", PATH, definition())
        assert answer.status == 503
        assert "ask again" in answer.json["detail"]


# -- reading ---------------------------------------------------------------------------------------


def test_lists_are_paged_and_no_item_is_lost(console: Console) -> None:
    console.fed.apply(*(put(definition(f"g{number}", "t")) for number in range(7)))
    keys, cursor = [], "0"
    while cursor is not None:
        page = console.ask("GET", f"/api/v1/workloads?limit=3&cursor={cursor}").json
        assert len(page["items"]) <= 3
        keys += [item["key"] for item in page["items"]]
        cursor = page["next"]
    assert keys == [f"g{number}/t" for number in range(7)]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=-1", "limit=9999", "cursor=%20", "cursor=٣"])
def test_a_query_out_of_bounds_is_refused(console: Console, query: str) -> None:
    answer = console.ask("GET", f"/api/v1/workloads?{query}".replace("٣", "%D9%A3"))
    assert answer.status == 400
    assert "must be a number" in answer.json["detail"]


def test_workers_assignments_activity_and_incidents_are_listed(console: Console) -> None:
    console.ask("PUT", PATH, definition(), X_Switchyard_Actor="jo")
    console.fed.apply(assigned(job(0), reason="it had no owner"))
    console.fed.observe(beat(flowing(job(0))))
    console.fed.incidents.known.add(incident("first"))
    console.fed.incidents.known.add(incident("second"))
    (worker,) = console.ask("GET", "/api/v1/workers").json["items"]
    assert (worker["worker"], worker["state"], worker["jobs"]) == ("worker-a", "running", 1)
    (assignment,) = console.ask("GET", "/api/v1/assignments").json["items"]
    assert (assignment["job"], assignment["reason"]) == (job(0), "it had no owner")
    assert console.ask("GET", "/api/v1/activity").json["items"][0]["actor"] == "jo"
    messages = [item["message"] for item in console.ask("GET", "/api/v1/incidents").json["items"]]
    assert messages == ["second", "first"]


def test_incidents_say_whether_their_state_lasts_and_open_ones_come_first(console: Console) -> None:
    console.fed.observe(beat(flowing(job(0))))
    known, lasting = console.fed.incidents.known, replace(incident("away"), lasts=True)
    gone = replace(lasting, worker="gone", message="gone")
    ended = replace(lasting, message="back", ended_ms=lasting.at_ms + 12_000)
    moment = replace(incident("moment"), at_ms=lasting.at_ms + 1)
    for record in (lasting, gone, ended, moment):
        known.add(record)
    items = console.ask("GET", "/api/v1/incidents").json["items"]
    rows = [[one[name] for name in ("message", "lasts", "open", "ended_ms", "ended_why")] for one in items]
    assert rows[:2] == [["away", True, True, None, ""], ["moment", False, False, None, ""]]
    assert sorted(rows[2:]) == [
        ["back", True, False, ended.ended_ms, ""], ["gone", True, False, None, "its worker is gone"],
    ]  # fmt: skip
    (one,) = console.ask("GET", "/api/v1/incidents?open=true").json["items"]
    assert one["message"] == "away"
    assert console.ask("GET", "/api/v1/incidents?open=yes").status == 400
    assert console.ask("GET", "/api/v1/overview").json["incidents"][0]["open"]


def test_the_overview_comes_as_server_sent_events(console: Console) -> None:
    console.fed.apply(put(definition()))
    place = urlsplit(console.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.request("GET", "/api/v1/events")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    line = answer.readline()
    assert line.startswith(b"data: ")
    assert json.loads(line[6:])["workloads"][0]["key"] == "billing/orders"
    connection.close()


def test_streams_are_bounded_in_number_and_a_closed_one_makes_room(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.worker.api.rest_overview.MAX_STREAMS", 1)
    monkeypatch.setattr("app.worker.api.rest_overview.EVENTS_INTERVAL_S", 0.02)
    place = urlsplit(console.url)
    with socket.create_connection((place.hostname, place.port)) as stream:
        stream.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        assert console.ask("GET", "/api/v1/events").status == 503
    for _ in range(500):
        with socket.create_connection((place.hostname, place.port)) as stream:
            stream.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if stream.recv(100).startswith(b"HTTP/1.1 200"):
                return
    raise AssertionError("the closed stream still counts")


# -- one partition ---------------------------------------------------------------------------------


def own_partition(fed: FakeRuntime) -> None:
    fed.apply(put(definition()), assigned(job(0)))
    fed.observe(beat(flowing(job(0)), url=fed.url))


def test_the_tracker_view_shows_finished_in_flight_and_waiting_offsets(console: Console) -> None:
    own_partition(console.fed)
    console.fed.jobs.pumps[job(0)] = a_pump()
    shown = console.ask("GET", PATH + "/partitions/0/tracker").json
    assert (shown["base"], shown["end"], shown["capacity"], shown["room"]) == (105, 120, 50, 35)
    assert shown["finished_ranges"] == [[110, 112]]
    assert shown["unfinished_ranges"] == [[105, 110], [112, 120]]
    assert shown["in_flight_offsets"] == [105]
    assert (shown["unfinished"], shown["acked"]) == (13, 2)


def test_the_tracker_view_counts_a_widened_windows_places(console: Console) -> None:
    own_partition(console.fed)
    console.fed.jobs.pumps[job(0)] = pump = a_pump()
    pump.tracker.extra = 30
    shown = console.ask("GET", PATH + "/partitions/0/tracker").json
    assert (shown["capacity"], shown["room"], shown["utilisation"]) == (80, 65, round(15 / 80, 4))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/partitions/7/tracker", 404),
        ("/partitions/x/tracker", 400),
        ("/partitions/99999999999/tracker", 400),
        ("/partitions/0/tracker?topic=no%20topic", 400),
        ("/partitions/9999999999/tracker", 400),
        ("/partitions/0/tracker?topic=other", 404),
    ],
)
def test_an_invalid_partition_is_refused(console: Console, path: str, status: int) -> None:
    own_partition(console.fed)
    assert console.ask("GET", PATH + path).status == status


def test_another_worker_forwards_the_request_to_the_owner(console: Console) -> None:
    own_partition(console.fed)
    console.fed.jobs.pumps[job(0)] = a_pump()
    other = FakeRuntime()
    other.worker = "worker-b"
    other.apply(put(definition()), assigned(job(0)))
    other.observe(beat(flowing(job(0)), url=console.url))
    with serving(other) as url:
        shown = Console(url, other).ask("GET", PATH + "/partitions/0/tracker").json
    assert shown["base"] == 105


def test_a_request_is_forwarded_only_once(console: Console) -> None:
    """Two workers that take each other for the owner must not ask each other for ever."""
    own_partition(console.fed)  # the log says so, but its pump has not started
    other = FakeRuntime()
    other.worker = "worker-b"
    other.apply(put(definition()), assigned(job(0)))
    other.observe(beat(flowing(job(0)), url=console.url))
    with serving(other) as url:
        answer = Console(url, other).ask("GET", PATH + "/partitions/0/tracker")
    assert answer.status == 503
    assert "ask again" in answer.json["detail"]


def test_a_silent_or_unreachable_owner_is_named(console: Console) -> None:
    console.fed.apply(put(definition()), assigned(job(0), "worker-b"))
    assert console.ask("GET", PATH + "/partitions/0/tracker").status == 503
    console.fed.observe(beat(worker="worker-b", url="http://127.0.0.1:1"))
    assert console.ask("GET", PATH + "/partitions/0/tracker").status == 502


def test_a_data_cluster_that_does_not_answer_is_named(console: Console) -> None:
    console.fed.apply(put(definition()))
    answer = console.ask("GET", "/api/v1/dlq/billing/orders/messages")
    assert answer.status == 502
    assert "east" in answer.json["detail"]


# -- outside ---------------------------------------------------------------------------------------


def test_a_worker_that_has_not_read_the_control_log_answers_503(console: Console) -> None:
    console.fed.control.caught_up = False
    for path in ("/health/ready", "/api/v1/workloads", PATH, "/api/v1/events"):
        assert console.ask("GET", path).status == 503, path
    assert console.ask("PUT", PATH, definition()).status == 503
    assert console.ask("GET", "/health/live").status == 200


def test_without_a_runtime_the_server_answers_only_liveness() -> None:
    with serving(None) as url:
        place = urlsplit(url)
        for path, status in (
            ("/health/live", 200),
            ("/health/ready", 503),
            ("/api/v1/workers", 503),
            ("/", 200),
        ):
            connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
            connection.request("GET", path)
            assert connection.getresponse().status == status, path
            connection.close()


def test_a_worker_is_ready_while_its_lease_holds_and_it_is_not_draining(console: Console) -> None:
    assert console.ask("GET", "/health/ready").status == 200
    console.fed.draining = True
    assert console.ask("GET", "/health/ready").status == 503
    console.fed.draining = False
    console.fed.lease.expires_at_s = float("-inf")
    assert console.ask("GET", "/health/ready").json["lease_holds"] is False


def test_a_worker_is_not_ready_while_it_cannot_save(console: Console) -> None:
    console.fed.writes.began(3, time.monotonic() - 31.0)
    ready = console.ask("GET", "/health/ready")
    assert (ready.status, ready.json["unsaved"]) == (503, "no broker answers")
    console.fed.writes.ended(3, time.monotonic())
    assert console.ask("GET", "/health/ready").status == 200


def test_a_worker_is_not_ready_while_its_loop_stands_still_half_of_the_time(console: Console) -> None:
    for _ in range(100):
        console.fed.loop_watch.look(time.monotonic(), 0.4)
    ready = console.ask("GET", "/health/ready")
    assert ready.status == 503
    assert "stood still for 40 of the last 60 s" in ready.json["loop"]


def test_metrics_omit_unknown_values(console: Console) -> None:
    console.fed.apply(put(definition()), assigned(job(0)), assigned(job(1)))
    console.fed.observe(beat(flowing(job(0), delivered=5), flowing(job(1), committed=-1), breaker="open"))
    text = console.metrics()
    labels = '{{partition="{}",topic="orders",workload="billing/orders"}}'
    assert f"switchyard_lag_messages{labels.format(0)} 30.0" in text
    assert f"switchyard_lag_messages{labels.format(1)}" not in text
    assert f"switchyard_delivered_messages_total{labels.format(0)} 5.0" in text
    assert 'switchyard_breaker_open{workload="billing/orders"} 1.0' in text
    assert "switchyard_buffered_bytes 4096.0" in text
    assert "switchyard_cpu_throttled_ratio 0.0" in text


def test_the_openapi_document_names_every_route_with_a_summary(console: Console) -> None:
    document = console.ask("GET", "/api/v1/openapi.json").json
    for path in (
        "/api/v1/workloads", "/api/v1/workloads/{group}/{topic}", "/api/v1/workers", "/api/v1/assignments",
        "/api/v1/dlq/{group}/{topic}", "/api/v1/dlq/{group}/{topic}/messages", "/api/v1/activity",
        "/api/v1/workloads/{group}/{topic}/partitions/{partition}/tracker", "/api/v1/events",
        "/health/live", "/health/ready", "/metrics",
    ):  # fmt: skip
        assert path in document["paths"], path
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert " " in operation["summary"], (path, method)
