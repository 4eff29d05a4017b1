"""Takes fetched responses and gaps for a replica, in the source's order.

Rules
1. A response or gap continues where the one before it ended; overlapping offsets are dropped. If offsets are
   missing in between, the replica begins again.
2. A replica halts before a gap at which the route stops. It copies everything before the gap and takes
   nothing else, until an operator skips the gap or the definition changes.
3. A response is held until all of it is acknowledged, so the fetch budget bounds the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from app.kafka.fetch.deliveries import FetchedBatches, LogGap
from app.kafka.fetch.service import LEAST_BYTES
from app.kernel.ranges import Range


def to_skip(gap: LogGap) -> Range:
    """The offsets that an operator skips: the gap, or for another log the former one's end."""
    return gap.start, gap.start + 1 if gap.begun_anew else gap.end


class BatchIntake:
    """The responses and gaps that a replica has taken. `lose` takes the reason why it has to begin again.

    Attributes:
        expected: The next offset that may come.
        halted: Why it halts (rule 2); None: it does not.
        is_behind: The last response was large and did not reach the high watermark.
    """

    def __init__(self, next_offset: int, lose: Callable[[str], None]) -> None:
        self.expected = next_offset
        self.read_bytes = 0
        self.halted: str | None = None
        self.is_behind = False
        self._gap: LogGap | None = None  # the replica halts before it
        self._is_over = False  # responses are of another log; they are held, so that no more is fetched
        self._resumes_at = -1
        self._lose = lose
        self._inbox: asyncio.Queue[FetchedBatches | LogGap] = asyncio.Queue()
        self._held: dict[int, FetchedBatches] = {}

    def accept(self, fetched: FetchedBatches, *, takes: bool) -> bool:
        """Takes a new response if the replica still takes any; otherwise releases its bytes.

        Returns: Whether it will be copied; nothing is, behind a gap where the log has `begun_anew`."""
        if not takes or self.halted is not None or fetched.next_offset <= self.expected:
            fetched.release()
            return False
        if fetched.start_offset > self.expected:
            fetched.release()
            self._lose(f"[{self.expected}, {fetched.start_offset}) was not fetched, but later offsets were")
            return False
        fetched.start_offset, self.expected = self.expected, fetched.next_offset
        self.read_bytes += fetched.nbytes
        self.is_behind = fetched.nbytes >= LEAST_BYTES and fetched.next_offset < fetched.high_watermark
        self._held[id(fetched)] = fetched
        self._inbox.put_nowait(fetched)
        return not self._is_over

    def skip(self, gap: LogGap) -> None:
        """Takes a gap: none of its offsets will ever come, or the log is another one from now on."""
        if self.halted is not None or (gap.end <= self.expected and not gap.begun_anew):
            return
        if gap.start > self.expected or (gap.begun_anew and gap.start != self.expected):
            self._lose(f"a gap begins at {gap.start}, but the offsets before it ended at {self.expected}")
            return
        if not gap.begun_anew:
            gap = replace(gap, start=self.expected)  # offsets that came before are not lost
        self.expected, self._is_over = gap.end, self._is_over or gap.begun_anew
        self._inbox.put_nowait(gap)

    def halt(self, gap: LogGap, why: str) -> None:
        """Halts before the gap (rule 2)."""
        self.halted, self._gap = why, gap

    @property
    def halts_at(self) -> Range | None:
        """The offsets that an operator has to skip; None: it does not halt."""
        return None if self._gap is None else to_skip(self._gap)

    @property
    def new_lineage_at(self) -> int | None:
        """Where the job begins in a new lineage once the gap is skipped; None: the same lineage continues."""
        return self._gap.end if self._gap is not None and self._gap.begun_anew else None

    def resume(self) -> None:
        """Skips the gap that the replica halts before, for an operator."""
        gap, self.halted, self._gap = self._gap, None, None
        if gap is not None:
            # Another log is not fetched by this pump: the job manager ends it and begins again.
            self._resumes_at = -1 if gap.begun_anew else gap.end
            self.skip(gap)

    def wants_fetching(self, base: int) -> bool:
        """Whether fetching has to be resumed, because a skipped gap is now behind `base`."""
        return 0 <= self._resumes_at <= base

    async def get(self) -> FetchedBatches | LogGap:
        return await self._inbox.get()

    @property
    def held(self) -> list[FetchedBatches]:
        return list(self._held.values())

    @property
    def is_empty(self) -> bool:
        return not self._held

    def release(self, fetched: FetchedBatches) -> None:
        if self._held.pop(id(fetched), None) is not None:
            fetched.release()
