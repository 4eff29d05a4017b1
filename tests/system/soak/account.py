"""The balance of a soak: the end of every message, and the cause of every repetition. It is pure, so tests
give it known books.

Rules
1. A message has an end when a receiver took or skipped it, or when it is in the DLQ. Without one it
   is lost.
2. Every end beyond the first must have a cause. Either an incident hit the delivery, so that its answer was
   not heard or not saved. Or the answer took so long that the worker may have given the delivery up. Each
   cause allows one more end for each delivery that it hit.
3. With an order, no delivery starts while an earlier message of its key has had no end.
4. No message is in the DLQ because its receiver was unavailable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from tests.system.soak.book import ENDS, Book, Dead, Delivery
from tests.system.soak.plan import Kind, Lot

# A worker that was killed repeats deliveries in flight and those acknowledged since its last snapshot. A
# snapshot is due every 0.1 s; without one, pushing stops after 0.5 s.
SNAPSHOT_MS = 600.0
LOST_ANSWER_MS = 500.0  # answers that a receiver may have sent just before it was killed, paused or cut off
UNREAD_INPUT_MS = 200.0  # a receiver reads a dead worker's last calls a moment later
LATE_MS = 1000.0  # a paused receiver reads its sockets when it resumes
PATIENCE = 0.5  # the share of a delivery's timeout that must pass here; the rest may pass on the way


@dataclass(frozen=True, slots=True)
class IncidentHit:
    """An incident that happened; `receiver` is None when it hit a worker or a broker."""

    kind: Kind
    from_ms: float
    to_ms: float
    receiver: int | None = None

    def hit(self, lot: Lot, delivery: Delivery) -> bool:
        """Whether it may have made the worker miss, or fail to save, the answer to this delivery of `lot`."""
        if self.kind is Kind.WORKER_KILL:
            return (
                delivery.start_ms <= self.to_ms + UNREAD_INPUT_MS
                and delivery.end_ms >= self.from_ms - SNAPSHOT_MS
            )
        if self.kind is Kind.WORKER_STALL:  # timers run out while answers wait to be read
            return delivery.start_ms <= self.to_ms and delivery.end_ms >= self.from_ms - LOST_ANSWER_MS
        if self.receiver is None or self.receiver != lot.receiver:
            return False
        return delivery.start_ms <= self.to_ms + LATE_MS and delivery.end_ms >= self.from_ms - LOST_ANSWER_MS


@dataclass(frozen=True, slots=True)
class Account:
    """The balance. `unexplained`, `disordered` and `wrong` are sentences for people."""

    produced: int
    taken: int
    skipped: int
    dead: int
    lost: tuple[str, ...]
    duplicates: int
    allowed: int  # the bound of the duplicates: one for each delivery that an incident hit
    causes: Mapping[str, int]
    unexplained: tuple[str, ...]
    disordered: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether everything balances."""
        return not (self.lost or self.unexplained or self.disordered or self.wrong)


def balance(
    book: Book, dead: Iterable[Dead], happened: Iterable[IncidentHit], lots: Iterable[Lot]
) -> Account:
    """Balances the book."""
    by_name = {lot.name: lot for lot in lots}
    incidents = list(happened)
    graves: dict[str, list[Dead]] = {}
    for one in dead:
        graves.setdefault(one.id, []).append(one)
    ends: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for deliveries in book.deliveries.values():
        for delivery in deliveries:
            if delivery.outcome in ENDS:
                ends[delivery.id] += 1
                outcomes[delivery.outcome] += 1
    duplicates = allowed = 0
    causes: Counter[str] = Counter()
    unexplained: list[str] = []
    for name in {**book.deliveries, **graves}:
        excess = ends[name] + len(graves.get(name, ())) - 1
        reasons = _reasons(by_name[book.sent[name].lot], book.deliveries.get(name, ()), incidents)
        allowed += len(reasons)
        if excess > 0:
            duplicates += excess
            causes.update(reasons[:excess])
        if excess > len(reasons):
            unexplained.append(name)
    return Account(
        produced=len(book.sent),
        taken=outcomes["ok"],
        skipped=outcomes["skip"],
        dead=sum(map(len, graves.values())),
        lost=tuple(name for name in book.sent if not ends[name] and name not in graves),
        duplicates=duplicates,
        allowed=allowed,
        causes=causes,
        unexplained=tuple(sorted(unexplained)),
        disordered=tuple(_disordered(book, graves, by_name)),
        wrong=tuple(f"{d.id} is in the DLQ as {d.code}: {d.reason}" for ds in graves.values() for d in ds
                    if d.code in {"", "UNAVAILABLE"} or not d.reason),
    )  # fmt: skip


def _reasons(lot: Lot, deliveries: Iterable[Delivery], incidents: list[IncidentHit]) -> list[str]:
    """The causes that allow the message another end (rule 2)."""
    reasons: list[str] = []
    for delivery in deliveries:
        reasons += [incident.kind.value for incident in incidents if incident.hit(lot, delivery)]
        if delivery.end_ms - delivery.start_ms >= PATIENCE * lot.given_up_after_s * 1000:
            reasons.append("given up")
    return reasons


def _disordered(book: Book, graves: Mapping[str, list[Dead]], lots: Mapping[str, Lot]) -> Iterable[str]:
    lanes: dict[tuple[str, int, str], list[tuple[int, str]]] = defaultdict(list)
    for sent in book.sent.values():
        if lots[sent.lot].ordered:
            lanes[sent.lot, sent.partition, sent.key].append((sent.offset, sent.id))
    for lane in lanes.values():
        names = [name for _, name in sorted(lane)]
        open_: list[tuple[str, int, float]] = []  # messages without an end yet: id, line of the journal, time
        firsts = _first_starts(book, names)
        for name, (first_line, first_ms) in zip(names, firsts, strict=True):
            open_ = [one for one in open_ if one[1] > first_line and one[2] > first_ms]
            for delivery in book.deliveries.get(name, ()) if open_ else ():
                for earlier, line, at_ms in open_:
                    if line > delivery.line and at_ms > delivery.start_ms:
                        yield f"{name} was delivered at {delivery.start_ms:.0f} before {earlier} had an end"
            open_.append((name, *_end(book, name, graves.get(name, ()))))


def _first_starts(book: Book, names: list[str]) -> list[tuple[int, float]]:
    """For each message of a lane: line and time of the first delivery of it or of a later one."""
    first = (book.lines + 1, inf)
    firsts = []
    for name in reversed(names):
        starts = [(d.line, d.start_ms) for d in book.deliveries.get(name, ())]
        first = min([first, *starts])
        firsts.append(first)
    return firsts[::-1]


def _end(book: Book, name: str, graves: Iterable[Dead]) -> tuple[int, float]:
    """The journal's line of the message's first end, and when it first was in the DLQ."""
    none = book.lines + 1
    lines = [d.end_line for d in book.deliveries.get(name, ()) if d.outcome in {*ENDS, "stash"}]
    return min(lines, default=none), min((grave.at_ms for grave in graves), default=inf)
