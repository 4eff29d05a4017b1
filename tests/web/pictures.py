"""Makes docs/pictures: pages of the console over the demo's traffic, light and dark.

make pictures
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.web.browser import chromium

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
PAGES = {"overview": "/", "audit": "/audit"}
SIZE = {"width": 1440, "height": 730}
SETTLED_S, DRAWN_MS = 8.0, 2_000


def console_of(demo: subprocess.Popen[str]) -> str:
    """The console's address, once the demo has played and waits for Ctrl-C."""
    assert demo.stderr is not None
    url = ""
    for line in demo.stderr:
        sys.stderr.write(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            url = found[0]
        if "Ctrl-C" in line:
            return url
    raise RuntimeError("the demo has ended before its console could be shown")


def main() -> None:
    """Plays the demo and takes the pictures."""
    FOLDER.mkdir(exist_ok=True)
    demo = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "demo"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        url = console_of(demo)
        time.sleep(SETTLED_S)
        with chromium() as browser:
            for scheme in ("light", "dark"):
                context = browser.new_context(color_scheme=scheme, viewport=SIZE)
                page = context.new_page()
                for name, path in PAGES.items():
                    page.goto(url + path)
                    page.wait_for_selector("#live.on")
                    page.wait_for_timeout(DRAWN_MS)
                    page.screenshot(path=FOLDER / f"{name}-{scheme}.png")
    finally:
        demo.send_signal(2)  # as Ctrl-C does
        demo.wait()


if __name__ == "__main__":
    main()
