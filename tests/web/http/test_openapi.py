"""The API behaves exactly as its OpenAPI document describes.

Schemathesis sends valid and invalid requests to every route, from the document alone. Each request meets the
same region, so that an answer depends on its request only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from click.testing import CliRunner
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from app.cli.main import switchyard
from app.controllog.events import AlertPut
from app.definitions.registry import parse_alert
from app.dispatch.model.outcome import DeliveryDecision
from app.kafka.client.cluster import ClusterUnreachable
from app.web.console.api import api_routes
from app.web.http.context import ApiContext
from app.web.http.openapi import openapi
from app.web.http.route_docs import described_of
from tests.alerts.api.test_rest import alert_of
from tests.dispatch.api.test_rest_operators import HeldPump
from tests.dispatch.dlq.console import served
from tests.examples import CI_EXAMPLES, as_profile
from tests.placement.api.test_rest import lead
from tests.replicate.api.test_rest import listed
from tests.web.client import Console
from tests.web.runtime_fake import (
    FakeRuntime,
    assigned,
    beat,
    copying,
    definition,
    flowing,
    in_trouble,
    incident,
    job,
    put_route,
    route,
    serving,
)

ROUTES = api_routes(ApiContext(lambda: None, "east"))
DOCUMENT = openapi(ROUTES)
REFUSED = ["400", "403", "404", "409", "413", "415", "422", "502", "503"]
CONFIG = {
    "checks": {
        # These are expected answers: no cluster can be reached here.
        "not_a_server_error": {"expected-statuses": ["2xx", "4xx", "502", "503"]},
        "negative_data_rejection": {"expected-statuses": REFUSED},
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "412", "502", "503"]},
    },
    # Each bound of each field takes a thousand more requests.
    "phases": {"coverage": {"enabled": settings().max_examples >= CI_EXAMPLES}},
    "operations": [
        # No schema describes times, regular expressions, fields that exclude each other, or existing names.
        {"include-method": ["PUT", "POST"], "checks": {"positive_data_acceptance": {"enabled": False}}},
        {
            "include-path-regex": "/dlq/|tracker|/offsets/|/audit/",
            "checks": {"positive_data_acceptance": {"enabled": False}},
        },
        # Each bound of each field takes thousands of requests: tests/config tests those.
        {"include-method": "PUT", "phases": {"coverage": {"enabled": False}}},
    ],
}
DESCRIPTION = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig.from_dict(CONFIG))
# The answer of one has no end; the other lasts as long as asked (`tests.system.test_trace`).
api = DESCRIPTION.exclude(path=["/api/v1/events", "/api/v1/workloads/{group}/{topic}/trace"])
EXISTING = {"group": "billing", "topic": "orders", "worker": "w2", "partition": 0, "name": "mirror"}
ALERT = {
    "apiVersion": "switchyard/v1", "kind": "Alert", "metadata": {"name": "mirror"},
    "spec": {"on": "loss", "topics": ["orders"], "channels": [{"webhook": {"url": "http://127.0.0.1:1/x"}}]},
}  # fmt: skip
MAX_LINE_BYTES = 8_000  # a server takes no longer request lines


class ActingPump(HeldPump):
    """A pump that finishes an offset when an operator asks."""

    def finish_by_operator(self, offset: int, _: DeliveryDecision) -> bool:
        self.tracker.ack_range(offset, offset + 1)
        return True


def reset_region(console: Console) -> None:
    """Resets the region: two workers, a workload with every trouble, a route, an alert, an incident."""
    fed, url = console.fed, console.url
    fed.__init__()  # type: ignore[misc]  # the server keeps a reference to this object
    fed.url = url

    async def away(name: str) -> Any:
        raise ClusterUnreachable(f"{name} does not answer")

    fed.clusters.get = away  # type: ignore[method-assign]
    lead(console)
    fed.apply(put_route(route("mirror", "east", "west", "orders.*")), assigned(copying(0)))
    listed(fed, "east", orders=1)
    alert = parse_alert(ALERT)[0]
    fed.apply(
        AlertPut(at_ms=1, key=alert.key, definition=alert.to_wire(), etag=alert.etag(), actor="test"),
        alert_of(fed, rule="mirror"),
    )
    statuses = (flowing(job(0)), flowing(job(1)), flowing(copying(0)))
    fed.observe(beat(*statuses, url=url, **in_trouble()))
    fed.incidents.known.add(incident())
    fed.jobs.worker, fed.jobs.draining, fed.jobs.lease = fed.worker, False, fed.lease
    fed.jobs.pumps[job(0)] = pump = ActingPump()
    pump.runtime.settings = SimpleNamespace(policy=SimpleNamespace(dlq_enabled=True))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    fed = FakeRuntime()
    with serving(fed) as url:
        yield Console(url, fed)


@schemathesis.serializer("application/x-ndjson")
def lines(_: Any, value: Any) -> bytes:
    return str(value).encode("utf-8", "replace")


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Three of four requests use existing names, because unknown names all behave alike."""
    if not path_parameters or len(str(path_parameters)) % 4 == 0:
        return path_parameters
    known = {
        name: value for name, value in EXISTING.items() if type(path_parameters.get(name)) is type(value)
    }
    return path_parameters | known


@schemathesis.hook
def filter_query(context: Any, query: dict[str, Any] | None) -> bool:
    return len(urlencode(query or {}, doseq=True)) < MAX_LINE_BYTES


@api.parametrize()
@settings(
    max_examples=as_profile(8),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case: schemathesis.Case, console: Console) -> None:
    reset_region(console)
    case.call_and_validate(base_url=console.url, timeout=30)


def test_the_document_is_openapi_and_describes_every_routes_answers(console: Console) -> None:
    DESCRIPTION.validate()
    assert console.ask("GET", "/api/v1/openapi.json").json == DOCUMENT
    silent = [
        route
        for route in ROUTES
        if not (description := described_of(route.handler)) or not description.answers
    ]
    assert not silent


def test_the_document_is_printed_without_a_worker() -> None:
    printed = CliRunner().invoke(switchyard, ["config", "schema", "--openapi"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == DOCUMENT


WORKLOAD = "/api/v1/workloads/{group}/{topic}"
TRACKER = WORKLOAD + "/partitions/{partition}/tracker"
DLQ = "/api/v1/dlq/{group}/{topic}"
ROUTE = "/api/v1/routes/{name}"


class Client:
    """Sends requests by the description, and validates each answer against it."""

    def __init__(self, url: str, **names: Any) -> None:
        self.url = url
        self.names = EXISTING | names

    def ask(self, method: str, path: str, status: int = 200, **given: Any) -> Any:
        names = {name: value for name, value in self.names.items() if f"{{{name}}}" in path}
        case = DESCRIPTION[path][method].Case(path_parameters=names, media_type="application/json", **given)
        answer = case.call(base_url=self.url, timeout=60)
        assert answer.status_code == status, answer.text
        case.validate_response(answer)
        return answer


def test_successful_answers_are_as_described(console: Console) -> None:
    reset_region(console)
    client = Client(console.url)
    etag = client.ask("GET", WORKLOAD).headers["etag"][0]
    body = definition(tracker={"capacity": 5})
    changed = client.ask("PUT", WORKLOAD, body=body, headers={"If-Match": etag}).headers["etag"][0]
    client.ask("PUT", WORKLOAD, 412, body=definition(), headers={"If-Match": etag})
    client.ask("PUT", WORKLOAD, 412, body=definition(), headers={"If-None-Match": changed})
    client.ask("PUT", WORKLOAD, 422, body=definition(ordering="sideways"))
    assert client.ask("GET", TRACKER).json()["finished_ranges"]
    ranges = {"ranges": [[104, 108], [118, 122]]}
    for verb in ("skip", "stash"):
        assert client.ask("POST", f"{TRACKER}/{verb}", body=ranges).json()["refused"]
        client.ask("POST", f"{TRACKER}/{verb}", body=ranges | {"execute": True, "reason": "poison"})
    client.ask("POST", WORKLOAD + "/pause", body={"partitions": [1]})
    client.ask("POST", WORKLOAD + "/resume", body={})
    etag = client.ask("GET", ROUTE).headers["etag"][0]
    changed_route = client.ask("PUT", ROUTE, body=route(), headers={"If-Match": etag})
    client.ask("PUT", ROUTE, 422, body=route(start="sideways"))
    client.ask("PUT", ROUTE + "/topics/{topic}", headers={"If-Match": changed_route.headers["etag"][0]})
    client.ask("DELETE", ROUTE + "/topics/{topic}", 409)
    (topic,) = client.ask("GET", ROUTE + "/topics", query={"limit": 1}).json()["items"]
    assert topic["state"] == "preparing"
    client.ask("POST", ROUTE + "/pause")
    client.ask("POST", ROUTE + "/resume")
    planned = client.ask("POST", "/api/v1/placement/plan", body={"even": True}).json()
    assert planned["moves"]
    client.ask("POST", "/api/v1/placement/apply", 412, body={"plan": "another"})
    client.ask("POST", "/api/v1/placement/apply", body={"even": True, "plan": planned["plan"]})
    client.ask("POST", "/api/v1/workers/{worker}/drain", body={"execute": True})
    for path in ("workers", "assignments", "activity", "incidents", "workloads", "routes"):
        page = client.ask("GET", f"/api/v1/{path}", query={"limit": 1})
        assert len(page.json()["items"]) == 1
    client.ask("DELETE", WORKLOAD, headers={"If-Match": changed})
    client.ask("DELETE", ROUTE)
    client.ask("PUT", WORKLOAD, 201, body=body, headers={"If-None-Match": "*"})


def test_a_real_queue_is_answered_as_described(bootstrap: str, topic_name: str) -> None:
    with served(bootstrap, topic_name, 2, 20, 5, "gone") as (url, _, queue):
        client = Client(url, topic=queue.workload.metadata.topic, offset=1)
        assert client.ask("GET", DLQ).json()["messages"] == 20
        page = client.ask("GET", DLQ + "/messages", query={"limit": 3, "code": ["DATA_LOSS"]}).json()
        client.ask("GET", DLQ + "/messages", query={"cursor": page["next"]})
        client.ask("GET", DLQ + "/messages/{partition}/{offset}")
        assert client.ask("GET", DLQ + "/stats").json()["codes"]
        assert client.ask("GET", DLQ + "/export").headers["x-switchyard-offsets"] == ["20"]
        query = {"query": {"code": ["DATA_LOSS"]}}
        assert client.ask("POST", DLQ + "/merge", body=query).json()["counts"]["merged"] == 5
        client.ask("POST", DLQ + "/purge", body=query)
        assert client.ask("POST", DLQ + "/purge", body={"before": "0s"}).json()["offsets"] == 20
        started = client.ask("POST", DLQ + "/merge", 202, body=query | {"execute": True, "rate": 1e5})
        client.names["id"] = started.json()["id"]
        assert started.headers["location"] == [f"/api/v1/operations/{client.names['id']}"]
        until_s = time.monotonic() + 60
        while client.ask("GET", "/api/v1/operations/{id}").json()["state"] == "running":
            assert time.monotonic() < until_s
            time.sleep(0.05)
        (remembered,) = client.ask("GET", DLQ + "/merges").json()["items"]
        assert remembered["counts"]["merged"] == 5
        client.ask("DELETE", "/api/v1/operations/{id}")
