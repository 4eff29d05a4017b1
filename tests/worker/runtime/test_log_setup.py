"""Logs: repeated messages of the client libraries are logged once in a while, with a count of the rest."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest
import structlog

from app.worker.runtime.log_setup import (
    FLOOD_WINDOW_S,
    MOST_OF_A_KIND,
    MOST_OF_ALL,
    FloodFilter,
    configure_logging,
)


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("aiokafka.client", logging.ERROR, __file__, 1, text, arguments, None)


def test_repeated_messages_become_one_line_that_counts_the_rest() -> None:
    now_s = 0.0
    quiet = FloodFilter(5.0, 1, clock=lambda: now_s)
    passed = 0
    for _ in range(1_000):
        passed += quiet.filter(record("Unable connect to node %s", 1))
    assert passed == 1
    now_s = 5.0
    again = record("Unable connect to node %s", 1)
    assert quiet.filter(again)
    assert again.getMessage() == "Unable connect to node 1 (999 more like this were left out)"


def test_a_message_of_another_kind_passes() -> None:
    quiet = FloodFilter(5.0, 1, clock=lambda: 0.0)
    assert quiet.filter(record("one"))
    assert quiet.filter(record("another"))


class Settings:
    level = "info"
    format = "console"


@pytest.fixture
def log_output(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The log output of a worker in the format for people."""
    root, found = logging.getLogger(), io.StringIO()
    before, level, kept = root.handlers[:], root.level, structlog.get_config()
    monkeypatch.setattr("sys.stderr", found)
    configure_logging(Settings())
    yield found
    structlog.configure(**kept)
    root.handlers[:] = before
    root.setLevel(level)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n2031-01-01 [info] all is well\x9b1m\u202e\u2028end"


def test_text_of_records_and_peers_drives_no_terminal_and_forges_no_line(log_output: io.StringIO) -> None:
    log = structlog.get_logger("app.tried")
    log.warning("a header is not heeded", problem=HOSTILE, of=[HOSTILE], more=HOSTILE.encode())
    logging.getLogger("other.library").warning("peer says %s", HOSTILE)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("a record cannot be read", error=ValueError(HOSTILE))
    text = log_output.getvalue()
    assert not set(text) & set("\x1b\x07\r\x9b\u202e\u2028")
    assert [line for line in text.splitlines() if line.startswith("2031-01-01")] == []
    assert "\\x1b[2J" in text
    assert "Traceback (most recent call last)" in text
    assert "peer says \\x1b" in text


def test_a_flood_of_bad_records_writes_a_bounded_number_of_lines(log_output: io.StringIO) -> None:
    log = structlog.get_logger("app.tried")
    for offset in range(5_000):
        log.error("a record is no event", offset=offset)
    for offset in range(5_000):
        logging.getLogger(f"library.{offset}").error("another each time")
    lines = log_output.getvalue().splitlines()
    assert sum("a record is no event" in line for line in lines) == MOST_OF_A_KIND
    # asyncio may log here what became of futures of other tests, in several lines each
    assert sum("library." in line or "app.tried" in line for line in lines) <= MOST_OF_ALL


def flooding(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    found = logging.LogRecord("app.tried", level, __file__, 1, "", (), None)
    found.msg = cast("Any", {"event": text})
    return found


def test_the_next_line_counts_the_left_out_ones_and_other_kinds_pass() -> None:
    now_s = 0.0
    flood = FloodFilter(clock=lambda: now_s)
    assert sum(flood.filter(flooding("bad")) for _ in range(1_000)) == MOST_OF_A_KIND
    assert flood.filter(flooding("another"))
    assert all(flood.filter(flooding("as usual", logging.INFO)) for _ in range(1_000))
    now_s = FLOOD_WINDOW_S
    again = flooding("bad")
    assert flood.filter(again)
    assert cast("Any", again.msg) == {"event": "bad", "left_out": 1_000 - MOST_OF_A_KIND}
