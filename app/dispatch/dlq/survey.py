"""Looks a queue over without changing anything: figures for people, and what a merge would do.

A look ends after `within_s`: its figures are then those of the letters seen so far, and say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from app.dispatch.definition import Workload
from app.dispatch.dlq.left_out import reading_left_out
from app.dispatch.dlq.letter import DeadLetter, exported
from app.dispatch.dlq.operation_history import choose, merges_of
from app.dispatch.dlq.operation_progress import OperationTerms
from app.dispatch.dlq.query import LetterQuery
from app.dispatch.dlq.reader import queue_ends, scan
from app.dispatch.dlq.rules import LetterChoice, MergeVerdict, Span, bounded
from app.kafka.client.cluster import ClusterClient

HOUR_MS = 3_600_000
MAX_CODES = 100  # codes and reasons are strangers' words: a bounded number of them is counted apart
MAX_WORDS_CHARS = 200
MAX_HOURS = 24 * 31
OTHER_CODES = "(others)"


@dataclass
class LetterStats:
    """Figures of the letters that were counted."""

    letters: int = 0
    value_bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    codes: Counter[str] = field(default_factory=Counter)
    hours: Counter[int] = field(default_factory=Counter)  # hour's begin -> letters moved in it
    merged_before: int = 0  # letters that came back after a merge

    def count(self, letters: Iterable[DeadLetter]) -> None:
        """Takes `letters` in."""
        for letter in letters:
            at_ms = letter.moved_ms
            self.letters += 1
            self.value_bytes += letter.left_out_bytes or len(letter.value or b"")
            self.oldest_ms = at_ms if self.oldest_ms is None else min(self.oldest_ms, at_ms)
            self.newest_ms = at_ms if self.newest_ms is None else max(self.newest_ms, at_ms)
            _count_apart(self.codes, letter.code[:60])
            self.hours[at_ms - at_ms % HOUR_MS] += 1
            self.merged_before += letter.merges > 0

    def to_json(self) -> dict[str, Any]:
        """Codes by count, the latest hours in order of time."""
        return {
            "letters": self.letters,
            "value_bytes": self.value_bytes,
            "oldest_ms": self.oldest_ms,
            "newest_ms": self.newest_ms,
            "merged_before": self.merged_before,
            "codes": dict(self.codes.most_common()),
            "hours": [[at_ms, self.hours[at_ms]] for at_ms in sorted(self.hours)[-MAX_HOURS:]],
        }


def _count_apart(counts: Counter[str], words: str) -> None:
    words = words or "(none)"
    counts[words if words in counts or len(counts) < MAX_CODES else OTHER_CODES] += 1


async def stats(
    client: ClusterClient, workload: Workload, query: LetterQuery, within_s: float
) -> dict[str, Any]:
    """Figures of the letters for which `query` holds.

    Raises:
        NoQueue, BadQuery, ClusterUnreachable, KafkaError, TimeoutError
    """
    topic = workload.dlq_topic()
    spans = bounded(await queue_ends(client, topic), {}, query.partition)
    choice = await choose(client, workload, query, spans)
    found, passed = LetterStats(), 0
    async for letters, offsets in scan(client, topic, spans, within_s):
        found.count(letter for letter in letters if choice.holds(letter))
        passed += offsets
    return {"topic": topic, **_extent(spans, passed), **found.to_json()}


async def lines(
    client: ClusterClient, topic: str, choice: LetterChoice, spans: Mapping[int, Span]
) -> AsyncIterator[bytes]:
    """The letters as JSON lines, nothing of them left out (`export` writes them), a chunk at a time.

    Raises:
        KafkaError, TimeoutError: it ends early; what came before is not everything.
    """
    async for letters, _ in scan(client, topic, spans):
        yield b"".join(orjson.dumps(exported(letter)) + b"\n" for letter in letters if choice.holds(letter))


async def foresee(
    client: ClusterClient,
    workload: Workload,
    terms: OperationTerms,
    wanted: Mapping[int, Span],
    within_s: float,
) -> dict[str, Any]:
    """What a merge or a purge that begins now would do; its `partitions` are the bounds to begin it with.

    `reasons` counts what it would take by the reason, `front` the offsets that a purge would then delete.

    Raises:
        NoQueue, BadQuery, ClusterUnreachable, KafkaError, TimeoutError
    """
    topic = workload.dlq_topic()
    ends = await queue_ends(client, topic)
    spans = bounded(ends, wanted, terms.query.partition)
    known = await merges_of(client, workload, ends)
    past = terms.heeded(known.values())
    certain = [merge.past(certain=True) for merge in known.values()]
    counts, passed = dict.fromkeys(map(str, MergeVerdict), 0), 0
    reasons: Counter[str] = Counter()
    left: dict[int, int] = {}  # partition -> the first that stays
    async with reading_left_out(client, workload) as left_out:
        async for letters, offsets in scan(client, topic, spans, within_s):
            for letter in letters:
                _, verdict = await left_out.judged(letter, terms.judge(letter, past), certain)
                counts[verdict] += 1
                if verdict in {MergeVerdict.MERGE, MergeVerdict.PURGE}:
                    _count_apart(reasons, letter.reason[:MAX_WORDS_CHARS])
                stays = verdict != MergeVerdict.PURGE and not any(take.took(letter) for take in certain)
                if stays and letter.partition not in left:
                    left[letter.partition] = letter.offset
            passed += offsets
    extent = _extent(spans, passed)
    whole = {p: left.get(p, end) - start for p, (start, end) in spans.items() if start == ends[p][0]}
    return {
        "topic": topic,
        **extent,
        "kind": terms.kind,
        "reasons": dict(reasons.most_common()),
        "front": sum(whole.values()) if terms.purge and extent["complete"] else None,
        "counts": counts,
        "partitions": {str(n): {"start": start, "end": end} for n, (start, end) in sorted(spans.items())},
        "unfinished": sorted(name for name, merge in known.items() if not merge.done),
    }


def _extent(spans: Mapping[int, Span], passed: int) -> dict[str, Any]:
    of = sum(end - start for start, end in spans.values())
    return {"looked_at": passed, "of": of, "complete": passed >= of}
