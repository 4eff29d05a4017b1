"""The book: every message that was produced, and every delivery that a receiver noted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

ENDS = {"ok", "skip"}  # outcomes after which a message needs no delivery


@dataclass(frozen=True, slots=True)
class Sent:
    """A message, and where Kafka stored it."""

    id: str
    lot: str
    key: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Dead:
    """A message in the DLQ."""

    id: str
    code: str
    reason: str
    at_ms: float


@dataclass(slots=True)
class Delivery:
    """One delivery as the receiver saw it; `end_ms` is infinite while the handler runs."""

    id: str
    pid: int
    line: int  # of the journal
    attempt: int
    retries: int
    start_ms: float
    end_ms: float = inf
    end_line: int = -1
    outcome: str = "open"


@dataclass
class Book:
    """All messages and deliveries; `feed` it the journal's lines in order."""

    sent: dict[str, Sent] = field(default_factory=dict)
    deliveries: dict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    lines: int = 0
    ended: set[str] = field(default_factory=set)  # ids that were taken or skipped
    stashed: set[str] = field(default_factory=set)  # by the receiver: they should be in the DLQ soon
    _by_number: dict[str, Delivery] = field(default_factory=dict)

    def feed(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Takes lines of the journal."""
        for line in lines:
            self.lines += 1
            number = line["d"]
            if line["what"] == "start":
                pid = int(number.partition("-")[0])
                delivery = Delivery(
                    line["id"], pid, self.lines, line["attempt"], line["retries"], line["at_ms"]
                )
                self._by_number[number] = delivery
                self.deliveries[line["id"]].append(delivery)
                continue
            delivery = self._by_number.pop(number)
            delivery.outcome, delivery.end_ms, delivery.end_line = line["what"], line["at_ms"], self.lines
            if delivery.outcome in ENDS:
                self.ended.add(delivery.id)
            elif delivery.outcome == "stash":
                self.stashed.add(delivery.id)

    def died(self, pid: int, at_ms: float) -> None:
        """Ends the open deliveries of a receiver that was killed."""
        for number, delivery in list(self._by_number.items()):
            if delivery.pid == pid:
                delivery.outcome, delivery.end_ms = "killed", at_ms
                del self._by_number[number]

    def story(self, name: str, began_ms: float) -> str:
        """The deliveries of a message, for people."""
        sent = self.sent[name]
        words = [f"{name} key {sent.key} at {sent.partition}/{sent.offset}:"]
        words += [
            f"{d.outcome} (attempt {d.attempt}, retries {d.retries}, pid {d.pid}, "
            f"{(d.start_ms - began_ms) / 1000:.2f} to {(d.end_ms - began_ms) / 1000:.2f} s)"
            for d in self.deliveries.get(name, ())
        ]
        return " ".join(words) if len(words) > 1 else f"{words[0]} never delivered"
