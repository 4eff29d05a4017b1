"""A real browser that shows the pages of a console: one process for all tests of a run.

Each test connects to it anew, and its pages share nothing with those of others: starting Chromium takes two
seconds of a processor.
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
    # A page that nobody looks at works as fast as any.
    "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
)  # fmt: skip
START_S = 60.0
ENOUGH_MS = 60_000
POLL_MS = 100  # by default a page is looked at when it paints, which a busy machine may leave out


@functools.cache
def address() -> str:
    """Where Chromium takes commands. It is started at the first question, and ends with this process."""
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
    told = folder / "DevToolsActivePort"
    wait_until(
        lambda: told.exists() and "\n" in told.read_text(), START_S, lambda: f"{CHROMIUM} tells no port"
    )
    return f"http://127.0.0.1:{told.read_text().splitlines()[0]}"


@contextmanager
def chromium() -> Iterator[Any]:
    """A connection to the browser; what was opened through it is closed at its end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(address())
        try:
            yield browser
        finally:
            for context in browser.contexts[1:]:  # the first is its own
                context.close()
            browser.close()


@contextmanager
def browsing(url: str, shows: str = "#live.on") -> Iterator[Callable[..., Any]]:
    """A page opener, which waits for what a page `shows`; fails the test on any script error or request to
    another host."""
    problems: list[str] = []
    asked_of: list[str] = []
    with chromium() as browser:

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
    assert not problems
    assert not [one for one in asked_of if not one.startswith(url)]
