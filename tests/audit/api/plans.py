"""Audited topics for consoles fed by hand: tiers with equal counts, and tiers with differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.audit.folds.collector import Collector
from app.audit.folds.tier import CloseWindows
from app.audit.jobs.books import AuditBook
from app.audit.jobs.report_sender import audit_partition
from app.kernel.clock import now_ms
from switchyard.audit.model.fingerprint import ids_of
from switchyard.audit.model.reports import Increment, Report, Scope, report_id
from switchyard.audit.model.tally import RecordArrays, Tally
from tests.audit.query.arrays import numbers
from tests.web.client import Console

WIDTH_MS = 600_000
HOME, WEST, AWAY = ("regional", "east-regional"), ("regional", "west-regional"), ("aggregate", "east")
SILENT_MS = 7_200_000


def plan(**spec: Any) -> dict[str, Any]:
    """A plan that counts every topic in the clusters of region east."""
    return {
        "apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": "all"},
        "spec": {
            "topics": [".*"], "window": "10m", "clusters": ["east-regional", "west-regional", "east"], **spec
        },
    }  # fmt: skip


class AuditedTopics:
    """Reports of topics, folded as in a worker's books. Window n begins n windows before the open window of
    `now`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.now_ms = now_ms()
        self.open_ms = self.now_ms - self.now_ms % WIDTH_MS
        self._parts = 0

    def _apply(self, topic: str, event: Any) -> None:
        books = self._console.fed.audit_books.books
        partition = audit_partition(topic)
        book = books.get(partition) or AuditBook(0, Collector())
        book.collector.apply(event, book.next_offset)
        books[partition] = AuditBook(book.next_offset + 1, book.collector)

    def rename(self, topic: str, to: str) -> None:
        """Gives a topic in the tables a name that no report may have."""
        books = self._console.fed.audit_books.books
        source = books[audit_partition(topic)].collector
        target = books.setdefault(audit_partition(to), AuditBook(0, Collector())).collector
        for key, record in list(source.windows.items()):
            if key.topic == topic:
                target.restore_window(key._replace(topic=to, tier=to), record)
        for name, tier in list(source.tiers.items()):
            if name.topic == topic:
                target.restore_tier(name._replace(topic=to, tier=to), tier)

    def start_ms(self, back: int) -> int:
        """The start of window `back`."""
        return self.open_ms - back * WIDTH_MS

    def count(
        self, topic: str, tier: tuple[str, str], back: int, ids: Sequence[int], *, latency_ms: int = 40,
        complete_ms: int = -1, silent: bool = False, duplicates: int = 0,
    ) -> None:  # fmt: skip
        """A source has counted records with these message ids in window `back`."""
        scope, tally, start_ms = Scope(topic, *tier, WIDTH_MS), Tally(WIDTH_MS), self.start_ms(back)
        times = [start_ms + number * 500 for number in range(len(ids))]
        named = ids_of([str(one).encode() for one in ids])
        spread = numbers([90] * len(ids))
        tally.add(
            RecordArrays(numbers(times), spread, None, named), (times[-1] + latency_ms) if times else None
        )
        for sums in tally.windows.values():
            sums.duplicates = duplicates
        heard_ms = self.now_ms - SILENT_MS if silent else self.now_ms
        self._parts += 1
        self._apply(
            topic,
            Report(
                report_id(scope, tier[1], self._parts, 0, 1, final=True),
                *scope,
                tier[1],
                heard_ms,
                tuple(Increment(start, totals) for start, totals in tally.totals().items()),
                part=self._parts,
                upto=1,
                final=True,
                watermark_ms=min(heard_ms, self.open_ms + WIDTH_MS // 2),
                complete_ms=complete_ms,
            ),
        )

    def close(self, topic: str, *tiers: tuple[str, str], back: int = 2) -> None:
        """Closes the windows below the end of window `back`."""
        for tier in tiers:
            self._apply(topic, CloseWindows(topic, *tier, self.start_ms(back) + WIDTH_MS, self.now_ms))


def every_state(console: Console, topic: str = "orders", windows: int = 24) -> AuditedTopics:
    """A topic with a window of every state; the oldest is incomplete, the newest open."""
    audited = AuditedTopics(console)
    ids = range(400)
    lost, doubled, other, late = {5, 6}, {9}, {12}, {15}
    for back in range(windows, -1, -1):
        some = list(ids[: 300 + back * 37 % 90])
        first = audited.start_ms(windows - 1) if back == windows else -1
        audited.count(topic, HOME, back, some, complete_ms=first)
    for back in range(windows, -1, -1):
        some = list(ids[: 300 + back * 37 % 90])
        if back in late:
            continue
        if back in lost:
            some = some[: -7 * back]
        if back in doubled:
            some += [9000, 9001, 9002]
        if back in other:
            some[-1] = 7777
        if back == 0:
            some = some[:-60]
        audited.count(topic, AWAY, back, some, latency_ms=230, duplicates=3 if back in doubled else 0)
    audited.close(topic, HOME, AWAY)
    for back in late:
        audited.count(topic, AWAY, back, ids[: 300 + back * 37 % 90], latency_ms=900)
    return audited
