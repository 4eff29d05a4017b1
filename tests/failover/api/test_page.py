"""The failover page in a real browser: an operator reads, executes and aborts a plan; no text becomes
markup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.failover.api.test_rest import PATH, failover
from tests.failover.api.test_rest_runs import API, planned, regions
from tests.web.browser import IN_A_BROWSER, chromium
from tests.web.client import Console

pytestmark = IN_A_BROWSER
EVIL = "<img src=x onerror=\"document.title='owned'\">"


def test_a_plan_is_read_executed_and_given_up_on_the_page(console: Console, tmp_path: Path) -> None:
    regions(console.fed)
    assert console.ask("PUT", PATH, failover("orders", "refunds")).status == 201
    name = planned(console, reason=EVIL)["id"]
    problems: list[str] = []
    with chromium() as browser:
        page: Any = browser.new_page(viewport={"width": 380, "height": 900}, color_scheme="dark")
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept("because"))
        page.goto(f"{console.url}/failover?run={name}")
        page.get_by_role("heading", name="The plan", exact=True).wait_for(timeout=60_000)
        text = page.inner_text("main")
        assert "billing/refunds: this worker has no offset map" in text
        assert "onerror" in text
        assert "[object" not in text
        assert page.query_selector("main img") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        page.get_by_role("button", name="Execute").click()
        page.get_by_role("button", name="Force it").wait_for(timeout=60_000)
        assert console.ask("GET", f"{API}/{name}").json["by"] == "console"
        page.get_by_role("button", name="Abort").click()
        page.locator("h2 .pill.bad", has_text="aborted").wait_for(timeout=60_000)
        page.get_by_role("button", name="Plan a failover to here…").click()
        page.wait_for_url(lambda url: "run=failover-" in url and name not in url, timeout=60_000)
        page.get_by_role("heading", name="The plan", exact=True).wait_for(timeout=60_000)
        page.screenshot(path=tmp_path / "failover.png", full_page=True)
        assert "owned" not in page.title()
    assert not problems
    assert [run["reason"] for run in console.ask("GET", f"{API}/runs").json["items"]] == ["because", EVIL]
