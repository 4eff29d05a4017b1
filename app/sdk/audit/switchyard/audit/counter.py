"""The functions that clients call to count. They are thread-safe, never raise, and never wait for disk or
network.
"""

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
from switchyard.audit.recovery import Positions, WalChange, WalSnapshot, joined
from switchyard.audit.topic_counts import FEW_RECORDS, FIELDS, MOST_NOTED, Ids, TopicCounts

MOST_TOPICS = 10_000
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FULL = MOST_NOTED * FIELDS
_WRONG = (TypeError, ValueError, OverflowError, AttributeError)
TOPICS = "topics that cannot be audited"
CALLS = "calls that say nothing to count"


class Tier(NamedTuple):
    """A client's identity in its reports. `source` is one incarnation."""

    tier: str
    cluster: str
    width_ms: int
    source: str
    idle_ms: int


class Counting:
    """The books of a client's topics. Times are ms since 1970; None or below 0: the record has none."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._books: dict[str, TopicCounts] = {}
        self._positions: Positions = {}  # of topics that have no book yet
        self._books_lock = threading.Lock()
        self._now_s = time.time
        self._problems = EpisodeLogger()
        self._process_id = os.getpid()
        self._nowhere = self._book("")  # takes the records of invalid topics, and is never reported
        _forkable.add(self)

    def sent(self, topic: str, timestamp_ms: int | None, nbytes: int, id: bytes | None = None) -> None:  # noqa: A002
        """Counts a record that has reached this tier.

        Args:
            nbytes: For example of key and value. Only tiers that measure alike have equal bytes.
            id: The message's id: 16 bytes (fastest), a UUID's text or any other bytes. With ids the audit
                detects replaced records, and can name missing ones.
        """
        try:
            book = self._books[topic]
        except (KeyError, TypeError):
            book = self._book_of(topic)
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
        """Counts records that have just reached this tier: arrays of one length; `nbytes` may be a number."""
        self._look_for_fork()
        try:
            self._book_of(topic).add(timestamps_ms, nbytes, ids, int(self._now_s() * 1000))
        except _WRONG as error:
            self._problems.wrong(CALLS, f"sent_many({topic!r}): {error}; its records are not counted")

    def handled(
        self, topic: str, partition: int, offset: int, timestamp_ms: int | None, nbytes: int,
        id: bytes | None = None,  # noqa: A002
    ) -> bool:  # fmt: skip
        """Counts a consumed record, unless this process or the one before it has counted it.

        Records of a partition must come in the order of their offsets. Returns whether it was counted.
        """
        try:
            time_ms = -1 if timestamp_ms is None else timestamp_ms
            book = self._books.get(topic) or self._book_of(topic)
            if not book.noted or book.lock.locked():  # seldom, but sooner or later in the child of a fork
                self._look_for_fork()
            return book.handled(partition, offset, time_ms, nbytes, id, self._now_s())
        except _WRONG as error:
            self._problems.wrong(
                CALLS, f"handled({topic!r}, {partition!r}, {offset!r}): {error}; it is not counted"
            )
            return False

    def handled_many(
        self, topic: str, partition: int, offsets: Sequence[int], timestamps_ms: Sequence[int],
        nbytes: Sequence[int], ids: Sequence[bytes | None] | None = None,
    ) -> None:  # fmt: skip
        """Counts many records of a partition, as `handled`."""
        try:
            book = self._book_of(topic)
            if len(offsets) >= FEW_RECORDS or not book.noted or book.lock.locked():
                self._look_for_fork()
            book.handled_many(partition, offsets, timestamps_ms, nbytes, ids, self._now_s())
        except _WRONG as error:
            self._problems.wrong(CALLS, f"handled_many({topic!r}, {partition!r}): {error}")

    def _book_of(self, topic: str) -> TopicCounts:
        try:
            found = self._books.get(topic)
            if found is not None:
                return found
            if not _TOPIC.fullmatch(topic):
                raise ValueError("this is not a valid topic name")
        except _WRONG as error:
            self._problems.wrong(TOPICS, f"{topic!r}: {error}; its records are not counted")
            return self._nowhere
        self._look_for_fork()
        with self._books_lock:
            if topic not in self._books:
                if len(self._books) >= MOST_TOPICS:
                    self._problems.wrong(
                        TOPICS, f"{topic!r}: more than {MOST_TOPICS} topics; its records are not counted"
                    )
                    return self._nowhere
                self._books[topic] = self._book(topic)
            return self._books[topic]

    def _book(self, topic: str) -> TopicCounts:
        tier = self._tier
        scope = Scope(topic, tier.tier, tier.cluster, tier.width_ms)
        client = ClientAudit(scope, tier.source, tier.idle_ms)
        return TopicCounts(client, topic, self._positions.pop(topic, {}), self._problems)

    # -- forks ----------------------------------------------------------------------------------------

    def _look_for_fork(self) -> None:
        """Detects a fork in C, which calls no hook of Python's."""
        if os.getpid() != self._process_id:
            self._forked()

    def _forked(self) -> None:
        """Runs in the child of a fork: threads that it does not have may hold the locks."""
        self._books_lock = threading.Lock()
        for book in [*self._books.values(), self._nowhere]:
            book.lock = threading.Lock()
        self._process_id = os.getpid()

    def _begin_as(self, source: str, *, is_forked: bool = False) -> None:
        """Sets the incarnation, before its first report. `is_forked`: drops the parent's counts."""
        self._tier = self._tier._replace(source=source)
        if is_forked:
            self._books = {}
        for book in self._books.values():
            book.begin_as(source)

    # -- for the background thread -------------------------------------------------------------------

    def _resume(self, positions: Positions) -> None:
        """Takes over positions of an earlier process, also for topics that this one has counted already."""
        with self._books_lock:
            for topic, found in positions.items():
                book = self._books.get(topic)
                if book is None:
                    self._positions = joined(self._positions, {topic: found})
                    continue
                with book.lock:
                    book.positions = joined({topic: book.positions}, {topic: found})[topic]

    def _snapshot(self, backlog: Sequence[Report], *, has_left: bool) -> WalSnapshot:
        """The snapshot for the log. `has_left`: the last reports exist, so ended clients are left out."""
        unopened = dict(
            self._positions
        )  # first, because a book that is opened meanwhile takes its positions from there
        books = [book.all() for book in list(self._books.values())]
        positions = {state.scope.topic: moved for state, moved in books if moved}
        states = [state for state, _ in books if not has_left or state.pending or state.windows]
        return WalSnapshot(tuple(states), tuple(backlog), unopened | positions)

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
