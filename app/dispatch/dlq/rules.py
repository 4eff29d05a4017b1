"""What becomes of a dead letter in a merge or a purge, and what its copy says: pure.

    letter -> the query holds? -> purged before? -> a message at all? -> merged before? -> merged too often?

Rules
1. A letter is merged at most once by all the merges that are remembered, unless it is asked for `again`.
2. A letter that has been merged `max_merges` times is quarantined: it stays where it is and is counted, so
   that a poison pill does not go round for ever. The count travels in the header `switchyard-merges`.
3. The bytes of a batch that could not be decoded are no message and are never merged.
4. A copy carries key, value and the producer's headers untouched, its origin and its attempts so far; the
   reason it was given up for is behind it.
5. What a remembered purge took is gone for whoever asks, whatever still stands in the log.
6. A letter whose value was left out is merged with what stands at its place (`app.dispatch.dlq.left_out`).
   Where that is gone, it is counted and never sent: null would tell the receiver to delete.
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
    """What a merge does with a letter."""

    MERGE = "merged"
    PURGE = "purged"
    OTHER = "other"  # the query does not hold
    BEFORE = "before"  # an earlier merge took it
    QUARANTINE = "quarantined"
    RAW = "raw"
    GONE = "gone"  # an earlier purge took it
    LEFT_OUT = "left-out"  # its value is not in it, and not where it stood either


@dataclass(frozen=True, slots=True)
class PastOperation:
    """What an earlier merge or purge has passed over: offsets [start, next) by partition, under its query."""

    query: LetterQuery
    max_merges: int
    spans: Mapping[int, Span]
    purge: bool = False

    def took(self, letter: DeadLetter) -> bool:
        """Whether that merge made a copy of `letter`, or that purge removed it."""
        start, end = self.spans.get(letter.partition, (0, 0))
        taken = self.purge or (letter.merges < self.max_merges and not letter.raw)
        return taken and start <= letter.offset < end and self.query.holds(letter)


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """The letters for which `query` holds and that none of `purges` took (rule 5)."""

    query: LetterQuery
    purges: Sequence[PastOperation] = ()

    @property
    def everything(self) -> bool:
        """Whether it holds for every letter."""
        return self.query.everything and not self.purges

    def holds(self, letter: DeadLetter) -> bool:
        """Whether `letter` is one of them."""
        return self.query.holds(letter) and not _is_gone(letter, self.purges)


def _is_gone(letter: DeadLetter, past: Iterable[PastOperation]) -> bool:
    return any(purge.took(letter) for purge in past if purge.purge)


def judge_purge(letter: DeadLetter, query: LetterQuery, past: Iterable[PastOperation]) -> MergeVerdict:
    """What a purge does with `letter`: whatever is asked for goes, once."""
    if not query.holds(letter):
        return MergeVerdict.OTHER
    return MergeVerdict.GONE if _is_gone(letter, past) else MergeVerdict.PURGE


def judge(
    letter: DeadLetter, query: LetterQuery, max_merges: int, past: Sequence[PastOperation]
) -> MergeVerdict:
    """What a merge does with `letter`: see the module."""
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
    """The headers of the copy that goes to the workload (rule 4)."""
    own = [(name, value) for name, value in letter.headers if not name.startswith(names.PREFIX)]
    last = {name: value for name, value in letter.headers if value is not None}
    kept: list[Header] = [(name, last[name]) for name in KEPT_HEADERS if name in last]
    count: list[Header] = [(MERGES, str(letter.merges + 1).encode())]
    return [*own, *kept, *count, (names.MOVED_AT, str(merged_at_ms).encode())]


def bounded(
    ends: Mapping[int, Span], wanted: Mapping[int, Span], partitions: Iterable[int]
) -> dict[int, Span]:
    """The offsets to work through: what the log holds (`ends`), cut to what is `wanted` of it.

    `wanted` empty means all of it; `partitions` empty means all of them. Partitions with nothing to do are
    left out.

    Raises:
        BadQuery: a partition that is not there is asked for.
    """
    chosen = set(partitions)
    for partition in chosen | set(wanted):
        if partition not in ends:
            raise BadQuery(f"partition {partition} is not there; there are {len(ends)}")
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
    """ "0:100-200": partition 0, offsets [100, 200). Either side may be left out.

    Raises:
        BadQuery: it is no range.
    """
    partition, colon, span = text.partition(":")
    start, dash, end = span.partition("-")
    numbers = (partition, start or "0", end or str(2**62))
    if not (colon and dash and all(n.isascii() and n.isdigit() and len(n) <= 19 for n in numbers)):
        raise BadQuery(f"{text[:60]!r} is no range; write PARTITION:FROM-BEFORE, such as 0:100-200")
    return int(partition), (int(numbers[1]), int(numbers[2]))
