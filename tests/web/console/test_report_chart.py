"""The charts of the report page, of rows that anybody may have written into the report topic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import app.web.console
from tests.web.browser import ENOUGH_MS, IN_A_BROWSER, browsing
from tests.web.report_rows import HOUR_MS, NOON_MS, REPORT, line

pytestmark = IN_A_BROWSER

ASSETS = Path(app.web.console.__file__).parent / "assets"
DRAW = """async ([series]) => {
  const { charts } = await import("/report_chart.js");
  document.body.replaceChildren(charts(series));
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves the assets, and a page without anything."""

    def do_GET(self) -> None:
        if self.path.endswith(".js"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<link rel=icon href=data:,><h1>charts</h1>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def page() -> Iterator[Any]:
    """A page that can load the assets."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(ASSETS))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with browsing(f"http://127.0.0.1:{server.server_port}/", shows="h1") as opened:
            found = opened("")
            found.set_default_timeout(ENOUGH_MS)
            yield found
        server.shutdown()


ODD: list[dict[str, Any]] = [
    line("no step", 1, 2) | {"step_ms": 0},
    line("backwards", 1, 2) | {"step_ms": -HOUR_MS},
    line("a step of words", 1, 2) | {"step_ms": "1h"},
    line("no steps", 1, 2) | {"step_ms": None},
    line("no list", 1, 2) | {"points": 7},
    line("no points", 1, 2) | {"points": None},
    line("no numbers", 1, 2) | {"points": [[NOON_MS, "many"]]},
    line("no pairs", 1, 2) | {"points": [NOON_MS]},
    line("beyond all calendars", 1, 2) | {"points": [[9e15, 1]]},
    {"topic": "orders", "place": "nothing at all"},
]


@pytest.mark.deep(minutes=0.1)
@pytest.mark.parametrize("odd", ODD, ids=lambda one: one["place"])
def test_a_row_that_cannot_be_drawn_is_told_and_the_others_are_drawn(page: Any, odd: dict[str, Any]) -> None:
    page.evaluate(DRAW, [[odd, *REPORT["series"]]])
    assert page.locator("svg.plot polyline").count() == len(REPORT["series"])
    assert "1 lines cannot be drawn" in page.inner_text("body")


def test_a_step_that_is_tiny_for_its_time_draws_the_points_alone(page: Any) -> None:
    page.evaluate(DRAW, [[line("by the millisecond", 3, 1, 2) | {"step_ms": 1}]])
    spots = page.locator("svg.plot polyline").get_attribute("points")
    assert len(spots.split()) == 3
    assert "cannot be drawn" not in page.inner_text("body")


def test_what_was_not_counted_is_told(page: Any) -> None:
    page.evaluate(DRAW, [[line("nothing")]])
    assert page.inner_text("body") == "Nothing was counted in this time."
