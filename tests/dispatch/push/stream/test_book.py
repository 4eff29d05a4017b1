"""The book of a stream: one result for each index, numbers without gaps, nothing beyond the credit."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.dispatch.push.stream.book import InFlightBatches


class Named:
    """A batch."""

    def __init__(self, count: int) -> None:
        self.count = count


Runs = list[tuple[Named, int, int]]
numbers = st.integers(-3, 60)


class BookMachine(RuleBasedStateMachine):
    """Compares the book with a model: a dict from number to index, a counter of results, a list of waiting
    messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.book: InFlightBatches[Named] = InFlightBatches()
        self.now_s = 0.0
        self.deadlines: dict[Named, float] = {}
        self.latest: dict[Named, float] = {}
        self.renewed: dict[tuple[Named, int], float] = {}
        self.waiting: list[tuple[Named, int]] = []
        self.sent: list[tuple[Named, int]] = []  # by number
        self.reported: Counter[tuple[Named, int]] = Counter()
        self.credit = self.unknown = 0

    def note(self, reported: Runs, expected: set[tuple[Named, int]]) -> None:
        """Asserts that the runs are those of the model, and are reported for the first time."""
        items = [(batch, index) for batch, start, end in reported for index in range(start, end)]
        assert len(items) == len(expected)
        assert set(items) == expected
        self.reported.update(items)
        self.waiting = [item for item in self.waiting if item not in expected]

    @rule(count=st.integers(1, 12), timeout_s=st.integers(1, 9), longest_s=st.integers(0, 20))
    def queue(self, count: int, timeout_s: int, longest_s: int) -> None:
        batch = Named(count)
        self.book.queue(batch, count, self.now_s + timeout_s, self.now_s + longest_s)
        self.latest[batch] = self.now_s + max(timeout_s, longest_s)
        self.deadlines[batch] = self.now_s + timeout_s
        self.waiting += [(batch, index) for index in range(count)]

    @rule(more=st.integers(-5, 15))
    def credit_comes(self, more: int) -> None:
        self.book.credited(self.credit + more, 0)
        self.credit = max(self.credit, self.credit + more)

    @rule(part=st.floats(0.01, 1))
    def send(self, part: float) -> None:
        run = self.book.next_run()
        if not self.waiting or len(self.sent) >= self.credit:
            assert run is None
            return
        assert run is not None
        batch, start, end = run
        count = max(1, int((end - start) * part))
        assert self.waiting[:count] == [(batch, start + index) for index in range(count)]
        assert self.book.next_number == len(self.sent)
        self.book.sent(count)
        self.sent += self.waiting[:count]
        del self.waiting[:count]

    @rule(start=numbers, length=st.integers(-2, 20))
    def result(self, start: int, length: int) -> None:
        inside = self.sent[max(0, start) : max(0, start + length)]
        self.note(
            self.book.finish(start, start + length), {item for item in inside if not self.reported[item]}
        )

    @precondition(lambda self: self.deadlines)
    @rule(data=st.data(), start=st.integers(-2, 12), length=st.integers(0, 14))
    def cancel(self, data: st.DataObject, start: int, length: int) -> None:
        batch = data.draw(st.sampled_from(list(self.deadlines)))
        inside = {(batch, index) for index in range(max(0, start), min(start + length, batch.count))}
        expected = {item for item in inside if not self.reported[item]}
        in_flight = {number for number, item in enumerate(self.sent) if item in expected}
        reported, ranges = self.book.cancel(batch, start, start + length)
        assert [number for low, high in ranges for number in range(low, high)] == sorted(in_flight)
        self.note(reported, expected)

    @precondition(lambda self: self.deadlines)
    @rule(data=st.data())
    def cancel_unsent(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(list(self.deadlines)))
        expected = {item for item in self.waiting if item[0] is batch}
        unsent = self.book.unsent_of(batch)
        if unsent is None:
            assert not expected
            return
        reported, ranges = self.book.cancel(batch, *unsent)
        assert not ranges, "the receiver has none of it"
        self.note(reported, expected)

    def deadline_s(self, item: tuple[Named, int]) -> float:
        return self.renewed.get(item, self.deadlines[item[0]])

    @rule(start=numbers, length=st.integers(-2, 20), for_s=st.integers(0, 15))
    def renew(self, start: int, length: int, for_s: int) -> None:
        inside = self.sent[max(0, start) : max(0, start + length)]
        expected = [item for item in inside if not self.reported[item]]
        renewed, looks = self.book.renew(start, start + length, self.now_s + for_s)
        assert looks > len(renewed)
        longer = {
            item: until_s
            for item in expected
            if (until_s := min(self.now_s + for_s, self.latest[item[0]])) > self.deadline_s(item)
        }
        assert sorted(renewed, key=inside.index) == list(longer)
        self.renewed |= longer

    @rule(seconds=st.integers(0, 5))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds
        items = [(batch, index) for batch in self.deadlines for index in range(batch.count)]
        expected = {item for item in items if not self.reported[item] and self.deadline_s(item) <= self.now_s}
        self.note(self.book.expire(self.now_s)[0], expected)
        next_s = self.book.next_deadline_s()
        assert next_s is None or next_s > self.now_s, "no timer runs again at once"
        assert len(self.book._deadlines) <= len(self.deadlines)

    @rule()
    def lose(self) -> None:
        open_items = {
            (batch, index)
            for batch in self.deadlines
            for index in range(batch.count)
            if not self.reported[batch, index]
        }
        was_sent = set(self.sent)
        sent, unsent = self.book.lose()
        assert {(b, i) for b, start, end in sent for i in range(start, end)} == open_items & was_sent
        self.note(sent + unsent, open_items)
        assert self.book.next_deadline_s() is None

    @invariant()
    def no_result_is_reported_twice(self) -> None:
        assert set(self.reported.values()) <= {1}

    @invariant()
    def counts_agree(self) -> None:
        in_flight = [item for item in self.sent if not self.reported[item]]
        assert (self.book.waiting, self.book.in_flight) == (len(self.waiting), len(in_flight))
        open_items = [
            (batch, index)
            for batch in self.deadlines
            for index in range(batch.count)
            if not self.reported[batch, index]
        ]
        next_s = min(map(self.deadline_s, open_items), default=None)
        found_s = self.book.next_deadline_s()
        assert (found_s is None) == (next_s is None)
        assert found_s is None or next_s is None or found_s <= next_s
        if not self.renewed:
            assert found_s == next_s


TestBook = BookMachine.TestCase


def test_results_for_deliveries_that_were_never_made_are_only_counted() -> None:
    book: InFlightBatches[Named] = InFlightBatches()
    book.queue(Named(5), 5, 1.0)
    book.credited(3, 0)
    assert book.next_run() is not None
    book.sent(3)

    assert [(start, end) for _, start, end in book.finish(2, 1 << 64)] == [(2, 3)]
    assert book.unknown == (1 << 64) - 3
    assert (book.finish(500, 7), book.finish(9, 9)) == ([], [])  # ranges that say nothing, wherever they are
    assert book.unknown == (1 << 64) - 3
    assert (book.waiting, book.in_flight) == (2, 2)


def test_a_batch_in_the_book_or_without_messages_cannot_be_queued() -> None:
    book: InFlightBatches[Named] = InFlightBatches()
    batch = Named(1)
    book.queue(batch, 1, 1.0)

    for again, count in ((batch, 1), (Named(0), 0)):
        with pytest.raises(ValueError, match="queued once"):
            book.queue(again, count, 1.0)
    book.lose()
    book.queue(batch, 1, 1.0)


def test_reported_messages_are_freed_while_another_is_stuck() -> None:
    book: InFlightBatches[Named] = InFlightBatches()
    book.credited(1_000, 0)
    stuck, finished = Named(1), [Named(1) for _ in range(50)]
    for batch in (stuck, *finished):
        book.queue(batch, 1, 10.0)
        assert book.next_run() is not None
        book.sent(1)
    watched = [weakref.ref(batch) for batch in finished]

    book.finish(1, 51)
    del finished, batch
    gc.collect()

    assert [reference() for reference in watched] == [None] * 50
    assert book.in_flight == 1
