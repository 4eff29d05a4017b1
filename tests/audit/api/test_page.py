"""The audit pages in a real browser: words and marks show the differences, and no name is markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.audit.api.plans import AWAY, HOME, AuditedTopics, every_state, plan
from tests.audit.api.test_rest_drilldown import finished
from tests.web.browser import ENOUGH_MS, IN_A_BROWSER
from tests.web.client import Console

pytestmark = IN_A_BROWSER
MINUS = "\N{MINUS SIGN}"
EVIL = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def audited(console: Console) -> AuditedTopics:
    """Topics in every state, without a difference, without one tier's audit, and with a malicious name."""
    assert console.ask("PUT", "/api/v1/audit/plans/all", plan()).status == 201
    made = every_state(console)
    for back in range(12, 3, -1):
        for tier in (HOME, AWAY):
            made.count("payments", tier, back, range(100))
        made.count("refunds", HOME, back, range(50))
        made.count("refunds", AWAY, back, range(20), silent=True)
    made.close("payments", HOME, AWAY, back=3)
    made.close("refunds", HOME)
    made.count("evil", HOME, 3, range(10))
    made.rename("evil", EVIL)
    return made


@pytest.mark.deep(minutes=0.1)
def test_the_list_shows_each_topics_worst_state_and_links_to_it(audited: AuditedTopics, browse: Any) -> None:
    page = browse("/audit?from=24h")

    def row(topic: str) -> str:
        return str(page.locator("tr", has=page.get_by_role("link", name=topic, exact=True)).inner_text())

    assert "records missing" in row("orders")
    assert "77 records missing in 2 windows" in row("orders")
    assert "arrived" in row("payments")
    assert "the audit of aggregate is absent" in row("refunds")
    assert "no reports now from: aggregate/east" in row("refunds")
    assert "records missing" not in row("refunds")
    assert "not compared" in row(EVIL)
    assert "1 of 5 topics differ" in page.inner_text(".verdict")
    page.get_by_label("Topics with").fill("pay")
    page.locator("select[name=from]").select_option("7d")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("All records of the compared windows have arrived").wait_for(timeout=ENOUGH_MS)
    assert page.locator("main tbody").first.locator("tr").count() == 1
    page.get_by_role("link", name="payments").click()
    page.locator("h1", has_text="payments").wait_for(timeout=ENOUGH_MS)
    assert "from=7d" in page.url


@pytest.mark.deep(minutes=0.1)
def test_a_topic_shows_every_window_with_marks_and_words_not_by_colour_alone(
    audited: AuditedTopics, browse: Any, tmp_path: Path
) -> None:
    page = browse("/audit/orders?from=24h")
    marks = [text for text in page.locator(".chart .mark").all_text_contents() if text]
    assert marks == ["part", "late", "≠", "+3", f"{MINUS}42", f"{MINUS}35", "…"]
    assert page.locator(".chart a").count() == 25
    lossy = page.locator(f'.chart a[href*="window={audited.start_ms(5)}"]')
    assert "35 of 305 records at regional are missing at aggregate" in lossy.get_attribute("aria-label")
    assert lossy.locator("rect.edge.lost").get_attribute("fill") == "url(#h-lost)"
    waiting = page.locator(f'.chart a[href*="window={audited.start_ms(0)}"]')
    assert waiting.locator("rect.edge.wait").count() == 1
    assert waiting.locator("rect.edge.lost").count() == 0
    text = page.inner_text("main")
    assert "as many at aggregate as at regional, 384, but not the same: their message ids differ" in text
    assert "1 window incomplete" in text
    page.screenshot(path=tmp_path / "topic.png", full_page=True)
    lossy.click()
    page.get_by_text("Between tiers").wait_for(timeout=ENOUGH_MS)
    start_ms = audited.start_ms(5)
    tiers = "--from-tier regional --to-tier aggregate"
    command = f"switchyard audit missing --topic orders {tiers} --start {start_ms}"
    assert command in page.inner_text("main")
    assert page.locator("main table").last.locator("tbody tr").count() == 2
    page.get_by_role("link", name="orders").click()
    page.get_by_text("What differs").first.wait_for(timeout=ENOUGH_MS)


@pytest.mark.deep(minutes=0.1)
def test_an_absent_audit_is_shown_as_absent_never_as_loss(audited: AuditedTopics, browse: Any) -> None:
    page = browse("/audit/refunds?from=24h")
    assert set(page.locator(".chart .mark").all_text_contents()) == {"?"}
    assert page.locator(".chart .edge.lost").count() == 0
    assert page.locator(".verdict.bad").count() == 0
    assert "without an audit of one tier: loss is not known there" in page.inner_text(".verdict")
    rows = page.locator('[aria-label="Differences"] tbody tr')
    assert rows.count() == 1, "windows that follow on each other are one row"
    assert "9 windows: the audit of aggregate is absent" in rows.inner_text()


@pytest.mark.deep(minutes=0.1)
def test_changes_are_shown_without_a_reload(audited: AuditedTopics, browse: Any) -> None:
    page = browse("/audit/payments?from=24h")
    assert "All records of the compared windows have arrived" in page.inner_text(".verdict")
    audited.count("payments", HOME, 2, range(100))
    audited.count("payments", AWAY, 2, range(93))
    audited.close("payments", HOME, AWAY, back=1)
    page.get_by_text("7 records missing").wait_for(timeout=ENOUGH_MS)


def test_names_are_text_and_no_page_is_wider_than_its_screen(
    audited: AuditedTopics, browse: Any, tmp_path: Path
) -> None:
    window = f"/audit/orders?window={audited.start_ms(5)}"
    evil = "/audit/%3Cimg%20src%3Dx%20onerror%3D%22document.title%3D'owned'%22%3E?from=24h"
    for path in ("/audit", "/audit/orders?from=24h", window, evil, f"/audit?from=24h&topic={EVIL}"):
        for width, dark in ((380, True), (1280, False)):
            page = browse(path, width=width, dark=dark)
            assert page.query_selector("main img") is None
            assert "owned" not in page.title().replace(EVIL, "")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert "[object" not in page.inner_text("main")
            assert "undefined" not in page.inner_text("main")
            page.screenshot(path=tmp_path / f"{width}.png", full_page=True)
            page.close()


def test_each_consumer_group_has_a_bar_of_its_own(console: Console, browse: Any) -> None:
    finished(console, billing={7}, web=set())
    page = browse("/audit/orders?from=24h")
    counts = "regional 20, consumer (billing) 9, consumer (web) 10"
    page.locator(f'a.window[aria-label*="{counts}"]').first.wait_for(state="attached", timeout=ENOUGH_MS)
    assert "are missing at consumer (billing)" in page.inner_text("main")


def test_the_links_lead_to_a_topics_files(audited: AuditedTopics, browse: Any) -> None:
    page = browse("/audit/orders?from=24h")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").last.click()
    assert download.value.suggested_filename == "audit-loss-orders.csv"
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("topic,group,from_tier,to_tier")
    assert len(lines) == 1 + 24, "every window that is compared"


@pytest.mark.deep(minutes=0.1)
def test_firing_alerts_are_shown(audited: AuditedTopics, browse: Any, console: Console) -> None:
    page = browse("/audit/orders?from=24h")
    assert page.locator(".note").count() == 0, "this worker tells of no alerts"
    answer = {
        "items": [
            {"name": EVIL, "topic": "orders", "from_tier": "regional", "to_tier": "aggregate",
             "state": "firing", "since_ms": audited.now_ms, "what": EVIL, "severity": "page", "todo": [EVIL]},
            {"name": "other", "topic": "payments", "state": "firing"},
            {"name": "over", "topic": "orders", "state": "resolved"},
        ],
        "next": None,
    }  # fmt: skip
    page.route("**/api/v1/alerts*", lambda route: route.fulfill(json=answer, status=web.HTTPOk.status_code))
    page.reload()
    page.locator(".note", has_text="onerror").wait_for(timeout=ENOUGH_MS)
    assert page.locator(".note").count() == 1
    assert page.query_selector("main img") is None


def test_missing_records_are_named_on_request(audited: AuditedTopics, browse: Any) -> None:
    page = browse(f"/audit/orders?window={audited.start_ms(5)}")
    dialogs: list[str] = []

    def heard(dialog: Any) -> None:
        dialogs.append(dialog.message)
        dialog.accept()

    page.on("dialog", heard)
    requested_urls: list[str] = []
    finding = {
        "kind": "missing", "id": EVIL, "key": None, "at": "2026-01-31T12:00", "one_of": 1, "why": EVIL,
        "source": {"cluster": "east", "topic": "orders", "partition": 1, "offset": 17}, "copy": None,
    }  # fmt: skip
    answer = {"counts": {"missing": 1}, "complete": False, "notes": [EVIL], "items": [finding], "next": None}

    def missing(route: Any) -> None:
        requested_urls.append(route.request.url)
        if len(requested_urls) == 1:
            route.fulfill(status=404, json={"type": "about:blank", "detail": "there is nothing"})
        else:
            route.fulfill(status=202 if len(requested_urls) == 2 else 200, json=answer)

    page.route("**/api/v1/audit/missing*", missing)
    name = page.get_by_role("button", name="Name them")
    with page.expect_event("dialog", timeout=ENOUGH_MS):
        name.click()
    assert dialogs == ["Not done: this worker cannot name them"]
    name.click()
    page.get_by_text("east/orders-1 @ 17").wait_for(timeout=ENOUGH_MS)
    assert f"from_tier=regional&to_tier=aggregate&start={audited.start_ms(5)}" in requested_urls[0]
    assert "These are not all" in page.inner_text("main")
    assert "switchyard audit copy-again --topic orders" in page.inner_text("main")
    assert page.query_selector("main img") is None
