"""The balance finds lost messages, repetitions without a cause, and messages out of order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.soak.account import Account, IncidentHit, balance
from tests.system.soak.book import Book, Dead, Sent
from tests.system.soak.plan import LOTS, Kind, draw, incidents

LOT = next(lot for lot in LOTS if lot.name == "keyed")


class JournalCase:
    """Messages of one key at offsets 0, 1, 2 and so on, and the receiver's journal of them."""

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


def test_taken_skipped_and_stashed_messages_balance() -> None:
    case = JournalCase(3)
    case.deliver(0, 1, 2)
    case.deliver(1, 3, 4, "skip")
    case.deliver(2, 5, 6, "stash")
    case.dead.append(Dead("m2", "FAILED_PRECONDITION", "the plan says so", 7))
    account = case.account()
    assert account.sound, account
    assert (account.taken, account.skipped, account.dead, account.duplicates) == (1, 1, 1, 0)


@pytest.mark.parametrize("what", ["retry", "raise", "stash", "canceled"])
def test_a_message_without_a_final_outcome_or_a_dead_letter_is_lost(what: str) -> None:
    case = JournalCase(2)
    case.deliver(0, 1, 2, what)
    case.deliver(1, 3, 4)
    assert case.account().lost == ("m0",)


def test_a_repetition_without_an_incident_is_unexplained() -> None:
    case = JournalCase(1)
    case.deliver(0, 10_000, 10_001)
    case.deliver(0, 20_000, 20_001)
    assert case.account().unexplained == ("m0",)


@pytest.mark.parametrize(("kill_ms", "explained"), [(10_300, True), (9_000, False), (11_000, False)])
def test_a_kill_explains_only_repetitions_of_deliveries_that_were_in_flight_or_unsaved(
    kill_ms: float, explained: bool
) -> None:
    case = JournalCase(1)
    case.deliver(0, 10_000, 10_001)
    case.deliver(0, 20_000, 20_001)
    case.happened.append(IncidentHit(Kind.WORKER_KILL, kill_ms, kill_ms))
    account = case.account()
    assert (not account.unexplained) is explained
    assert account.duplicates == 1


def test_one_kill_explains_one_repetition() -> None:
    case = JournalCase(1)
    for at_ms in (10_000, 20_000, 30_000):
        case.deliver(0, at_ms, at_ms + 1)
    case.happened.append(IncidentHit(Kind.WORKER_KILL, 10_100, 10_100))
    assert case.account().unexplained == ("m0",)


def test_a_message_delivered_before_an_earlier_one_of_its_key_ended_is_disordered() -> None:
    case = JournalCase(2)
    case.deliver(0, 1, 10, "retry")
    case.deliver(1, 12, 13)
    case.deliver(0, 20, 21)
    assert len(case.account().disordered) == 1


def test_a_key_may_continue_once_its_failed_message_is_in_the_dlq() -> None:
    case = JournalCase(2)
    case.deliver(0, 1, 10, "raise")
    case.dead.append(Dead("m0", "UNKNOWN", "attempts used up", 11))
    case.deliver(1, 12, 13)
    assert case.account().sound


def test_a_dead_letter_for_an_unavailable_receiver_is_wrong() -> None:
    case = JournalCase(1)
    case.dead.append(Dead("m0", "UNAVAILABLE", "away", 11))
    assert case.account().wrong


def test_the_same_seed_gives_the_same_faults_and_incidents() -> None:
    assert incidents(7, 60.0) == incidents(7, 60.0) != incidents(8, 60.0)
    assert draw(7, "m", 1) == draw(7, "m", 1)
    assert {one.kind for one in incidents(7, 60.0)} == set(Kind) - {Kind.WORKER_STALL}
