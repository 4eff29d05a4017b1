"""What a page does while things change under it, in a real browser over a runtime fed by hand."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.wire import Incident
from tests.console.hand_fed import HandFed, assigned, beat, definition, flowing, job, put, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium on PATH; install Debian's chromium to run these"
    ),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def fed() -> HandFed:
    fed = HandFed()
    fed.members.dead_after_s = 3600.0  # heard once, by hand
    fed.control.view.leader = fed.worker
    fed.apply(put(definition()), assigned(job(0)))
    fed.hear(beat(flowing(job(0), delivered=41_000)))
    return fed


@pytest.fixture
def page(chromium: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("app.console.api.EVENTS_S", 0.1)
    page = chromium.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert not errors


def says(page: Any, text: str, timeout_s: float = 15.0) -> None:
    page.wait_for_function(
        "text => document.body.innerText.includes(text)", arg=text, timeout=timeout_s * 1000
    )


def test_a_page_lives_on_under_the_keyboard_and_the_mouse(page: Any, fed: HandFed) -> None:
    """A link must not be taken away between the press and the release of a button, nor lose its focus."""
    with serving(fed) as url:
        page.goto(url)
        says(page, "41,000")
        page.focus("main td a")
        page.evaluate("window.pressed = document.querySelector('main td a')")
        fed.hear(beat(flowing(job(0), delivered=42_000)))
        says(page, "42,000")
        assert page.evaluate("window.pressed === document.querySelector('main td a')")
        assert page.evaluate("window.pressed === document.activeElement")
        page.keyboard.press("Enter")
        says(page, "Definition")


def test_a_page_opened_while_the_worker_starts_comes_alive_by_itself(page: Any, fed: HandFed) -> None:
    fed.control.caught_up = False
    with serving(fed) as url:
        page.goto(url)
        says(page, "does not answer")
        fed.control.caught_up = True
        says(page, "41,000")
        page.wait_for_selector("#live.on")
        assert page.is_hidden("#banner")


def test_a_worker_that_hangs_is_told_with_the_age_of_what_is_shown_until_it_answers(
    page: Any, fed: HandFed
) -> None:
    goes_on = threading.Event()
    goes_on.set()
    live = fed.members.live

    def hanging(now_s: float) -> Any:
        goes_on.wait(60)
        return live(now_s)

    fed.members.live = hanging  # type: ignore[method-assign] # the loop stands still, as after a SIGSTOP
    with serving(fed) as url:
        page.goto(url)
        says(page, "41,000")
        goes_on.clear()
        try:
            says(page, "s old.")
            assert page.inner_text("#live") == "not live"
            assert "41,000" in page.inner_text("main")
        finally:
            goes_on.set()
        page.wait_for_selector("#live.on")
        assert page.is_hidden("#banner")


def test_the_first_line_says_what_needs_somebody(page: Any, fed: HandFed) -> None:
    with serving(fed) as url:
        page.goto(url)
        says(page, "All workloads flow.")
        fed.hear(beat(flowing(job(0)), breaker="open"))
        says(page, "its receiver is away")
        fed.apply(assigned(job(1), worker="gone"))
        says(page, "1 of 2 partitions wait for a worker")
        assert "unknown" in page.inner_text("main table")


def test_what_comes_from_outside_is_text_wherever_it_stands(page: Any, fed: HandFed) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    data = definition()
    data["metadata"]["owner"] = evil
    fed.apply(put(data))
    fed.control.recent.append(
        {"event": "workload-put", "counted": True, "at_ms": 1, "key": evil, "actor": evil}
    )
    fed.hear(beat(flowing(job(0), trouble=evil), url="javascript:document.title='owned'"))
    fed.incidents.append(Incident(at_ms=1, worker=evil, kind=evil, subject=evil, message=evil, remedy=evil))
    with serving(fed) as url:
        for path in ("/", "/workloads", "/workloads/billing/orders", "/activity"):
            page.goto(url + path)
            says(page, "onerror")
            assert page.query_selector("main img, main script") is None
        page.goto(url)
        page.get_by_role("link", name="worker-a").click()
        assert "owned" not in page.title()
