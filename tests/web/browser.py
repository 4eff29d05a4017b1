"""A real browser that shows the pages of a console."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IN_A_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium on PATH; install Debian's chromium to run these"
    ),
]
ENOUGH_MS = 60_000
POLL_MS = 100  # by default a page is looked at when it paints, which a busy machine may leave out


@contextmanager
def browsing(url: str, shows: str = "#live.on") -> Iterator[Callable[..., Any]]:
    """A page opener, which waits for what a page `shows`; fails the test on any script error or request to
    another host."""
    from playwright.sync_api import sync_playwright

    problems: list[str] = []
    asked_of: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_page(path: str, *, dark: bool = False, width: int = 1280) -> Any:
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
            )
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("request", lambda asked: asked_of.append(asked.url))
            page.goto(url + path)
            page.wait_for_selector(shows, timeout=ENOUGH_MS)
            return page

        yield open_page
        browser.close()
    assert not problems
    assert not [one for one in asked_of if not one.startswith(url)]
