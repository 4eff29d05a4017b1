"""The REST side of the DLQ tools, over a server with a real cluster behind it."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dispatch.dlq.console import served
from tests.dispatch.dlq.queues import DeadLetterQueue
from tests.web.client import Answer, Console
from tests.web.runtime_fake import FakeRuntime, beat, definition, flowing, job, put, serving


class QueueConsole:
    """A console, and a workload whose queue holds 0..99 in two partitions, the last 20 lost data."""

    def __init__(self, console: Console, queue: DeadLetterQueue) -> None:
        self.console = console
        self.workload = queue.workload
        self.path = f"/api/v1/dlq/{queue.workload.key}"
        self._queue = queue

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        return self.console.ask(method, f"{self.path}{path}", body)

    def ended(self, answer: Answer) -> Any:
        """The operation of a 202, once it has ended."""
        assert answer.status == 202, answer.text
        place = answer.headers["Location"]
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            operation = self.console.ask("GET", place).json
            if operation["state"] != "running":
                return operation
            time.sleep(0.05)
        raise AssertionError(f"{place} does not end: {operation}")

    def fill(self, numbers: range, **fields: Any) -> None:
        asyncio.run(self._queue.fill(numbers, **fields))

    def merged(self) -> list[int]:
        return asyncio.run(self._queue.numbers())

    def found(self, path: str) -> list[int]:
        """The numbers that are listed, in order."""
        return sorted(int(item["value"]["text"]) for item in self.ask("GET", path).json["items"])


@pytest.fixture
def queue(bootstrap: str, topic_name: str) -> Iterator[QueueConsole]:
    with served(bootstrap, topic_name, 2, 100, 20, "gone") as (url, fed, queue):
        yield QueueConsole(Console(url, fed), queue)


@pytest.fixture(scope="module")
def untouched(bootstrap: str) -> Iterator[QueueConsole]:
    """A queue that tests share, because they only read it."""
    topic = f"test-{uuid.uuid4().hex[:12]}"
    with served(bootstrap, topic, 2, 100, 20, "gone") as (url, fed, queue):
        yield QueueConsole(Console(url, fed), queue)


def test_letters_are_found_by_query_page_by_page(untouched: QueueConsole) -> None:
    items: list[Any] = []
    cursor = ""
    while cursor is not None:
        page = untouched.ask("GET", f"/messages?code=DATA_LOSS&reason=GONE&limit=7&cursor={cursor}").json
        assert len(page["items"]) <= 7
        items += page["items"]
        cursor = page["next"]
    assert sorted(int(item["value"]["text"]) for item in items) == list(range(80, 100))
    assert {item["partition"] for item in untouched.ask("GET", "/messages?partition=1").json["items"]} == {1}
    assert untouched.ask("GET", "/messages?attempt_min=4").json["items"] == []
    assert [i["value"]["text"] for i in untouched.ask("GET", "/messages?key=42").json["items"]] == ["42"]
    assert untouched.ask("GET", "/messages?since=1h").json["items"] == []


def test_one_letter_is_shown_decoded(untouched: QueueConsole) -> None:
    letter = untouched.ask("GET", "/messages/1/3").json
    assert (letter["value"]["as"], letter["value"]["shown"]) == ("text", "7")
    assert letter["origin"]["topic"] == "orders"
    assert {name: value["shown"] for name, value in letter["headers"]}["switchyard-code"] == "INTERNAL"
    assert untouched.ask("GET", "/messages/1/3000").status == 404
    assert untouched.ask("GET", "/messages/1/x").status == 400


def test_figures_and_an_export_cover_the_queried_letters(untouched: QueueConsole) -> None:
    assert untouched.ask("GET", "/stats").json["codes"] == {"INTERNAL": 80, "DATA_LOSS": 20}
    answer = untouched.ask("GET", "/export?code=data_loss")
    assert answer.headers["X-Switchyard-Offsets"] == "100"
    exported = [json.loads(line) for line in answer.text.splitlines()]
    assert sorted(int(line["value"]["text"]) for line in exported) == list(range(80, 100))


def test_a_merge_looks_first_and_merges_only_what_it_saw(queue: QueueConsole) -> None:
    look = queue.ask("POST", "/merge", {"query": {"code": ["INTERNAL"]}}).json
    assert (look["counts"]["merged"], look["complete"]) == (80, True)
    assert queue.merged() == [], "a look changes nothing"
    queue.fill(range(200, 210))  # after the look
    request = {"query": {"code": ["INTERNAL"]}, "ranges": look["partitions"], "rate": 1e5, "execute": True}
    operation = queue.ended(queue.ask("POST", "/merge", request))
    assert (operation["state"], operation["kind"], operation["progress"]["counts"]["merged"]) == (
        "done",
        "merge",
        80,
    )
    assert queue.merged() == list(range(80))
    remembered = queue.ask("GET", "/merges").json["items"]
    assert [(merge["operation"], merge["done"]) for merge in remembered] == [(operation["id"], True)]
    assert queue.ask("POST", "/merge", {}).json["counts"]["merged"] == 30


def test_a_canceled_merge_continues_under_its_id_and_a_second_run_at_once_is_refused(
    queue: QueueConsole,
) -> None:
    slow = {"rate": 10, "execute": True, "operation": "mine"}
    answer = queue.ask("POST", "/merge", slow)
    place = answer.headers["Location"]
    assert place == "/api/v1/operations/mine"
    assert queue.ask("POST", "/merge", {"execute": True}).status == 409
    while not queue.console.ask("GET", place).json["progress"].get("looked_at"):
        time.sleep(0.02)
    assert queue.console.ask("DELETE", place).json["state"] == "canceled"
    so_far = queue.merged()
    assert 0 < len(so_far) < 100
    assert queue.ask("POST", "/merge", {}).json["unfinished"] == ["mine"]
    again = {"operation": "mine", "resume": True, "execute": True, "rate": 1e5}
    assert queue.ended(queue.ask("POST", "/merge", again))["progress"]["counts"]["merged"] == 100
    assert queue.merged() == list(range(100))
    assert queue.ask("POST", "/merge", again | {"operation": "other"}).status == 404


def test_the_workload_says_how_often_a_letter_is_merged_unless_the_merge_does(queue: QueueConsole) -> None:
    queue.fill(range(300, 304), merges=1)
    topic = queue.workload.metadata.topic
    queue.console.fed.apply(put(definition(topic=topic, dlq={"maxMerges": 1})))
    assert queue.ask("POST", "/merge", {}).json["counts"]["quarantined"] == 4
    assert queue.ask("POST", "/merge", {"max_merges": 2}).json["counts"]["quarantined"] == 0


def test_a_purge_looks_first_and_deletes_only_what_it_saw(queue: QueueConsole) -> None:
    look = queue.ask("POST", "/purge", {"ranges": {"0": {"end": 10}}}).json
    assert (look["offsets"], list(look["partitions"])) == (10, ["0"])
    assert queue.ask("POST", "/purge", {"before": "30d"}).json["offsets"] == 0
    assert queue.ask("GET", "").json["messages"] == 100
    assert queue.ask("POST", "/purge", {"execute": True}).status == 400
    operation = queue.ended(queue.ask("POST", "/purge", {"ranges": look["partitions"], "execute": True}))
    assert operation["progress"] == {"partitions": {"0": {"first": 10}}}
    assert queue.ask("GET", "").json["messages"] == 90


def test_a_purge_by_query_looks_first_and_hides_only_what_it_saw(queue: QueueConsole) -> None:
    look = queue.ask("POST", "/purge", {"query": {"reason": "gone"}}).json
    assert (look["counts"]["purged"], look["reasons"], look["complete"]) == (20, {"gone": 20}, True)
    assert queue.found("/messages?limit=200") == list(range(100)), "a look changes nothing"
    queue.fill(range(200, 203), reason="gone")  # after the look
    request = {"query": {"reason": "gone"}, "ranges": look["partitions"], "execute": True}
    operation = queue.ended(queue.ask("POST", "/purge", request))
    assert (operation["state"], operation["progress"]["counts"]["purged"]) == ("done", 20), operation
    left = [*range(80), *range(200, 203)]
    assert queue.found("/messages?limit=200") == left
    exported = [json.loads(line) for line in queue.ask("GET", "/export").text.splitlines()]
    assert sorted(int(line["value"]["text"]) for line in exported) == left
    assert queue.ask("GET", "/stats").json["letters"] == len(left)
    assert queue.ask("GET", "/messages/1/3").status == 200
    assert queue.ask("GET", "/messages/1/42").status == 404, "85 was purged"
    assert queue.ask("POST", "/merge", {}).json["counts"]["gone"] == 20
    kinds = {(merge["operation"], merge["kind"]) for merge in queue.ask("GET", "/merges").json["items"]}
    assert kinds == {(operation["id"], "purge")}
    again = {"operation": operation["id"], "resume": True, "execute": True}
    assert queue.ended(queue.ask("POST", "/purge", again))["progress"] == operation["progress"]
    assert queue.ask("POST", "/merge", again).status == 409, "a merge does not continue a purge"
    assert queue.ask("POST", "/purge", again | {"operation": "other"}).status == 404


def test_any_worker_knows_the_operations_of_the_others(queue: QueueConsole) -> None:
    operation = queue.ended(queue.ask("POST", "/merge", {"execute": True, "rate": 1e5}))
    other = FakeRuntime()
    other.worker = "worker-b"
    other.observe(beat(flowing(job(0)), url=queue.console.url))
    with serving(other) as url:
        console = Console(url, other)
        assert console.ask("GET", f"/api/v1/operations/{operation['id']}").json == operation
        missing = console.ask("GET", "/api/v1/operations/none")
        assert (missing.status, missing.json["title"]) == (404, "No such operation")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/messages?reason=/(/", None),
        ("GET", "/stats?since=whenever", None),
        ("GET", "/export?partition=x", None),
        ("POST", "/merge", {"query": {"nonsense": 1}}),
        ("POST", "/merge", {"nonsense": 1}),
        ("POST", "/merge", {"execute": "yes"}),
        ("POST", "/merge", {"max_merges": -1}),
        ("POST", "/merge", {"rate": 0, "execute": True}),
        ("POST", "/merge", {"ranges": {"7": {"end": 1}}}),
        ("POST", "/merge", {"ranges": {"0": {"end": -1}}}),
        ("POST", "/merge", {"operation": "a b", "execute": True}),
        ("POST", "/merge", [1]),
        ("POST", "/merge", "{"),
        ("POST", "/purge", {"before": "soon"}),
        ("POST", "/purge", {"partitions": "0"}),
        ("POST", "/purge", {"query": {"nonsense": 1}}),
        ("POST", "/purge", {"query": {}, "before": "30d"}),
        ("POST", "/purge", {"query": {}, "execute": "yes"}),
        ("POST", "/purge", {"query": {}, "operation": "a b", "execute": True}),
        ("POST", "/purge", {"ranges": {"0": {"end": 10**9}}, "execute": False, "nonsense": 1}),
    ],
)
def test_an_invalid_request_is_a_problem_and_changes_nothing(
    untouched: QueueConsole, method: str, path: str, body: Any
) -> None:
    answer = untouched.ask(method, path, body)
    assert (answer.status, answer.json["title"]) == (400, "Bad query"), answer.text
    assert untouched.ask("GET", "").json["messages"] == 100
    assert untouched.merged() == []


def test_a_missing_queue_is_not_found(queue: QueueConsole) -> None:
    queue.console.fed.apply(put(definition(topic="nothing-died")))
    for method, path in (("GET", "/stats"), ("POST", "/merge"), ("POST", "/purge"), ("GET", "/export")):
        answer = queue.console.ask(method, f"/api/v1/dlq/billing/nothing-died{path}")
        assert (answer.status, answer.json["title"]) == (404, "No queue")
    assert queue.workload.merge_topic().endswith("__billing__merge")
