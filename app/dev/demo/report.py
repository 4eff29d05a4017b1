"""Counts the outcome of every message. Pure, so that tests can use known answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from app.dev.demo.traffic import SentMessage
from app.kernel.json_types import JsonMapping


@dataclass(frozen=True, slots=True)
class StoryReport:
    """The outcome of the story. `lost` are ids neither delivered nor in the DLQ."""

    produced: int
    delivered: int
    retried: int
    dead_lettered: int
    lost: tuple[str, ...]
    duplicates: int
    unexpected: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether no message is lost or in the wrong place."""
        return not self.lost and not self.unexpected and self.delivered + self.dead_lettered >= self.produced


def count(sent: Iterable[SentMessage], deliveries: Iterable[JsonMapping], dead: Iterable[str]) -> StoryReport:
    """The report of a set of messages, the receiver's journal, and the ids in the DLQ.

    A duplicate is a second acknowledged delivery of an id. `unexpected` are good messages in the DLQ and
    acknowledged poison.
    """
    by_id = {message.id: message.behaviour for message in sent}
    acknowledged: Counter[str] = Counter()
    retried: set[str] = set()
    for delivery in deliveries:
        if delivery["outcome"] == "ok":
            acknowledged[delivery["id"]] += 1
        elif delivery["outcome"] == "retryable":
            retried.add(delivery["id"])
    dead_ids = set(dead)
    unexpected = {i for i in dead_ids if by_id.get(i) != "poison"}
    unexpected |= {i for i in acknowledged if by_id.get(i, "poison") == "poison"}
    return StoryReport(
        produced=len(by_id),
        delivered=len(acknowledged),
        retried=len(retried),
        dead_lettered=len(dead_ids),
        lost=tuple(sorted(i for i in by_id if i not in acknowledged and i not in dead_ids)),
        duplicates=sum(times - 1 for times in acknowledged.values()),
        unexpected=tuple(sorted(unexpected)),
    )
