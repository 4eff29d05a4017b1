"""The pages of a real worker in a real browser: they show its data, and none of it as markup."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import create_topic, messages, produce
from app.dev.yard import Yard
from app.dispatch.model.retry_headers import left_out_headers
from tests.dispatch.dlq.queues import DeadLetterQueue, headers
from tests.system.conftest import make_stage
from tests.web.browser import ENOUGH_MS, IN_A_BROWSER, POLL_MS, browsing

pytestmark = IN_A_BROWSER
EVIL = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def console(_shared_yard: Yard) -> Iterator[tuple[DemoStage, Process, str]]:
    """A worker with a workload that has delivered, retried and stashed messages.

    Its dead letters include markup, a null value, and a letter that lacks its value.
    """
    with make_stage(_shared_yard) as stage:
        topic = f"pages-{stage.region}"
        bootstrap = _shared_yard.bootstrap("east-aggregate")
        asyncio.run(create_topic(bootstrap, topic, 2))
        source = _shared_yard.bootstrap("east-regional")
        for name in ("orders", "test"):
            asyncio.run(create_topic(source, f"{topic}.{name}", 2))
        asyncio.run(produce(source, f"{topic}.orders", messages(100)))
        receiver = stage.receiver("billing", topic)
        worker = stage.worker()
        stage.deploy(worker, {
            "apiVersion": "switchyard/v1", "kind": "Route", "metadata": {"name": "copied", "owner": EVIL},
            "spec": {"from": "east-regional", "to": "east-aggregate", "topics": [f"{topic}\\..*"],
                     "exclude": [".*\\.test"], "rename": "{cluster}.{topic}"},
        })  # fmt: skip
        stage.deploy(worker, workload("billing", topic, "east-aggregate", receiver.address,
                                      retry=[{"delay": "1s", "attempts": 2}]))  # fmt: skip

        async def evil() -> None:
            async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
                body = orjson.dumps({"id": EVIL, "behaviour": "poison"})
                await producer.send_and_wait(topic, body, key=EVIL.encode())

        asyncio.run(produce(bootstrap, topic, messages(400)))
        asyncio.run(evil())
        wait_until(lambda: len({d["id"] for d in stage.deliveries()}) >= 401, 60, worker.tail)
        letters = f"{worker.url}/api/v1/dlq/billing/{topic}"  # dead letters arrive after their delivery
        wait_until(lambda: http("GET", letters)[1]["messages"] == 5, 60, worker.tail)
        queue, lacks = DeadLetterQueue(bootstrap, topic), left_out_headers(b"v" * 3_000, topic, 0, 7, "")
        asyncio.run(queue.put(None, key=b"lacking", headers=[*headers(), *lacks]))
        asyncio.run(queue.put(None, key=b"tombstone", headers=headers()))
        yield stage, worker, topic


@pytest.fixture
def browse(console: tuple[DemoStage, Process, str]) -> Iterator[Any]:
    """A function that opens a page; not all pages are live."""
    with browsing(console[1].url, shows="h1") as opened:
        yield opened


def test_the_overview_shows_workers_and_workloads_live(console: Any, browse: Any) -> None:
    _, _, topic = console
    page = browse("/")
    page.wait_for_selector("#live.on")
    text = page.inner_text("main")
    assert f"billing/{topic}" in text
    assert "leader" in text


def test_the_workload_page_shows_partitions_and_dead_letters_as_text_never_as_markup(
    console: Any, browse: Any
) -> None:
    _, _, topic = console
    page = browse(f"/workloads/billing/{topic}")
    page.get_by_text("onerror").first.wait_for(timeout=ENOUGH_MS)
    assert page.query_selector("main img") is None
    assert "owned" not in page.title()
    assert "FAILED_PRECONDITION" in page.inner_text("main")


def test_the_workload_page_shows_a_value_that_its_letter_lacks_unlike_null(console: Any, browse: Any) -> None:
    _, _, topic = console
    page = browse(f"/workloads/billing/{topic}")
    page.get_by_text("tombstone").first.wait_for(timeout=ENOUGH_MS)
    rows = [page.locator("tr", has_text=key).inner_text().split("\t") for key in ("lacking", "tombstone")]
    assert [row[-2:] for row in rows] == [
        ["lacking", "3,000 bytes, not in the letter"],
        ["tombstone", "null"],
    ]


def test_the_workload_page_shows_the_state_of_a_real_receiver(
    console: Any, browse: Any, tmp_path: Path
) -> None:
    _, worker, topic = console
    page = browse(f"/workloads/billing/{topic}")
    page.get_by_text("Nothing holds it back").wait_for(timeout=ENOUGH_MS)
    address = page.locator(".card h3").first.inner_text()
    assert address.startswith("127.0.0.1:")
    text = page.inner_text("main")
    assert "adaptive (" in text
    name = http("GET", f"{worker.url}/api/v1/workers")[1]["items"][0]["worker"]
    assert f"as {name} sees it" in text
    page.screenshot(path=tmp_path / "workload.png", full_page=True)


def test_the_tracker_page_draws_the_window(console: Any, browse: Any) -> None:
    _, _, topic = console
    page = browse(f"/workloads/billing/{topic}/partitions/0")
    page.wait_for_selector("svg.strip", timeout=ENOUGH_MS)
    assert "committed (base)" in page.inner_text("main")


@pytest.mark.parametrize(
    "path",
    [
        "/routes/copied",
        *(
            pytest.param(path, marks=pytest.mark.deep(minutes=0.1))
            for path in ("/", "/workloads", "/routes", "/placement", "/audit", "/activity")
        ),
    ],
)
def test_no_page_is_wider_than_a_phone(browse: Any, path: str, tmp_path: Path) -> None:
    page = browse(path, dark=True, width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.screenshot(path=tmp_path / "phone.png")


@pytest.mark.deep(minutes=0.4)
def test_the_placement_page_shows_what_a_real_worker_measured_and_has(
    console: Any, browse: Any, tmp_path: Path
) -> None:
    _, worker, topic = console

    def size() -> Any:
        return http("GET", f"{worker.url}/api/v1/workloads/billing/{topic}/sizing")[1]

    wait_until(lambda: size()["measured"]["rate_per_s"] is not None, 60, worker.tail)
    measured = size()["measured"]
    assert measured["latency_ms"] > 0
    assert measured["load"]["memory_bytes"] > 0
    page = browse("/placement")
    page.get_by_text("it had no owner").first.wait_for(timeout=ENOUGH_MS)
    (found,) = http("GET", f"{worker.url}/api/v1/workers")[1]["items"]
    assert 0 < found["capacity"]["cpu_cores"] <= 1
    text = page.inner_text("main")
    assert f"of {found['capacity']['cpu_cores']:.2f}" in text
    assert "the emptiest of 1 with room" in text
    page.screenshot(path=tmp_path / "placement.png", full_page=True)


def test_the_route_page_shows_topics_and_partitions_as_text_and_pauses_it(
    console: Any, browse: Any, tmp_path: Path
) -> None:
    _, worker, topic = console
    page = browse("/routes/copied")
    page.get_by_text(f"east-regional.{topic}.orders").wait_for(timeout=ENOUGH_MS)
    page.get_by_text("excluded by '.*\\.test'").wait_for(timeout=ENOUGH_MS)
    page.locator("td .pill.good", has_text="copied").wait_for(timeout=ENOUGH_MS)
    assert page.query_selector("main img") is None
    assert "onerror" in page.inner_text("main pre")
    assert "owned" not in page.title()
    page.screenshot(path=tmp_path / "route.png", full_page=True)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Paused: nothing is copied").wait_for(timeout=ENOUGH_MS)
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for(timeout=ENOUGH_MS)
    assert http("GET", f"{worker.url}/api/v1/routes/copied")[1]["status"]["paused"] is False


def test_the_list_of_routes_shows_what_each_copies_and_links_to_it(console: Any, browse: Any) -> None:
    page = browse("/routes")
    page.get_by_role("link", name="copied").click()
    page.wait_for_url("**/routes/copied")


def test_an_unknown_workload_has_a_page_that_says_so(browse: Any) -> None:
    page = browse("/workloads/no/such")
    page.wait_for_function(
        "document.querySelector('main').innerText.includes('there is no workload no/such')",
        timeout=ENOUGH_MS,
        polling=POLL_MS,
    )
