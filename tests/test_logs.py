"""Logs: what the client libraries repeat is said once in a while, with the count of what was left out."""

from __future__ import annotations

import logging

from app.logs import OncePerWhile


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("aiokafka.client", logging.ERROR, __file__, 1, text, arguments, None)


def test_a_storm_of_one_kind_becomes_a_line_now_and_then_that_counts_the_rest() -> None:
    now_s = 0.0
    quiet = OncePerWhile(5.0, clock=lambda: now_s)
    passed = 0
    for _ in range(1_000):
        passed += quiet.filter(record("Unable connect to node %s", 1))
    assert passed == 1
    now_s = 5.0
    again = record("Unable connect to node %s", 1)
    assert quiet.filter(again)
    assert again.getMessage() == "Unable connect to node 1 (999 more like this were left out)"


def test_another_kind_is_not_held_back() -> None:
    quiet = OncePerWhile(5.0, clock=lambda: 0.0)
    assert quiet.filter(record("one"))
    assert quiet.filter(record("another"))
