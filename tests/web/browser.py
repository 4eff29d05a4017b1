"""A real browser that shows the pages of a console: one process for all tests of a run.

Starting Chromium takes two seconds of a processor. Each test has a connection of its own, and shares no page
with other tests.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.dev.demo.stage import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on PATH; install Debian's chromium to run these"
)
IN_A_BROWSER = [pytest.mark.browser, NEEDS_CHROMIUM]
OPTIONS = (
    "--headless", "--no-sandbox", "--no-first-run", "--disable-gpu", "--hide-scrollbars", "--mute-audio",
    "--remote-debugging-port=0",
    # A page in the background works as fast as a visible one.
    "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
)  # fmt: skip
START_S = 60.0
ENOUGH_MS = 60_000
POLL_MS = 100  # Playwright polls when the page paints, which a busy machine may skip


@functools.cache
def address() -> str:
    """The address where Chromium takes commands. It starts at the first call, and ends with this process."""
    assert CHROMIUM is not None
    folder = Path(tempfile.mkdtemp())
    process = subprocess.Popen(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def end() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    port_file = folder / "DevToolsActivePort"
    wait_until(
        lambda: port_file.exists() and "\n" in port_file.read_text(),
        START_S,
        lambda: f"{CHROMIUM} reports no port",
    )
    return f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"


@contextmanager
def chromium() -> Iterator[Any]:
    """A connection to the browser; its contexts are closed at its end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(address())
        try:
            yield browser
        finally:
            for context in browser.contexts[1:]:  # the first belongs to the browser
                context.close()
            browser.close()


@contextmanager
def browsing(url: str, shows: str = "#live.on") -> Iterator[Callable[..., Any]]:
    """A function that opens a page and waits for the selector `shows`.

    A script error or a request to another host fails the test.
    """
    problems: list[str] = []
    requested_urls: list[str] = []
    with chromium() as browser:

        def open_page(path: str, *, dark: bool = False, width: int = 1280) -> Any:
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
            )
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("request", lambda request: requested_urls.append(request.url))
            page.goto(url + path)
            page.wait_for_selector(shows, timeout=ENOUGH_MS)
            return page

        yield open_page
    assert not problems
    assert not [address for address in requested_urls if not address.startswith(url)]
