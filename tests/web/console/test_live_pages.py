"""How a page follows changes, in a real browser over a fake runtime."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.controllog.codec import IncidentRecord
from app.controllog.events import Drain, MoveWish
from app.dispatch.model.throughput_diagnosis import TargetStatus
from app.kernel.load import Load
from tests.web.browser import IN_A_BROWSER, POLL_MS, chromium
from tests.web.runtime_fake import (
    ME,
    FakeRuntime,
    assigned,
    beat,
    definition,
    flowing,
    in_trouble,
    incident,
    job,
    put,
    serving,
)

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as connected:
        yield connected


@pytest.fixture
def fed() -> FakeRuntime:
    fed = FakeRuntime()
    fed.control.view.leader = fed.worker
    fed.apply(put(definition()), assigned(job(0)))
    fed.observe(beat(flowing(job(0), delivered=41_000)))
    return fed


@pytest.fixture
def page(browser: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("app.worker.api.rest_overview.EVENTS_INTERVAL_S", 0.1)
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert not errors


def wait_for_text(page: Any, text: str, timeout_s: float = 60.0) -> None:
    page.wait_for_function(
        "text => document.body.innerText.includes(text)", arg=text, timeout=timeout_s * 1000, polling=POLL_MS
    )


def test_an_update_keeps_the_focus_and_the_pressed_link(page: Any, fed: FakeRuntime) -> None:
    """An update must not replace a link between press and release of a button, nor take its focus."""
    with serving(fed) as url:
        page.goto(url)
        wait_for_text(page, "41,000")
        page.focus("main td a")
        page.evaluate("window.pressed = document.querySelector('main td a')")
        fed.observe(beat(flowing(job(0), delivered=42_000)))
        wait_for_text(page, "42,000")
        assert page.evaluate("window.pressed === document.querySelector('main td a')")
        assert page.evaluate("window.pressed === document.activeElement")
        page.keyboard.press("Enter")
        wait_for_text(page, "Definition")


def test_a_page_opened_while_the_worker_starts_comes_alive_by_itself(page: Any, fed: FakeRuntime) -> None:
    fed.control.caught_up = False
    with serving(fed) as url:
        page.goto(url)
        wait_for_text(page, "does not answer")
        fed.control.caught_up = True
        wait_for_text(page, "41,000")
        page.wait_for_selector("#live.on")
        assert page.is_hidden("#banner")


def test_a_page_of_a_worker_that_hangs_shows_its_age_until_the_worker_answers(
    page: Any, fed: FakeRuntime
) -> None:
    may_run = threading.Event()
    may_run.set()
    live = fed.members.live

    def hanging(now_s: float) -> Any:
        may_run.wait(60)
        return live(now_s)

    fed.members.live = hanging  # type: ignore[method-assign] # the loop hangs, as after a SIGSTOP
    with serving(fed) as url:
        page.goto(url)
        wait_for_text(page, "41,000")
        may_run.clear()
        try:
            wait_for_text(page, "s old.")
            assert page.inner_text("#live") == "not live"
            assert "41,000" in page.inner_text("main")
        finally:
            may_run.set()
        page.wait_for_selector("#live.on")
        assert page.is_hidden("#banner")


def test_the_first_line_says_what_needs_attention(page: Any, fed: FakeRuntime) -> None:
    with serving(fed) as url:
        page.goto(url)
        wait_for_text(page, "All workloads flow.")
        fed.observe(beat(flowing(job(0)), breaker="open"))
        wait_for_text(page, "its receiver is away")
        fed.apply(assigned(job(1), worker="gone"))
        wait_for_text(page, "1 of 2 partitions wait for a worker")
        assert "unknown" in page.inner_text("main table")


def test_outside_data_is_shown_as_text_everywhere(page: Any, fed: FakeRuntime) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    data = definition()
    data["metadata"]["owner"] = evil
    fed.apply(put(data))
    fed.control.recent.append(
        {"event": "workload-put", "counted": True, "at_ms": 1, "key": evil, "actor": evil}
    )
    fed.apply(
        assigned(job(0), reason=evil),
        MoveWish(at_ms=1, job=job(0), worker=evil, epoch=1, actor=evil, why=evil),
    )
    troubled = in_trouble(evil)
    fed.observe(beat(flowing(job(0), trouble=evil), url="javascript:document.title='owned'", **troubled))
    fed.incidents.known.add(
        IncidentRecord(at_ms=1, worker=evil, kind=evil, subject=evil, message=evil, remedy=evil)
    )
    lasting = msgspec.structs.replace(incident(evil), kind=evil, subject=evil, lasts=True)
    fed.incidents.known.add(lasting)
    fed.incidents.known.add(msgspec.structs.replace(lasting, message=f"{evil}2", ended_ms=1, ended_why=evil))
    with serving(fed) as url:
        for path in ("/", "/workloads", "/workloads/billing/orders", "/placement", "/activity"):
            page.goto(url + path)
            wait_for_text(page, "onerror")
            assert page.query_selector("main img, main script") is None
        page.goto(url)
        wait_for_text(page, "worker-a")
        assert page.query_selector('a[href^="javascript"]') is None


@pytest.mark.parametrize(("width", "dark"), [(380, True), (1280, False)])
def test_the_workload_page_says_why_deliveries_stand_still_on_every_screen(
    browser: Any, fed: FakeRuntime, width: int, dark: bool, tmp_path: Path
) -> None:
    fed.observe(beat(flowing(job(0), state="emptying", postponed=5), breaker="open", **in_trouble()))
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    with serving(fed) as url:
        page.goto(f"{url}/workloads/billing/orders")
        for text in (
            "Held back by: the receiver is away", "the next probe in 700 ms", "20.0 s, adapted from 10.0 s",
            "75 % of 40 answers", "10.0.0.1:443 (same zone)", "3 of 50", "ejected",
            "10.0.1.1:443", "and 2 more", "5 short", "no token", "and 3 more", "not finished", "1 emptying",
        ):  # fmt: skip
            wait_for_text(page, text)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=tmp_path / "workload.png", full_page=True)
    page.close()


@pytest.mark.parametrize("dark", [False, True])
def test_an_incident_is_red_while_its_state_lasts_and_quiet_once_it_has_ended(
    browser: Any, fed: FakeRuntime, dark: bool, tmp_path: Path
) -> None:
    fed.observe(beat(flowing(job(0))))
    known, lasting = fed.incidents.known, msgspec.structs.replace(incident("away"), lasts=True)
    ended = msgspec.structs.replace(lasting, message="back", ended_ms=lasting.at_ms + 12_000)
    for record in (lasting, ended, incident("moment"), incident("later")):
        known.add(record)
    page = browser.new_page(color_scheme="dark" if dark else "light")

    def notes() -> dict[str, tuple[str, str]]:
        """The mark and the colour of each incident, by its message; in the order of the page."""
        return {
            one.inner_text().split(f"{job(0)}: ")[1].split("\n")[0]: (
                "".join(mark.inner_text() for mark in one.query_selector_all(".pill")),
                one.evaluate("note => getComputedStyle(note).borderLeftColor"),
            )
            for one in page.query_selector_all("main .note")
        }

    with serving(fed) as url:
        page.goto(url)
        wait_for_text(page, "ended after 12.0 s")
        page.screenshot(path=tmp_path / "incidents.png", full_page=True)
        found = notes()
        assert next(iter(found)) == "away"
        assert {message: mark for message, (mark, _) in found.items()} == {
            "away": "open", "back": "ended after 12.0 s", "moment": "", "later": "",
        }  # fmt: skip
        colors = {message: color for message, (_, color) in found.items()}
        assert len({colors["away"], colors["back"], colors["moment"]}) == 3
        known.add(
            msgspec.structs.replace(lasting, ended_ms=lasting.at_ms + 60_000, ended_why="its worker stopped")
        )
        wait_for_text(page, "ended after 60.0 s: its worker stopped")
        assert notes()["away"][1] == colors["back"]
    page.close()


def test_an_open_incident_that_no_workload_shows_is_in_the_headline(page: Any, fed: FakeRuntime) -> None:
    fed.observe(beat(flowing(job(0))))
    lasting = msgspec.structs.replace(incident("<b>4</b> rows are in memory only"), lasts=True)
    fed.incidents.known.add(lasting)
    with serving(fed) as url:
        page.goto(url)
        wait_for_text(page, "One thing needs attention")
        assert "<b>4</b> rows are in memory only" in page.locator(".verdict").inner_text()
        fed.incidents.known.add(msgspec.structs.replace(lasting, ended_ms=lasting.at_ms + 1_000))
        wait_for_text(page, "All workloads flow.")


def test_a_sleeping_workload_needs_no_attention_and_says_when_it_wakes(page: Any, fed: FakeRuntime) -> None:
    why = "hibernated: nothing arrived for 30 minutes; it wakes with the first message"
    fed.apply(assigned(job(0), worker="", epoch=2, reason=why))
    fed.observe(beat())
    with serving(fed) as url:
        page.goto(url)
        wait_for_text(page, "All workloads flow.")
        wait_for_text(page, "hibernated")
        page.goto(f"{url}/workloads/billing/orders")
        wait_for_text(page, "Hibernated. nothing arrived for 30 minutes; it wakes with the first message")


def test_the_activity_page_shows_drains_and_wishes_in_words(page: Any, fed: FakeRuntime) -> None:
    for event in (
        {"event": "drain", "worker": "w2", "draining": True, "actor": "ann"},
        {"event": "drain", "worker": "w3", "draining": False, "actor": "ann"},
        {"event": "move-wish", "job": job(0), "worker": "w2", "actor": "bob", "why": "<b>hot</b>"},
        {"event": "moving", "key": "billing/orders", "move": "m1", "to": "west", "actor": "bob"},
    ):
        fed.control.recent.append({"counted": True, "at_ms": 1, **event})
    with serving(fed) as url:
        page.goto(f"{url}/activity")
        for words in (
            "w2 hands over its jobs and gets no more, by ann", "w3 gets jobs again, by ann",
            f"{job(0)} is wanted on w2 by bob: <b>hot</b>", "billing/orders is paused to be moved",
        ):  # fmt: skip
            wait_for_text(page, words)


@pytest.mark.parametrize(("width", "dark"), [(380, True), (1280, False)])
def test_the_placement_page_says_where_every_job_is_and_why(
    browser: Any, fed: FakeRuntime, width: int, dark: bool, tmp_path: Path
) -> None:
    load, capacity = Load(0.25, 64 << 20, 2e6), Load(1.0, 2 << 30, 125e6)
    measured: dict[str, Any] = {"arriving": 500.0, "ceiling": 100.0, "load": load}
    receiver: dict[str, Any] = {"targets": [TargetStatus(address="billing:443", latency_ms=20.0, calls=40)]}
    fed.apply(
        assigned(job(1), "w2", reason="worker-a is at 95 % of its cpu, above 90 %"),
        Drain(at_ms=1, worker="w2", draining=True, actor="ann"),
        MoveWish(at_ms=1, job=job(1), worker=ME, epoch=1, actor="ann"),
    )
    for one in (
        beat(flowing(job(0), **measured), **receiver),
        beat(flowing(job(1), **measured), worker="w2"),
    ):
        fed.observe(msgspec.structs.replace(one, capacity=capacity, used=load, group=""))
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    with serving(fed) as url:
        page.goto(f"{url}/placement")
        for text in (
            "0.25 of 1.00, 25 %", "64.0 MiB of 2.0 GiB", "drained", "worker-a is at 95 % of its cpu",
            "50 % of cpu", "1,000/s", "20.0 ms", "2 → 13",
        ):  # fmt: skip
            wait_for_text(page, text)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=tmp_path / "placement.png", full_page=True)
        page.get_by_role("link", name="w2").first.click()
        wait_for_text(page, "Jobs of w2")
        jobs = page.get_by_role("region", name="Jobs")
        assert jobs.locator("tbody tr").count() == 1
        page.goto(f"{url}/workloads/billing/orders")
        for text in ("Little's law", "wanted on worker-a", "arriving 1,000/s"):
            wait_for_text(page, text)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=tmp_path / "workload.png", full_page=True)
    page.close()


def test_no_column_of_overview_and_placement_is_cut_on_a_laptop(browser: Any, fed: FakeRuntime) -> None:
    pod = "worker-7d9f8b6c5d-x2x4z-1-6b0c040c"
    load, capacity = Load(0.25, 64 << 20, 2e6), Load(1.0, 2 << 30, 125e6)
    fed.apply(
        assigned(job(1), pod, reason="worker-a is at 95 % of its cpu, above 90 %"),
        Drain(at_ms=1, worker=pod, draining=True, actor="ann"),
        MoveWish(at_ms=1, job=job(1), worker=ME, epoch=1, actor="ann"),
    )
    for one in (beat(flowing(job(0), load=load)), beat(flowing(job(1), load=load), worker=pod)):
        fed.observe(msgspec.structs.replace(one, capacity=capacity, used=load))
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    with serving(fed) as url:
        for path, words in (("/", "25 %"), ("/placement", f"wanted on {ME}")):
            page.goto(url + path)
            wait_for_text(page, words)
            cut = "tables => tables.filter(t => t.scrollWidth > t.clientWidth).map(t => t.innerText)"
            assert page.locator(".scroll").evaluate_all(cut) == []
    page.close()
