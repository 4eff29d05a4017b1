"""Decides what a merge or a purge does with a dead letter, and which headers a merged copy gets. Pure.

    letter -> the query holds? -> purged before? -> a message at all? -> merged before? -> merged too often?

Rules (tests/dispatch/dlq/test_rules.py)
1. All recorded merges together copy a letter at most once, unless a merge has the term `again`.
2. A message that was merged `max_merges` times is quarantined: its letter stays and is counted, so that a
   poison pill does not circulate for ever. The header `switchyard-merges` carries the count.
3. The bytes of a batch that could not be decoded are not a message, and are never merged.
4. A copy has the letter's key, value, producer headers, origin and number of attempts. It does not have the
   reason of the failure.
5. A letter that a recorded purge took is gone for every reader, even while the log still contains it.
6. If the value was left out, the merge copies it from its place (`app.dispatch.dlq.left_out`). If it is no
   longer there, the letter is counted and never sent: null would tell the receiver to delete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.dispatch.dlq.letter import DeadLetter
from app.dispatch.dlq.query import BadQuery, LetterQuery
from app.dispatch.model import retry_headers as names
from app.dispatch.model.retry_headers import MERGES, Header

DEFAULT_MAX_MERGES = 3
DEFAULT_RATE = 1000.0  # letters a second
KEPT_HEADERS = (names.ORIGIN_TOPIC, names.ORIGIN_PARTITION, names.ORIGIN_OFFSET, names.ORIGIN_TIMESTAMP,
        names.ATTEMPT, names.RETRY_COUNT)  # fmt: skip

Span = tuple[int, int]  # offsets [start, end)


class MergeVerdict(StrEnum):
    """The result of a merge or a purge for one letter."""

    MERGE = "merged"
    PURGE = "purged"
    OTHER = "other"  # the query does not hold
    BEFORE = "before"  # an earlier merge took it
    QUARANTINE = "quarantined"
    RAW = "raw"
    GONE = "gone"  # an earlier purge took it
    LEFT_OUT = "left-out"  # it lacks its value, and no record has it any more


@dataclass(frozen=True, slots=True)
class PastOperation:
    """An earlier merge or purge: its terms, and by partition the offsets [start, next) that it has judged."""

    query: LetterQuery
    max_merges: int
    spans: Mapping[int, Span]
    purge: bool = False

    def took(self, letter: DeadLetter) -> bool:
        """Whether that merge copied `letter`, or that purge removed it."""
        start, end = self.spans.get(letter.partition, (0, 0))
        taken = self.purge or (letter.merges < self.max_merges and not letter.raw)
        return taken and start <= letter.offset < end and self.query.holds(letter)


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """The letters for which `query` holds and which none of `purges` took (rule 5)."""

    query: LetterQuery
    purges: Sequence[PastOperation] = ()

    @property
    def everything(self) -> bool:
        return self.query.everything and not self.purges

    def holds(self, letter: DeadLetter) -> bool:
        return self.query.holds(letter) and not _is_gone(letter, self.purges)


def _is_gone(letter: DeadLetter, past: Iterable[PastOperation]) -> bool:
    return any(purge.took(letter) for purge in past if purge.purge)


def judge_purge(letter: DeadLetter, query: LetterQuery, past: Iterable[PastOperation]) -> MergeVerdict:
    if not query.holds(letter):
        return MergeVerdict.OTHER
    return MergeVerdict.GONE if _is_gone(letter, past) else MergeVerdict.PURGE


def judge(
    letter: DeadLetter, query: LetterQuery, max_merges: int, past: Sequence[PastOperation]
) -> MergeVerdict:
    """A merge's verdict on `letter`, in the order of the module's diagram."""
    if not query.holds(letter):
        return MergeVerdict.OTHER
    if _is_gone(letter, past):
        return MergeVerdict.GONE
    if letter.raw:
        return MergeVerdict.RAW
    if any(merge.took(letter) for merge in past):
        return MergeVerdict.BEFORE
    return MergeVerdict.QUARANTINE if letter.merges >= max_merges else MergeVerdict.MERGE


def copy_headers(letter: DeadLetter, merged_at_ms: int) -> list[Header]:
    """The headers of a merged copy (rule 4)."""
    producer_headers = [(name, value) for name, value in letter.headers if not name.startswith(names.PREFIX)]
    last = {name: value for name, value in letter.headers if value is not None}
    kept: list[Header] = [(name, last[name]) for name in KEPT_HEADERS if name in last]
    count: list[Header] = [(MERGES, str(letter.merges + 1).encode())]
    return [*producer_headers, *kept, *count, (names.MOVED_AT, str(merged_at_ms).encode())]


def bounded(
    ends: Mapping[int, Span], wanted: Mapping[int, Span], partitions: Iterable[int]
) -> dict[int, Span]:
    """The offsets to work through: `ends` of the log, cut to `wanted`. Empty partitions are left out.

    An empty `wanted` or `partitions` sets no limit.

    Raises:
        BadQuery: `wanted` or `partitions` names a partition that does not exist.
    """
    chosen = set(partitions)
    for partition in chosen | set(wanted):
        if partition not in ends:
            raise BadQuery(f"partition {partition} does not exist; the queue has {len(ends)} partitions")
    found = {}
    for partition, (first, last) in sorted(ends.items()):
        if (chosen and partition not in chosen) or (wanted and partition not in wanted):
            continue
        start, end = wanted.get(partition, (first, last))
        start, end = max(start, first), min(end, last)
        if start < end:
            found[partition] = (start, end)
    return found


def parse_range(text: str) -> tuple[int, Span]:
    """Parses "0:100-200": partition 0, offsets [100, 200). Either offset may be omitted.

    Raises:
        BadQuery: The text is not a range.
    """
    partition, colon, span = text.partition(":")
    start, dash, end = span.partition("-")
    numbers = (partition, start or "0", end or str(2**62))
    if not (colon and dash and all(n.isascii() and n.isdigit() and len(n) <= 19 for n in numbers)):
        raise BadQuery(f"{text[:60]!r} is not a range; write PARTITION:FROM-BEFORE, such as 0:100-200")
    return int(partition), (int(numbers[1]), int(numbers[2]))
