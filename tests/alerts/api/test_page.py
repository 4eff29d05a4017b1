"""The pages of alerts in a real browser: firing alerts, notices, definitions; no secret, no markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.controllog.alert_state import AlertWindow, LastNotice
from tests.alerts.api.test_rest import AT_MS, alert_of, definition, receiving
from tests.web.browser import ENOUGH_MS, IN_A_BROWSER
from tests.web.client import Console

pytestmark = IN_A_BROWSER
EVIL = "<img src=x onerror=\"document.title='owned'\">"
WORD = "s3cret"
HOOK = {
    "webhook": {
        "url": f"https://alerts.example/{WORD}?token={WORD}",
        "headers": {"Authorization": "env:SWITCHYARD_ALERT_HOOK", "X-Team": WORD},
    }
}
MANAGER = {"alertmanager": {"url": "env:SWITCHYARD_ALERT_MANAGER"}}
PAGES = ("/alerts", "/alerts/orders-lost")


@pytest.fixture
def alerts(console: Console) -> Console:
    """Alerts in every state, with names that are markup; one of their channels takes no notices."""
    fed = console.fed
    document = definition(HOOK, MANAGER, above=3, **{"for": "5m"})
    document["metadata"]["owner"] = EVIL
    assert console.ask("PUT", "/api/v1/alerts/orders-lost", document).status == 201
    hook, manager = (channel.key for channel in fed.alerts.definitions()[0].spec.channels)
    window = AlertWindow(AT_MS, AT_MS + 60_000, "absent-audit", 100, 0, absent=(EVIL,))
    taken = {
        manager: LastNotice(1, AT_MS + 9),
        hook: LastNotice(0, 0, AT_MS + 7_000, f"answered 500: {EVIL}"),
    }
    fed.apply(
        alert_of(fed, told=taken),
        alert_of(fed, "f01-1", topic=EVIL, to_tier=EVIL, reader=EVIL, windows=(window,), more=4, told=taken),
        alert_of(fed, "f02-1", state="pending", notice=0, fired_ms=0, topic="payments"),
        alert_of(fed, "f03-1", state="resolved", notice=2, over_ms=AT_MS + 8, resolved_ms=AT_MS + 9,
                 topic="refunds", told={manager: LastNotice(2, AT_MS + 9), hook: LastNotice(2, AT_MS + 9)}),
        alert_of(fed, "f04-1", rule="deleted-since"),
    )  # fmt: skip
    return console


def rows(page: Any, caption: str) -> list[str]:
    """The texts of a table's rows."""
    return list(page.locator(f'[aria-label="{caption}"] tbody tr').all_inner_texts())


@pytest.mark.deep(minutes=0.2)
def test_the_list_shows_which_alerts_fire_since_when_and_which_channels_they_did_not_reach(
    alerts: Console, browse: Any
) -> None:
    page = browse("/alerts")
    verdict = page.inner_text(".verdict.bad")
    assert "3 alerts fire: " in verdict
    assert "orders-lost: webhook https://alerts.example does not take notices: answered 500" in verdict
    live = rows(page, "Firing and pending")
    assert len(live) == 4
    (orders,) = [row for row in live if row.startswith("orders-lost") and "orders, regional" in row]
    for part in ("firing warning", "orders, regional \u2192 aggregate: 2 of 100 records lost", "2027-01-15",
                 "alertmanager took notice 1", "webhook does not take it"):  # fmt: skip
        assert part in orders
    (pending,) = [row for row in live if "payments" in row]
    assert "not yet: it must hold for longer" in pending
    (deleted,) = [row for row in live if "deleted-since" in row]
    assert "its definition was deleted" in deleted
    (resolved,) = rows(page, "Resolved")
    assert "refunds" in resolved
    assert resolved.count("took notice 2") == 2
    (rule,) = rows(page, "Definitions")
    wanted = "loss above 3 for 5m; topics orders; any two tiers"
    for part in (wanted, "warning", "alertmanager env:SWITCHYARD_ALERT_MANAGER"):
        assert part in rule
    page.get_by_role("link", name="orders-lost").first.click()
    page.locator("h1", has_text="orders-lost").wait_for(timeout=ENOUGH_MS)


def test_an_alert_shows_its_windows_its_channels_and_what_to_do(alerts: Console, browse: Any) -> None:
    page = browse("/alerts/orders-lost")
    assert [row.split()[:4] for row in rows(page, "Windows of orders")] == [
        ["2027-01-15", "08:00:00", "records", "missing"]
    ]
    text = page.inner_text("main")
    for part in (
        "does not take it: answered 500", "took notice 1 at 2027-01-15", "took nothing yet",
        "since 2027-01-15", "switchyard audit missing --topic orders", "and 4 windows more", "audit absent",
        "at least", "env:SWITCHYARD_ALERT_HOOK", "https://alerts.example/\u2026",
        "switchyard alert test orders-lost",
    ):  # fmt: skip
        assert part in text


def test_no_page_shows_a_secret_or_takes_a_name_for_markup(
    alerts: Console, browse: Any, tmp_path: Path
) -> None:
    for path in PAGES:
        for width in (390, 1280):
            for dark in (True, False):
                page = browse(path, width=width, dark=dark)
                page.get_by_text("onerror").first.wait_for(timeout=ENOUGH_MS)
                assert page.query_selector("main img") is None
                assert "owned" not in page.title()
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                text = page.inner_text("main")
                assert WORD not in text
                assert not {"[object", "undefined", "NaN"} & set(text.split())
                name = f"{path.strip('/').replace('/', '-')}-{width}-{'dark' if dark else 'light'}.png"
                page.screenshot(path=tmp_path / name, full_page=True)
                page.close()


def test_firing_alerts_appear_and_resolved_ones_vanish_without_a_reload(
    console: Console, browse: Any
) -> None:
    page = browse("/alerts")
    assert "no person learns of missing records" in page.inner_text(".verdict.plain")
    assert "No alert is defined yet" in page.inner_text("main")
    console.ask("PUT", "/api/v1/alerts/orders-lost", definition())
    page.get_by_text("Nothing fires.").wait_for(timeout=ENOUGH_MS)
    console.fed.apply(alert_of(console.fed))
    page.get_by_text("1 alert fires: orders").wait_for(timeout=ENOUGH_MS)
    assert "none: it has no channels" in rows(page, "Firing and pending")[0]
    console.fed.apply(alert_of(console.fed, state="resolved", resolved_ms=AT_MS + 9))
    page.get_by_text("Nothing fires.").wait_for(timeout=ENOUGH_MS)


def test_a_test_of_the_channels_is_sent_by_a_button(console: Console, browse: Any) -> None:
    dialogs: list[str] = []

    def accept(dialog: Any) -> None:
        dialogs.append(dialog.message)
        dialog.accept()

    with receiving() as receiver:
        console.ask(
            "PUT", "/api/v1/alerts/orders-lost", definition({"webhook": {"url": receiver.url}}, MANAGER)
        )
        page = browse("/alerts/orders-lost")
        page.on("dialog", accept)
        with page.expect_event("dialog", lambda dialog: dialog.type == "alert", timeout=ENOUGH_MS):
            page.get_by_role("button", name="Send a test").click()
        assert [body["test"] for body in receiver.bodies] == [True]
        place = receiver.url
    assert dialogs == [
        "Send a test notice to every channel of orders-lost?",
        f"webhook {place}: took it\nalertmanager env:SWITCHYARD_ALERT_MANAGER: environment variable "
        "SWITCHYARD_ALERT_MANAGER is not set here; set it on every worker",
    ]


@pytest.mark.deep(minutes=0.1)
@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 380)])
def test_the_first_page_says_how_many_fire_and_leads_to_them(
    alerts: Console, browse: Any, tmp_path: Path, dark: bool, width: int
) -> None:
    page = browse("/", dark=dark, width=width)
    line = page.locator(".verdict.bad li", has_text="alerts fire")
    line.wait_for(timeout=ENOUGH_MS)
    assert line.inner_text() == "3 alerts fire: the audit found something that needs a person"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / "overview.png", full_page=True)
    line.get_by_role("link").click()
    page.locator("h1", has_text="Alerts").wait_for(timeout=ENOUGH_MS)


def test_the_first_page_says_nothing_of_alerts_where_none_fires(console: Console, browse: Any) -> None:
    page = browse("/")
    page.locator(".verdict").wait_for(timeout=ENOUGH_MS)
    assert "alert" not in page.inner_text("main").lower()
