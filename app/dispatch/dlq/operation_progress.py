"""Kafka's record of a merge, or of a purge by query: the committed offsets of its own consumer group.

    group     switchyard.dlq-merge.<group>.<topic>.<operation>
    offset    of a partition of the DLQ: the next one to look at
    metadata  of that commit: where the partition's part began and ends, the terms, the counts so far (JSON)

One transaction holds the copies and the commit that counts them, so the record never says more or less than
happened. Kafka keeps the offsets of an unused group for `offsets.retention.minutes` after its last commit
(7 days by default); then the merge is forgotten. An ended purge is kept for longer than its letters
(`operation_history.keep`), so that they do not come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from app.dispatch.definition import Workload
from app.dispatch.dlq.letter import DeadLetter
from app.dispatch.dlq.query import BadQuery, LetterQuery
from app.dispatch.dlq.rules import DEFAULT_MAX_MERGES, MergeVerdict, PastOperation, Span, judge, judge_purge
from app.kernel.json_types import JsonObject

MAX_METADATA_BYTES = 4096  # a broker's default offset.metadata.max.bytes
MAX_OPERATION_CHARS = 40
PREFIX = "switchyard.dlq-merge"
REFUSED = "refused"  # the broker refuses the copy for its size, or by a topic setting
EXPIRED = "expired"  # retention deleted the letter before it was merged


def stem(workload: Workload) -> str:
    """The prefix of the group names of the workload's merges. It is also their transactional id, so that a
    new merge fences the running one."""
    return f"{PREFIX}.{workload.metadata.group}.{workload.metadata.topic}"


@dataclass(frozen=True, slots=True)
class OperationTerms:
    """The terms of a merge, or of a purge by query; fixed when it begins.

    Attributes:
        again: Earlier merges do not count, only earlier purges do.
    """

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
        if self.purge:
            return judge_purge(letter, self.query, past)
        return judge(letter, self.query, self.max_merges, past)

    def past_of(self, operations: Iterable[OperationProgress]) -> list[PastOperation]:
        """The operations that count for this one: with `again` purges only, else all."""
        return [merge.past() for merge in operations if merge.terms.purge or not self.again]


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition's part of an operation: [start, end), judged up to `next_offset`."""

    start: int
    end: int
    next_offset: int
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.next_offset >= self.end

    def after(self, next_offset: int, verdicts: Iterable[str]) -> PartitionProgress:
        """The part, once the letters before `next_offset` got these verdicts."""
        assert self.next_offset <= next_offset <= self.end, (self, next_offset)
        counts = dict(self.counts)
        for verdict in verdicts:
            counts[str(verdict)] = counts.get(str(verdict), 0) + 1  # keys of JSON are plain strings
        return replace(self, next_offset=next_offset, counts=counts)

    def plus(self, verdict: str, count: int) -> PartitionProgress:
        return replace(self, counts={**self.counts, verdict: self.counts.get(verdict, 0) + count})


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """The recorded state of a merge, or of a purge by query."""

    operation: str
    terms: OperationTerms
    parts: Mapping[int, PartitionProgress]

    @property
    def done(self) -> bool:
        return all(part.done for part in self.parts.values())

    def past(self, *, certain: bool = False) -> PastOperation:
        """The operation as later ones see it. `certain`: without partitions where a letter was refused or
        lacked its value, so got no copy."""
        spans: dict[int, Span] = {
            number: (part.start, part.next_offset)
            for number, part in self.parts.items()
            if not (certain and (part.counts.get(REFUSED) or part.counts.get(MergeVerdict.LEFT_OUT)))
        }
        return PastOperation(self.terms.query, self.terms.max_merges, spans, self.terms.purge)

    def counts(self) -> dict[str, int]:
        """The letters of all partitions, by verdict; every verdict is present."""
        total = dict.fromkeys([*map(str, MergeVerdict), REFUSED, EXPIRED], 0)
        for part in self.parts.values():
            for name, count in part.counts.items():
                total[name] = total.get(name, 0) + count
        return total

    def to_json(self) -> JsonObject:
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
    """`name`, if it can be part of a group's name. Raises BadQuery."""
    plain = name.isascii() and all(char.isalnum() or char in "-_" for char in name)
    if not (plain and 0 < len(name) <= MAX_OPERATION_CHARS):
        raise BadQuery(
            f"operation {name[:60]!r}: use letters, digits, - and _, at most {MAX_OPERATION_CHARS} characters"
        )
    return name


def pack(terms: OperationTerms, part: PartitionProgress) -> str:
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
    """The inverse of `pack`; None: this is not the metadata of an operation."""
    try:
        found = orjson.loads(metadata)
        again, purge = bool(found["again"]), bool(found.get("purge", False))
        terms = OperationTerms(LetterQuery.from_json(found["query"]), int(found["max_merges"]), again, purge)
        counts = {str(name): int(count) for name, count in found["counts"].items()}
        part = PartitionProgress(int(found["start"]), int(found["end"]), next_offset, counts)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return (terms, part) if part.start <= next_offset <= part.end else None
