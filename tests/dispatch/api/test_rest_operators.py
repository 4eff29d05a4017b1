"""REST requests to pause, resume, reset, skip and stash: results, refusals, forwarding, and the buttons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from app.controllog.events import ALL, Paused
from app.kernel.tracker import Tracker
from app.web.http.operator_requests import actor_of
from tests.dispatch.dlq.queues import Clusters, create
from tests.web.browser import NEEDS_CHROMIUM, chromium
from tests.web.client import Answer, Console
from tests.web.runtime_fake import (
    FakePump,
    FakeRuntime,
    assigned,
    beat,
    definition,
    flowing,
    job,
    put,
    serving,
)

PATH = "/api/v1/workloads/billing/orders"
SKIP = f"{PATH}/partitions/0/tracker/skip"


@pytest.fixture
def orders(console: Console) -> Console:
    """Two partitions of billing/orders, owned by this worker."""
    fed = console.fed
    fed.apply(put(definition()), assigned(job(0)), assigned(job(1)))
    fed.observe(beat(flowing(job(0)), flowing(job(1)), url=fed.url))
    fed.jobs.worker, fed.jobs.draining, fed.jobs.lease = fed.worker, False, fed.lease
    return console


def problem(answer: Answer, status: int, *words: str) -> None:
    """Asserts that the answer is an RFC 9457 problem whose detail has these words."""
    assert answer.status == status, answer.text
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    for word in words:
        assert word in answer.json["detail"], answer.text


# -- pause and resume ------------------------------------------------------------------------------


def test_a_workload_is_paused_and_resumed_and_both_say_who_did_it(orders: Console) -> None:
    answer = orders.ask("POST", f"{PATH}/pause", X_Switchyard_Actor="ann").json
    assert answer == {"key": "billing/orders", "changed": True, "all": True, "partitions": []}
    assert orders.fed.control.view.is_paused("billing/orders", 1)
    assert not orders.ask("POST", f"{PATH}/pause").json["changed"]
    assert orders.ask("POST", f"{PATH}/resume", {"partitions": []}, X_Switchyard_Actor="bob").json["changed"]
    events = [event for event in orders.fed.control.appended if isinstance(event, Paused)]
    assert [(event.partition, event.paused, event.actor) for event in events] == [
        (ALL, True, "ann"), (ALL, False, "bob"),
    ]  # fmt: skip
    shown = orders.ask("GET", "/api/v1/activity").json["items"]
    assert [item["event"] for item in shown] == ["paused", "paused"]


def test_single_partitions_are_paused_and_not_resumed_out_of_a_paused_workload(orders: Console) -> None:
    assert orders.ask("POST", f"{PATH}/pause", {"partitions": [1]}).json["partitions"] == [1]
    orders.ask("POST", f"{PATH}/pause")
    problem(orders.ask("POST", f"{PATH}/resume", {"partitions": [1]}), 409, "whole workload is paused")
    assert orders.ask("POST", f"{PATH}/resume").json == {
        "key": "billing/orders", "changed": True, "all": False, "partitions": [],
    }  # fmt: skip


@pytest.mark.parametrize("verb", ["pause", "resume", "reset"])
def test_a_missing_workload_is_not_found_and_nothing_is_written(orders: Console, verb: str) -> None:
    body = {"partitions": [7]} | ({"to": "earliest"} if verb == "reset" else {})
    problem(orders.ask("POST", f"{PATH}/{verb}", body), 404, "no partition 7")
    problem(orders.ask("POST", f"/api/v1/workloads/no/such/{verb}", body), 404, "no workload no/such")
    assert not orders.fed.control.appended


# -- invalid requests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        (f"{PATH}/pause", "[", "JSON"),
        (f"{PATH}/pause", "[]", "object"),
        (f"{PATH}/pause", {"partitions": "0"}, "list"),
        (f"{PATH}/pause", {"partitions": [True]}, "list"),
        (f"{PATH}/pause", {"partition": 0}, "no such field"),
        (f"{PATH}/reset", {}, "say where to"),
        (f"{PATH}/reset", {"to": "earliest", "at": "2h"}, "say where to"),
        (f"{PATH}/reset", {"to": "newest"}, "earliest or latest"),
        (f"{PATH}/reset", {"to": ["earliest"]}, "earliest or latest"),
        (f"{PATH}/reset", {"at": "soon"}, "is not a time"),
        (f"{PATH}/reset", {"offsets": {"0": -1}}, "offsets"),
        (f"{PATH}/reset", {"offsets": {"x": 1}}, "offsets"),
        (f"{PATH}/reset", {"offsets": {}}, "offsets"),
        (f"{PATH}/reset", {"offsets": {"0": 1}, "partitions": [0]}, "offsets"),
        (SKIP, {}, "ranges"),
        (SKIP, {"ranges": []}, "ranges"),
        (SKIP, {"ranges": [[3]]}, "ranges"),
        (SKIP, {"ranges": [[3, 3]]}, "ranges"),
        (SKIP, {"ranges": [[-1, 3]]}, "ranges"),
        (SKIP, {"ranges": [[0, 1 << 60]]}, "at most 10000"),
        (SKIP, {"ranges": [[0, 6_000], [7_000, 12_000]]}, "at most 10000"),
        (SKIP, {"ranges": [[0, 1]], "execute": "yes"}, "true or false"),
        (SKIP, {"ranges": [[0, 1]], "reason": 5}, "reason"),
        (SKIP, {"ranges": [[0, 1]], "reason": "x" * 301}, "reason"),
        (f"{PATH}/partitions/x/tracker/skip", {"ranges": [[0, 1]]}, "no partition"),
    ],
)  # fmt: skip
def test_an_invalid_request_gets_the_valid_form(orders: Console, path: str, body: Any, word: str) -> None:
    problem(orders.ask("POST", path, body), 400, word)
    assert not orders.fed.control.appended


# -- single offsets --------------------------------------------------------------------------------


class HeldPump(FakePump):
    """[100, 120) read, [100, 105) and [110, 112) finished; the copy of 106 is on its way."""

    def __init__(self) -> None:
        tracker = Tracker(100, 50)
        tracker.fetched(100, 120)
        tracker.ack_range(100, 105)
        tracker.ack_range(110, 112)
        super().__init__(tracker, {})
        self.closed = self.draining = False
        self.copying = {106: None}
        self.backlog = None
        self.runtime = type("Runtime", (), {"ordered": False})()


def test_a_forecast_names_the_offsets_that_would_end_and_changes_nothing(orders: Console) -> None:
    orders.fed.jobs.pumps[job(0)] = HeldPump()
    answer = orders.ask("POST", SKIP, {"ranges": [[104, 112], [118, 122]]}).json
    assert answer == {
        "job": job(0), "action": "skip", "execute": False,
        "ended": [[105, 106], [107, 110], [118, 120]], "pending": [],
        "refused": {
            "already finished": [[104, 105], [110, 112]], "its copy is on its way": [[106, 107]],
            "not read yet": [[120, 122]],
        },
        "counts": {"ended": 6, "pending": 0, "refused": 6},
    }  # fmt: skip
    assert not orders.fed.control.appended


def test_a_request_for_another_workers_job_is_forwarded_once_with_its_actor(orders: Console) -> None:
    owner = FakeRuntime()
    owner.worker = "worker-b"
    owner.jobs.worker, owner.jobs.draining, owner.jobs.lease = "worker-b", False, owner.lease
    owner.jobs.pumps[job(0)] = HeldPump()
    with serving(owner) as url:
        owner.apply(put(definition()), assigned(job(0), "worker-b"))
        orders.fed.apply(assigned(job(0), "worker-b", epoch=2))
        heartbeat = beat(flowing(job(0)), worker="worker-b", url=url)
        orders.fed.observe(heartbeat)
        owner.observe(heartbeat)
        assert orders.ask("POST", SKIP, {"ranges": [[105, 106]]}).json["ended"] == [[105, 106]]
        # The job moved on: a worker does not forward a request that was forwarded to it.
        owner.apply(assigned(job(0), "worker-c", epoch=2))
        problem(orders.ask("POST", SKIP, {"ranges": [[105, 106]]}), 503, "belongs to worker-c")


def test_a_request_for_a_silent_or_starting_owner_says_to_ask_again(orders: Console) -> None:
    body = {"ranges": [[1, 2]], "execute": True}
    problem(orders.ask("POST", SKIP, body), 503, "starting or stopping")
    orders.fed.apply(assigned(job(0), "worker-b", epoch=2))
    problem(orders.ask("POST", SKIP, body), 503, "sends no heartbeats")
    problem(orders.ask("POST", f"{PATH}/partitions/9/tracker/stash", body), 404, "no worker owns")


# -- reset -----------------------------------------------------------------------------------------


@pytest.fixture
def log_of_50(bootstrap: str, topic_name: str) -> Iterator[Console]:
    """Partition 0 of a real topic holds 50 messages, partition 1 none; no worker runs them."""
    fed = FakeRuntime()
    fed.clusters = Clusters(bootstrap)  # type: ignore[assignment]

    async def fill() -> int:
        await create(bootstrap, topic_name, 2)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for number in range(50):
                await producer.send_and_wait(topic_name, str(number).encode(), partition=0)
                if number == 24:
                    await asyncio.sleep(0.05)
                    middle = time.time_ns() // 1_000_000
                    await asyncio.sleep(0.05)
        return middle

    fed.middle_ms = asyncio.run(fill())  # type: ignore[attr-defined]
    key = f"billing/{topic_name}"
    fed.apply(put(definition(topic=topic_name)), *(assigned(job(p, topic_name, key)) for p in (0, 1)))
    fed.jobs.worker, fed.clusters = fed.worker, OfOneFetch(fed.clusters)
    with serving(fed) as url:
        console = Console(url, fed)
        console.path = f"/api/v1/workloads/{key}/reset"  # type: ignore[attr-defined]
        yield console


class OfOneFetch:
    """The cluster behind `Clusters`, with the services that a worker has."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self.specs = clusters.specs

    async def get(self, name: str) -> Any:
        from app.kafka.client.commits import OffsetCommitter
        from app.kafka.fetch.deliveries import ByteBudget
        from app.kafka.fetch.service import FetchService

        found = await self._clusters.get(name)

        async def nowhere(_: Any) -> None: ...

        found.fetch = FetchService(found.client, nowhere, ByteBudget(1))
        found.committer = OffsetCommitter(found.client)
        return found


def test_any_worker_foresees_a_reset_and_keeps_it_within_the_log(log_of_50: Any) -> None:
    ask, path, middle_ms = log_of_50.ask, log_of_50.path, log_of_50.fed.middle_ms

    def where(body: Any) -> list[tuple[int, int, str]]:
        forecast = ask("POST", path, body).json
        assert (forecast["execute"], forecast["done"]) == (False, 0)
        return [(row["partition"], row["to"], row["note"]) for row in forecast["partitions"]]

    assert where({"to": "earliest"}) == [(0, 0, ""), (1, 0, "")]
    assert where({"to": "latest", "partitions": [0]}) == [(0, 50, "")]
    assert where({"at": str(middle_ms)}) == [
        (0, 25, ""), (1, 0, "no message is that new: the log's end"),
    ]  # fmt: skip
    assert where({"offsets": {"0": 17}}) == [(0, 17, "")]
    assert where({"offsets": {"0": 70}}) == [(0, 50, "the log has [0, 50) only, not 70")]
    assert not log_of_50.fed.control.appended


def test_a_partition_that_cannot_be_reset_is_named_and_not_counted(log_of_50: Any) -> None:
    log_of_50.fed.jobs.draining = False
    forecast = log_of_50.ask("POST", log_of_50.path, {"to": "earliest", "execute": True}).json
    assert (forecast["execute"], forecast["done"]) == (True, 0)
    assert all("starting or stopping" in row["why"] for row in forecast["partitions"])
    log_of_50.fed.apply(
        assigned(
            job(0, log_of_50.path.split("/")[5], "/".join(log_of_50.path.split("/")[4:6])), "worker-b", 2
        )
    )
    forecast = log_of_50.ask("POST", log_of_50.path, {"to": "earliest", "execute": True}).json
    assert "sends no heartbeats" in forecast["partitions"][0]["why"]


# -- actors and buttons ----------------------------------------------------------------------------


def test_any_actor_can_be_recorded() -> None:
    class Request:
        headers = {"X-Switchyard-Actor": "ann\udcff" + "x" * 500}
        remote = None

    forecast = actor_of(Request())  # type: ignore[arg-type]
    assert forecast.encode()
    assert len(forecast) == 200


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_a_workload_is_paused_and_resumed_by_a_button_that_asks_first(orders: Console) -> None:
    view = orders.fed.control.view
    with chromium() as browser:
        page = browser.new_page()
        answers = iter([False, True])
        page.on("dialog", lambda dialog: dialog.accept() if next(answers) else dialog.dismiss())
        page.goto(f"{orders.url}/workloads/billing/orders")
        page.get_by_role("button", name="Pause").click()
        assert not view.paused, "the answer was no"
        with page.expect_response("**/pause"):
            page.get_by_role("button", name="Pause").click()
        assert view.is_paused("billing/orders", 0)
        page.goto(f"{orders.url}/activity")
        page.get_by_text("all of billing/orders paused by console").wait_for()
