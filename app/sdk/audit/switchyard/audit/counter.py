"""What clients call: counts by topic. Thread-safe, never raises, never waits for disk or network."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from switchyard.audit.logger import EpisodeLogger
from switchyard.audit.model.client_counter import ClientAudit
from switchyard.audit.model.reports import Report, Scope
from switchyard.audit.recovery import Everything, Positions, WalChange, joined
from switchyard.audit.topic_counts import FEW_RECORDS, FIELDS, MOST_NOTED, Ids, TopicCounts

MOST_TOPICS = 10_000
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FULL = MOST_NOTED * FIELDS
_WRONG = (TypeError, ValueError, OverflowError, AttributeError)
TOPICS = "topics that cannot be audited"
CALLS = "calls that say nothing to count"


class Tier(NamedTuple):
    """What a client's counts are told as. `source`: one incarnation of it."""

    tier: str
    cluster: str
    width_ms: int
    source: str
    idle_ms: int


class Counting:
    """The books of a client's topics. Times in ms since 1970; None or below 0: the record has none."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._books: dict[str, TopicCounts] = {}
        self._positions: Positions = {}  # of topics without a book yet
        self._opening = threading.Lock()
        self._now_s = time.time
        self._told = EpisodeLogger()
        self._process_id = os.getpid()
        self._nowhere = self._book("")  # takes what belongs to no topic, and is never reported
        _forkable.add(self)

    def sent(self, topic: str, timestamp_ms: int | None, nbytes: int, id: bytes | None = None) -> None:  # noqa: A002
        """Counts a record that this tier has.

        Args:
            nbytes: of key and value, say: only tiers that count them alike have the same.
            id: of the message, 16 bytes at best, a UUID's text or any other bytes: with ids the audit finds
                records that were exchanged, and can name those that are missing.
        """
        try:
            book = self._books[topic]
        except (KeyError, TypeError):
            book = self._opened(topic)
        noted = book.noted
        noted.extend((timestamp_ms, nbytes, id, self._now_s()))
        if len(noted) >= _FULL:
            self._look_for_fork()
            book.fold()

    def sent_many(
        self,
        topic: str,
        timestamps_ms: Sequence[int] | Any,
        nbytes: Sequence[int] | Any,
        ids: Ids | None = None,
    ) -> None:
        """Counts records that this tier has now: arrays of one length; `nbytes` may be one number."""
        self._look_for_fork()
        try:
            self._opened(topic).add(timestamps_ms, nbytes, ids, int(self._now_s() * 1000))
        except _WRONG as error:
            self._told.wrong(CALLS, f"sent_many({topic!r}): {error}; its records are not counted")

    def handled(
        self, topic: str, partition: int, offset: int, timestamp_ms: int | None, nbytes: int,
        id: bytes | None = None,  # noqa: A002
    ) -> bool:  # fmt: skip
        """Counts a consumed record, unless this process or the one before it had counted it already.

        A partition's records are to come in the order of their offsets. Returns whether it was counted.
        """
        try:
            time_ms = -1 if timestamp_ms is None else timestamp_ms
            book = self._books.get(topic) or self._opened(topic)
            if not book.noted or book.lock.locked():  # seldom; in a child of a fork sooner or later
                self._look_for_fork()
            return book.handled(partition, offset, time_ms, nbytes, id, self._now_s())
        except _WRONG as error:
            self._told.wrong(
                CALLS, f"handled({topic!r}, {partition!r}, {offset!r}): {error}; it is not counted"
            )
            return False

    def handled_many(
        self, topic: str, partition: int, offsets: Sequence[int], timestamps_ms: Sequence[int],
        nbytes: Sequence[int], ids: Sequence[bytes | None] | None = None,
    ) -> None:  # fmt: skip
        """`handled` of many records of a partition."""
        try:
            book = self._opened(topic)
            if len(offsets) >= FEW_RECORDS or not book.noted or book.lock.locked():
                self._look_for_fork()
            book.handled_many(partition, offsets, timestamps_ms, nbytes, ids, self._now_s())
        except _WRONG as error:
            self._told.wrong(CALLS, f"handled_many({topic!r}, {partition!r}): {error}")

    def _opened(self, topic: str) -> TopicCounts:
        try:
            found = self._books.get(topic)
            if found is not None:
                return found
            if not _TOPIC.fullmatch(topic):
                raise ValueError("no topic has such a name")
        except _WRONG as error:
            self._told.wrong(TOPICS, f"{topic!r}: {error}; its records are not counted")
            return self._nowhere
        self._look_for_fork()
        with self._opening:
            if topic not in self._books:
                if len(self._books) >= MOST_TOPICS:
                    self._told.wrong(TOPICS, f"{topic!r}: one more than {MOST_TOPICS}; it is not counted")
                    return self._nowhere
                self._books[topic] = self._book(topic)
            return self._books[topic]

    def _book(self, topic: str) -> TopicCounts:
        tier = self._tier
        scope = Scope(topic, tier.tier, tier.cluster, tier.width_ms)
        client = ClientAudit(scope, tier.source, tier.idle_ms)
        return TopicCounts(client, topic, self._positions.pop(topic, {}), self._told)

    # -- forks ----------------------------------------------------------------------------------------

    def _look_for_fork(self) -> None:
        """A server that forks in C calls no hook of Python's: its child learns here that it is one."""
        if os.getpid() != self._process_id:
            self._forked()

    def _forked(self) -> None:
        """In a child of a fork: the locks may be held by threads that it does not have."""
        self._opening = threading.Lock()
        for book in [*self._books.values(), self._nowhere]:
            book.lock = threading.Lock()
        self._process_id = os.getpid()

    def _begin_as(self, source: str, *, is_forked: bool = False) -> None:
        """Names the incarnation, before its first report. `is_forked`: what is counted is the parent's."""
        self._tier = self._tier._replace(source=source)
        if is_forked:
            self._books = {}
        for book in self._books.values():
            book.begin_as(source)

    # -- what the thread that keeps and sends asks for ------------------------------------------------

    def _resume(self, positions: Positions) -> None:
        """Takes in positions of the process before, also of topics that were counted since this one began."""
        with self._opening:
            for topic, found in positions.items():
                book = self._books.get(topic)
                if book is None:
                    self._positions = joined(self._positions, {topic: found})
                    continue
                with book.lock:
                    book.positions = joined({topic: book.positions}, {topic: found})[topic]

    def _everything(self, backlog: Sequence[Report], *, has_left: bool) -> Everything:
        """`has_left`: the last reports were made; who has nothing more to say is not to be ended again."""
        unopened = dict(self._positions)  # first: a book that is opened meanwhile takes its own from there
        books = [book.all() for book in list(self._books.values())]
        positions = {state.scope.topic: moved for state, moved in books if moved}
        states = [state for state, _ in books if not has_left or state.pending or state.windows]
        return Everything(tuple(states), tuple(backlog), unopened | positions)

    def _change(self, arrived: Sequence[str]) -> WalChange | None:
        books = [found for book in list(self._books.values()) if (found := book.change()) is not None]
        if not books and not arrived:
            return None
        positions = {state.scope.topic: moved for state, moved in books if moved}
        return WalChange(tuple(state for state, _ in books), tuple(arrived), positions)

    def _reports(self, at_ms: int, *, leaves: bool = False) -> None:
        for book in list(self._books.values()):
            book.report(at_ms, leaves=leaves)

    def _pending(self) -> list[Report]:
        return [report for book in list(self._books.values()) for report in book.pending]


_forkable: weakref.WeakSet[Counting] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_forkable):
        one._forked()


os.register_at_fork(after_in_child=_after_fork)
