"""What comes to a replica: fetched responses and gaps, in the source's order.

Rules
1. What comes begins where what came before it ended; a replica to which something else comes begins again.
2. Before a gap that the route stops at, it halts: what came before is copied, nothing else is taken, until an
   operator skips the gap or the definition changes.
3. What was fetched is held until all of it is acknowledged: the fetch budget bounds what is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from app.kafka.fetch.deliveries import FetchedBatches, LogGap
from app.kafka.fetch.service import LEAST_BYTES
from app.kernel.ranges import Range


def to_skip(gap: LogGap) -> Range:
    """What an operator has to skip for it: the gap; or, of another log, where the former one ended."""
    return gap.start, gap.start + 1 if gap.begun_anew else gap.end


class BatchIntake:
    """See the module. `lose` takes why it cannot go on.

    Attributes:
        expected: the next offset that may come.
        halted: why it halts (rule 2); None: it does not.
        is_behind: what came last was much, and not all there was.
    """

    def __init__(self, next_offset: int, lose: Callable[[str], None]) -> None:
        self.expected = next_offset
        self.read_bytes = 0
        self.halted: str | None = None
        self.is_behind = False
        self._gap: LogGap | None = None  # before which it halts
        self._is_over = False  # what comes is of another log: it is held, so that no more is fetched
        self._resumes_at = -1
        self._lose = lose
        self._inbox: asyncio.Queue[FetchedBatches | LogGap] = asyncio.Queue()
        self._held: dict[int, FetchedBatches] = {}

    def accept(self, fetched: FetchedBatches, *, takes: bool) -> bool:
        """Takes it if it `takes` anything; else, or when it is not new, its bytes go back at once. Returns
        whether it will be copied: behind a gap where the log has `begun_anew` nothing is."""
        if not takes or self.halted is not None or fetched.next_offset <= self.expected:
            fetched.release()
            return False
        if fetched.start_offset > self.expected:
            fetched.release()
            self._lose(f"[{self.expected}, {fetched.start_offset}) was not fetched, what follows it was")
            return False
        fetched.start_offset, self.expected = self.expected, fetched.next_offset
        self.read_bytes += fetched.nbytes
        self.is_behind = fetched.nbytes >= LEAST_BYTES and fetched.next_offset < fetched.high_watermark
        self._held[id(fetched)] = fetched
        self._inbox.put_nowait(fetched)
        return not self._is_over

    def skip(self, gap: LogGap) -> None:
        """Nothing of the gap will ever come; or the log is another one from now on."""
        if self.halted is not None or (gap.end <= self.expected and not gap.begun_anew):
            return
        if gap.start > self.expected or (gap.begun_anew and gap.start != self.expected):
            self._lose(f"a gap begins at {gap.start}, what came before it ended at {self.expected}")
            return
        if not gap.begun_anew:
            gap = replace(gap, start=self.expected)  # what came of it before was not lost
        self.expected, self._is_over = gap.end, self._is_over or gap.begun_anew
        self._inbox.put_nowait(gap)

    def halt(self, gap: LogGap, why: str) -> None:
        """Rule 2."""
        self.halted, self._gap = why, gap

    @property
    def halts_at(self) -> Range | None:
        """What an operator has to `skip`."""
        return None if self._gap is None else to_skip(self._gap)

    @property
    def new_lineage_at(self) -> int | None:
        """Where its job begins anew, in another lineage, once the gap is skipped; None: it goes on itself."""
        return self._gap.end if self._gap is not None and self._gap.begun_anew else None

    def go_on(self) -> None:
        """An operator skips the gap that it halts before."""
        gap, self.halted, self._gap = self._gap, None, None
        if gap is not None:
            # Of another log nothing is fetched here: who finds the pump to begin `anew` ends it.
            self._resumes_at = -1 if gap.begun_anew else gap.end
            self.skip(gap)

    def wants_fetching(self, base: int) -> bool:
        """It has halted, and is to be fetched again, now that the gap is behind `base`."""
        return 0 <= self._resumes_at <= base

    async def get(self) -> FetchedBatches | LogGap:
        """The next that came."""
        return await self._inbox.get()

    @property
    def held(self) -> list[FetchedBatches]:
        """What is not acknowledged yet."""
        return list(self._held.values())

    @property
    def is_empty(self) -> bool:
        """Nothing is held."""
        return not self._held

    def release(self, fetched: FetchedBatches) -> None:
        """All of it is acknowledged."""
        if self._held.pop(id(fetched), None) is not None:
            fetched.release()
