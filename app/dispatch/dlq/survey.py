"""Reads a queue without changing it: statistics for people, and forecasts of merges and purges.

Reading ends after `within_s`; the figures then cover the letters read so far, and `complete` is false.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

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
from app.kernel.json_types import JsonObject

HOUR_MS = 3_600_000
MAX_CODES = 100  # receivers choose codes and reasons, so only this many are counted separately
MAX_WORDS_CHARS = 200
MAX_HOURS = 24 * 31
OTHER_CODES = "(others)"


@dataclass
class LetterStats:
    letters: int = 0
    value_bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    codes: Counter[str] = field(default_factory=Counter)
    hours: Counter[int] = field(default_factory=Counter)  # start of the hour in ms -> letters moved in it
    merged_before: int = 0  # letters whose message was merged before, and failed again

    def count(self, letters: Iterable[DeadLetter]) -> None:
        for letter in letters:
            at_ms = letter.moved_ms
            self.letters += 1
            self.value_bytes += letter.left_out_bytes or len(letter.value or b"")
            self.oldest_ms = at_ms if self.oldest_ms is None else min(self.oldest_ms, at_ms)
            self.newest_ms = at_ms if self.newest_ms is None else max(self.newest_ms, at_ms)
            _count_apart(self.codes, letter.code[:60])
            self.hours[at_ms - at_ms % HOUR_MS] += 1
            self.merged_before += letter.merges > 0

    def to_json(self) -> JsonObject:
        """Codes by frequency, the latest hours by time."""
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


async def stats(client: ClusterClient, workload: Workload, query: LetterQuery, within_s: float) -> JsonObject:
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
    """The chosen letters as complete JSON lines, one chunk at a time.

    Raises:
        KafkaError, TimeoutError: The lines so far are not all.
    """
    async for letters, _ in scan(client, topic, spans):
        yield b"".join(orjson.dumps(exported(letter)) + b"\n" for letter in letters if choice.holds(letter))


async def foresee(
    client: ClusterClient,
    workload: Workload,
    terms: OperationTerms,
    wanted: Mapping[int, Span],
    within_s: float,
) -> JsonObject:
    """The forecast of a merge or a purge that would begin now; it then takes `partitions` as its bounds.

    `reasons` counts the letters that it would take by their reason. `front` is the number of offsets that a
    purge would then delete.

    Raises:
        NoQueue, BadQuery, ClusterUnreachable, KafkaError, TimeoutError
    """
    topic = workload.dlq_topic()
    ends = await queue_ends(client, topic)
    spans = bounded(ends, wanted, terms.query.partition)
    operations = await merges_of(client, workload, ends)
    past = terms.past_of(operations.values())
    certain = [merge.past(certain=True) for merge in operations.values()]
    counts, passed = dict.fromkeys(map(str, MergeVerdict), 0), 0
    reasons: Counter[str] = Counter()
    first_kept: dict[int, int] = {}  # partition -> offset
    async with reading_left_out(client, workload) as left_out:
        async for letters, offsets in scan(client, topic, spans, within_s):
            for letter in letters:
                _, verdict = await left_out.judge(letter, terms.judge(letter, past), certain)
                counts[verdict] += 1
                if verdict in {MergeVerdict.MERGE, MergeVerdict.PURGE}:
                    _count_apart(reasons, letter.reason[:MAX_WORDS_CHARS])
                stays = verdict != MergeVerdict.PURGE and not any(take.took(letter) for take in certain)
                if stays and letter.partition not in first_kept:
                    first_kept[letter.partition] = letter.offset
            passed += offsets
    extent = _extent(spans, passed)
    front = {p: first_kept.get(p, end) - start for p, (start, end) in spans.items() if start == ends[p][0]}
    return {
        "topic": topic,
        **extent,
        "kind": terms.kind,
        "reasons": dict(reasons.most_common()),
        "front": sum(front.values()) if terms.purge and extent["complete"] else None,
        "counts": counts,
        "partitions": {str(n): {"start": start, "end": end} for n, (start, end) in sorted(spans.items())},
        "unfinished": sorted(name for name, merge in operations.items() if not merge.done),
    }


def _extent(spans: Mapping[int, Span], passed: int) -> JsonObject:
    total = sum(end - start for start, end in spans.values())
    return {"looked_at": passed, "of": total, "complete": passed >= total}
