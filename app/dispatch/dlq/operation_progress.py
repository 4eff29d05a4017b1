"""What is remembered of a merge, or a purge by query, in Kafka: the committed offsets of a group of its own.

    group     switchyard.dlq-merge.<group>.<topic>.<operation>
    offset    of a partition of the DLQ: the next one to look at
    metadata  of that commit: where the partition's part began and ends, the terms, the counts so far (JSON)

The copies and the commit that counts them are one transaction: what is remembered is what has happened. Kafka
keeps the offsets of a group that nobody uses for `offsets.retention.minutes` (7 days unless changed) after
its last commit, and so long a merge is remembered. A purge that has ended is kept for longer than its letters
(`operation_history.keep`): they must not come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from app.dispatch.definition import Workload
from app.dispatch.dlq.letter import DeadLetter
from app.dispatch.dlq.query import BadQuery, LetterQuery
from app.dispatch.dlq.rules import DEFAULT_MAX_MERGES, MergeVerdict, PastOperation, Span, judge, judge_purge

MAX_METADATA_BYTES = 4096  # offset.metadata.max.bytes of a broker that nobody has changed
MAX_OPERATION_CHARS = 40
PREFIX = "switchyard.dlq-merge"
REFUSED = "refused"  # the broker does not take the copy: too large, or not as its topic wants it
EXPIRED = "expired"  # retention took the letter before it was merged


def stem(workload: Workload) -> str:
    """What the names of all merges of a workload begin with; also their transactional id, so that a merge
    that begins fences one that is still at work on the same queue."""
    return f"{PREFIX}.{workload.metadata.group}.{workload.metadata.topic}"


@dataclass(frozen=True, slots=True)
class OperationTerms:
    """What a merge, or a purge by query, was asked for; fixed when it begins."""

    query: LetterQuery = field(default_factory=LetterQuery)
    max_merges: int = DEFAULT_MAX_MERGES
    again: bool = False
    purge: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.max_merges, bool) or not 0 <= self.max_merges <= 1000:
            raise BadQuery("max_merges: must be from 0 to 1000")

    @property
    def kind(self) -> str:
        return "purge" if self.purge else "merge"

    def judge(self, letter: DeadLetter, past: Sequence[PastOperation]) -> MergeVerdict:
        """What becomes of `letter`."""
        if self.purge:
            return judge_purge(letter, self.query, past)
        return judge(letter, self.query, self.max_merges, past)

    def heeded(self, known: Iterable[OperationProgress]) -> list[PastOperation]:
        """What counts of what is known: with `again` the purges only."""
        return [merge.past() for merge in known if merge.terms.purge or not self.again]


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition's part of a merge: [start, end), looked at up to `next_offset`."""

    start: int
    end: int
    next_offset: int
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.next_offset >= self.end

    def after(self, next_offset: int, verdicts: Iterable[str]) -> PartitionProgress:
        """The part once the letters before `next_offset` have been dealt with."""
        assert self.next_offset <= next_offset <= self.end, (self, next_offset)
        counts = dict(self.counts)
        for verdict in verdicts:
            counts[str(verdict)] = counts.get(str(verdict), 0) + 1  # JSON takes no other keys
        return replace(self, next_offset=next_offset, counts=counts)

    def plus(self, what: str, count: int) -> PartitionProgress:
        """The part with `count` more of `what`."""
        return replace(self, counts={**self.counts, what: self.counts.get(what, 0) + count})


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """A merge, or a purge by query, as it stands."""

    operation: str
    terms: OperationTerms
    parts: Mapping[int, PartitionProgress]

    @property
    def done(self) -> bool:
        return all(part.done for part in self.parts.values())

    def past(self, *, certain: bool = False) -> PastOperation:
        """What a later one must know of it; `certain`: without parts of which some letters had no copy."""
        spans: dict[int, Span] = {
            number: (part.start, part.next_offset)
            for number, part in self.parts.items()
            if not (certain and (part.counts.get(REFUSED) or part.counts.get(MergeVerdict.LEFT_OUT)))
        }
        return PastOperation(self.terms.query, self.terms.max_merges, spans, self.terms.purge)

    def counts(self) -> dict[str, int]:
        """Over all partitions, every verdict named."""
        total = dict.fromkeys([*map(str, MergeVerdict), REFUSED, EXPIRED], 0)
        for part in self.parts.values():
            for name, count in part.counts.items():
                total[name] = total.get(name, 0) + count
        return total

    def to_json(self) -> dict[str, Any]:
        """For people and progress bars."""
        return {
            "operation": self.operation,
            "kind": self.terms.kind,
            "done": self.done,
            "looked_at": sum(part.next_offset - part.start for part in self.parts.values()),
            "of": sum(part.end - part.start for part in self.parts.values()),
            "counts": self.counts(),
            "query": self.terms.query.to_json(),
            "max_merges": self.terms.max_merges,
            "partitions": {
                str(n): {"start": part.start, "next": part.next_offset, "end": part.end}
                for n, part in sorted(self.parts.items())
            },
        }


def check_operation(name: str) -> str:
    """`name` when it can be a part of a group's name. Raises BadQuery."""
    plain = name.isascii() and all(char.isalnum() or char in "-_" for char in name)
    if not (plain and 0 < len(name) <= MAX_OPERATION_CHARS):
        raise BadQuery(f"operation {name[:60]!r}: letters, digits, - and _, at most {MAX_OPERATION_CHARS}")
    return name


def pack(terms: OperationTerms, part: PartitionProgress) -> str:
    """The metadata of a commit."""
    packed = orjson.dumps(
        {
            "start": part.start,
            "end": part.end,
            "query": terms.query.to_json(),
            "max_merges": terms.max_merges,
            "again": terms.again,
            "purge": terms.purge,
            "counts": dict(part.counts),
        }
    )
    assert len(packed) <= MAX_METADATA_BYTES, "the query's limits keep it below this"
    return packed.decode()


def unpack(metadata: str, next_offset: int) -> tuple[OperationTerms, PartitionProgress] | None:
    """The inverse; None when it is none of ours."""
    try:
        found = orjson.loads(metadata)
        again, purge = bool(found["again"]), bool(found.get("purge", False))
        terms = OperationTerms(LetterQuery.from_json(found["query"]), int(found["max_merges"]), again, purge)
        counts = {str(name): int(count) for name, count in found["counts"].items()}
        part = PartitionProgress(int(found["start"]), int(found["end"]), next_offset, counts)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return (terms, part) if part.start <= next_offset <= part.end else None
