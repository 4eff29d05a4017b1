"""The balance finds what is lost, what came twice for no reason, and what came out of order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.soak.account import Account, IncidentHit, balance
from tests.system.soak.book import Book, Dead, Sent
from tests.system.soak.plan import LOTS, Kind, draw, incidents

LOT = next(lot for lot in LOTS if lot.name == "keyed")


class Scene:
    """Messages of one key at offsets 0, 1, 2 and so on, and what the receiver noted."""

    def __init__(self, count: int) -> None:
        self.book = Book({f"m{n}": Sent(f"m{n}", LOT.name, "k", 0, n) for n in range(count)})
        self.dead: list[Dead] = []
        self.happened: list[IncidentHit] = []
        self._lines: list[dict[str, Any]] = []

    def deliver(self, number: int, start_ms: float, end_ms: float | None, what: str = "ok") -> None:
        name = f"1-{len(self._lines)}"
        start = {"what": "start", "d": name, "id": f"m{number}", "attempt": 1, "retries": 0}
        self._lines.append({**start, "at_ms": start_ms})
        if end_ms is not None:
            self._lines.append({"what": what, "d": name, "at_ms": end_ms})

    def account(self) -> Account:
        self.book.feed(sorted(self._lines, key=lambda line: line["at_ms"]))
        return balance(self.book, self.dead, self.happened, LOTS)


def test_what_was_taken_skipped_or_stashed_is_accounted_for() -> None:
    scene = Scene(3)
    scene.deliver(0, 1, 2)
    scene.deliver(1, 3, 4, "skip")
    scene.deliver(2, 5, 6, "stash")
    scene.dead.append(Dead("m2", "FAILED_PRECONDITION", "the plan says so", 7))
    account = scene.account()
    assert account.sound, account
    assert (account.taken, account.skipped, account.dead, account.duplicates) == (1, 1, 1, 0)


@pytest.mark.parametrize("what", ["retry", "raise", "stash", "canceled"])
def test_what_nobody_took_and_no_dlq_has_is_lost(what: str) -> None:
    scene = Scene(2)
    scene.deliver(0, 1, 2, what)
    scene.deliver(1, 3, 4)
    assert scene.account().lost == ("m0",)


def test_a_repetition_needs_a_cause() -> None:
    scene = Scene(1)
    scene.deliver(0, 10_000, 10_001)
    scene.deliver(0, 20_000, 20_001)
    assert scene.account().unexplained == ("m0",)


@pytest.mark.parametrize(("kill_ms", "explained"), [(10_300, True), (9_000, False), (11_000, False)])
def test_a_kill_explains_what_was_in_flight_or_unsaved_and_no_more(kill_ms: float, explained: bool) -> None:
    scene = Scene(1)
    scene.deliver(0, 10_000, 10_001)
    scene.deliver(0, 20_000, 20_001)
    scene.happened.append(IncidentHit(Kind.WORKER_KILL, kill_ms, kill_ms))
    account = scene.account()
    assert (not account.unexplained) is explained
    assert account.duplicates == 1


def test_one_kill_explains_one_repetition() -> None:
    scene = Scene(1)
    for at_ms in (10_000, 20_000, 30_000):
        scene.deliver(0, at_ms, at_ms + 1)
    scene.happened.append(IncidentHit(Kind.WORKER_KILL, 10_100, 10_100))
    assert scene.account().unexplained == ("m0",)


def test_a_message_that_overtakes_its_key_is_found() -> None:
    scene = Scene(2)
    scene.deliver(0, 1, 10, "retry")
    scene.deliver(1, 12, 13)
    scene.deliver(0, 20, 21)
    assert len(scene.account().disordered) == 1


def test_after_a_message_is_in_the_dlq_its_key_goes_on() -> None:
    scene = Scene(2)
    scene.deliver(0, 1, 10, "raise")
    scene.dead.append(Dead("m0", "UNKNOWN", "attempts used up", 11))
    scene.deliver(1, 12, 13)
    assert scene.account().sound


def test_stashed_for_a_receiver_that_was_away_is_wrong() -> None:
    scene = Scene(1)
    scene.dead.append(Dead("m0", "UNAVAILABLE", "away", 11))
    assert scene.account().wrong


def test_the_same_seed_gives_the_same_trouble() -> None:
    assert incidents(7, 60.0) == incidents(7, 60.0) != incidents(8, 60.0)
    assert draw(7, "m", 1) == draw(7, "m", 1)
    assert {one.kind for one in incidents(7, 60.0)} == set(Kind) - {Kind.WORKER_STALL}
