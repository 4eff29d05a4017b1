"""Workloads of several regions in a real browser: roles are shown as text, on any screen, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.failover.api.test_roles import KEY, REFUNDS, regions
from tests.web.browser import IN_A_BROWSER, chromium
from tests.web.client import Console

pytestmark = IN_A_BROWSER


@pytest.fixture
def browse() -> Iterator[Any]:
    """Opens pages; fails the test on any script error."""
    errors: list[str] = []
    with chromium() as browser:

        def open_page(address: str, *, dark: bool = False, width: int) -> Any:
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
            )
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(address)
            return page

        yield open_page
    assert not errors


@pytest.mark.deep(minutes=0.3)
def test_the_pages_show_roles_as_text_on_any_screen(console: Console, browse: Any) -> None:
    url = regions(console).url
    for path, width, wanted in (
        ("/workloads", 1280, "active in west"),
        (f"/workloads/{KEY}", 380, "passive here"),
        ("/failover", 380, "no message from it yet"),
        ("/failover", 1280, "active in west"),
    ):
        page = browse(url + path, dark=width < 1000, width=width)
        page.get_by_text(wanted).first.wait_for(timeout=60_000)
        assert page.query_selector("main img") is None
        assert "owned" not in page.title()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page = browse(f"{url}/workloads/{KEY}", width=1280)
    page.get_by_text("onerror").first.wait_for(timeout=60_000)
    page.get_by_role("link", name="failover status").click()
    page.get_by_role("link", name=REFUNDS).click()
    page.get_by_text("primary here").wait_for(timeout=60_000)
    page = browse(f"{url}/", width=1280)
    page.locator(".verdict").wait_for(timeout=60_000)
    assert KEY not in page.inner_text(".verdict")
