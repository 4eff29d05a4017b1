"""What becomes of a dead letter in a merge, and what its copy says: pure.

    letter -> does the query hold? -> was it merged before? -> a message at all? -> merged too often? -> copy

Rules
1. A letter is merged at most once by all the merges that are remembered, unless it is asked for `again`.
2. A letter that has been merged `max_merges` times is quarantined: it stays where it is and is counted, so
   that a poison pill does not go round for ever. The count travels in the header `switchyard-merges`.
3. The bytes of a batch that could not be decoded are no message and are never merged.
4. A copy carries key, value and the producer's headers untouched, its origin and its attempts so far; the
   reason it was given up for is behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.core import retry_headers as names
from app.core.retry_headers import MERGES, Header
from app.dlq.letter import Letter
from app.dlq.query import BadQuery, Query

DEFAULT_MAX_MERGES = 3
DEFAULT_RATE = 1000.0  # letters a second
KEPT = (names.ORIGIN_TOPIC, names.ORIGIN_PARTITION, names.ORIGIN_OFFSET, names.ORIGIN_TIMESTAMP,
        names.ATTEMPT, names.RETRY_COUNT)  # fmt: skip

Span = tuple[int, int]  # offsets [start, end)


class Verdict(StrEnum):
    """What a merge does with a letter."""

    MERGE = "merged"
    OTHER = "other"  # the query does not hold
    BEFORE = "before"  # an earlier merge took it
    QUARANTINE = "quarantined"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Past:
    """What an earlier merge has passed over: per partition the offsets [start, next), under its query."""

    query: Query
    max_merges: int
    spans: Mapping[int, Span]

    def took(self, letter: Letter) -> bool:
        """Whether that merge made a copy of `letter`."""
        start, end = self.spans.get(letter.partition, (0, 0))
        return start <= letter.offset < end and self.query.holds(letter) and letter.merges < self.max_merges


def judge(letter: Letter, query: Query, max_merges: int, past: Iterable[Past]) -> Verdict:
    """See the module."""
    if not query.holds(letter):
        return Verdict.OTHER
    if letter.raw:
        return Verdict.RAW
    if any(merge.took(letter) for merge in past):
        return Verdict.BEFORE
    return Verdict.QUARANTINE if letter.merges >= max_merges else Verdict.MERGE


def copy_headers(letter: Letter, merged_at_ms: int) -> list[Header]:
    """The headers of the copy that goes to the workload (rule 4)."""
    own = [(name, value) for name, value in letter.headers if not name.startswith(names.PREFIX)]
    last = {name: value for name, value in letter.headers if value is not None}
    kept: list[Header] = [(name, last[name]) for name in KEPT if name in last]
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
