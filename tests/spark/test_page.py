"""The report's page in a real browser, opened from a file.

Style alone hides kinds, no data becomes markup, and the page fits a phone's width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark.dashboard.page import page
from tests.spark.report_rows import EVIL, REPORT
from tests.web.browser import IN_A_BROWSER, browsing

pytestmark = IN_A_BROWSER


@pytest.mark.parametrize(("dark", "width"), [(False, 1400), (True, 400)])
def test_the_page_shows_the_report_and_hides_kinds_without_a_script(
    tmp_path: Path, dark: bool, width: int
) -> None:
    (tmp_path / "report.html").write_text(page(REPORT))
    with browsing(f"file://{tmp_path}/", shows="h1") as opened:
        shown: Any = opened("report.html", dark=dark, width=width)
        assert shown.query_selector("img") is None
        assert "owned" not in shown.title()
        text = shown.inner_text("body")
        for expected in (EVIL, "log-truncated", "1,234 older rows are not shown", "not audited", "ongoing"):
            assert expected in text
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        shown.screenshot(path=tmp_path / "report.png", full_page=True)
        assert shown.locator("tr.incident").is_visible()
        shown.locator("#k-incident").uncheck()
        assert not shown.locator("tr.incident").is_visible()
        assert shown.locator("tr.failover").is_visible()
        shown.locator("#k-incident").check()
        assert shown.locator("tr.incident").is_visible()
