"""The API does what its description says, and nothing else: a client that knows the description only
(schemathesis) asks every route what it allows, and what it does not. Each request meets the same region, and
nothing is left to chance: a run asks what the last one asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from app.console.api import Api
from app.console.describe import described_of
from app.console.openapi import openapi
from app.core.outcome import Decision
from app.kafka.clusters import ClusterUnreachable
from tests.console.client import Console
from tests.console.hand_fed import HandFed, beat, definition, flowing, in_trouble, incident, job, serving
from tests.console.test_operators import HeldPump
from tests.console.test_placement import lead
from tests.dlq.served import served

ROUTES = Api(lambda: None, "east").routes()
DOCUMENT = openapi(ROUTES)
REFUSED = ["400", "403", "404", "409", "413", "415", "422", "502", "503"]
CONFIG = {
    "checks": {
        # Answers like others: here no cluster can be reached.
        "not_a_server_error": {"expected-statuses": ["2xx", "4xx", "502", "503"]},
        "negative_data_rejection": {"expected-statuses": REFUSED},
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "412", "502", "503"]},
    },
    "operations": [
        # What no schema says: times, regular expressions, which of the fields go together, names that exist.
        {"include-method": ["PUT", "POST"], "checks": {"positive_data_acceptance": {"enabled": False}}},
        {"include-path-regex": "/dlq/|tracker", "checks": {"positive_data_acceptance": {"enabled": False}}},
        # Every field's every bound takes thousands of requests: tests/config is about those.
        {"include-method": "PUT", "phases": {"coverage": {"enabled": False}}},
    ],
}
DESCRIPTION = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig.from_dict(CONFIG))
api = DESCRIPTION.exclude(path="/api/v1/events")  # it does not end
EXISTING = {"group": "billing", "topic": "orders", "worker": "w2", "partition": 0}
MAX_LINE_BYTES = 8_000  # a server takes no longer request lines, whatever they ask


class ActingPump(HeldPump):
    """One that ends what it is asked to."""

    def conclude(self, offset: int, _: Decision) -> bool:
        self.tracker.ack_range(offset, offset + 1)
        return True


def region(console: Console) -> None:
    """The same as ever: two workers, a workload of two partitions with every trouble, an incident."""
    fed, url = console.fed, console.url
    fed.__init__()  # type: ignore[misc]  # the server keeps this very object
    fed.url = url

    async def away(name: str) -> Any:
        raise ClusterUnreachable(f"{name} does not answer")

    fed.clusters.get = away  # type: ignore[method-assign]
    lead(console)
    fed.hear(beat(flowing(job(0)), flowing(job(1)), url=url, **in_trouble()))
    fed.incidents.append(incident())
    fed.jobs.worker, fed.jobs.draining, fed.jobs._lease = fed.worker, False, fed.lease
    fed.jobs._catalog, fed.jobs._clusters = fed.catalog, fed.clusters
    fed.jobs.pumps[job(0)] = pump = ActingPump()
    pump.runtime.policy = type("Policy", (), {"dlq_enabled": True})()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    fed = HandFed()
    with serving(fed) as url:
        yield Console(url, fed)


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Names that are not there are all alike: three of four requests are about what is there."""
    if not path_parameters or len(str(path_parameters)) % 4 == 0:
        return path_parameters
    known = {name: value for name, value in EXISTING.items() if type(path_parameters.get(name)) is type(value)}
    return path_parameters | known


@schemathesis.hook
def filter_query(context: Any, query: dict[str, Any] | None) -> bool:
    return len(urlencode(query or {}, doseq=True)) < MAX_LINE_BYTES


@api.parametrize()
@settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case: schemathesis.Case, console: Console) -> None:
    region(console)
    case.call_and_validate(base_url=console.url, timeout=30)


def test_the_document_is_openapi_and_every_route_says_what_it_answers() -> None:
    DESCRIPTION.validate()
    for route in ROUTES:
        said = described_of(route.handler)
        assert said is not None and said.answers, f"{route.method} {route.path}"
