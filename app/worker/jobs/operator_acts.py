"""The common parts of operators' acts on jobs: results, refusals, and the offsets that acts may name.

Ranges are half-open, disjoint and in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.kernel.ranges import Range, union
from app.worker.jobs.pump import Pump

SETTLE_TIMEOUT_S = 3.0  # for answers to abandoned calls, and for copies
SETTLE_POLL_INTERVAL_S = 0.02
MAX_OFFSETS = 10_000  # in one act


class OperationRefused(Exception):
    """The act is not possible in the present state."""


class NotHere(OperationRefused):
    """This worker cannot act now: the job moves, or its lease does not hold."""


class JobActs(Protocol):
    """The worker, as the acts of one kind of job need it (`app.worker.runtime.operators`)."""

    def own_pump(self, job: str) -> Pump:
        """The job's pump. Raises NotHere: this worker may not act on it now."""
        ...

    async def wait_until_lasting(
        self, job: str, action: str, lineage: int, to: int, detail: str, actor: str
    ) -> None:
        """Waits until the new lineage survives this worker's end. Raises NotHere: that is not certain."""
        ...

    async def record(self, subject: str, action: str, detail: str, actor: str) -> None:
        """Writes the act to the control log. Never raises, because the act is done."""
        ...


@dataclass(slots=True)
class EndedOffsets:
    """The offsets that an operator asked to end.

    `ended` ended, or (in a dry run) would. `pending` ones end when their call or copy returns, unless the
    job moves. `refused`: the reason -> offsets that cannot end now.
    """

    ended: tuple[Range, ...] = ()
    pending: tuple[Range, ...] = ()
    refused: dict[str, tuple[Range, ...]] = field(default_factory=dict)

    def describe(self) -> str:
        parts = [f"{count(self.ended)} ended"] + ([f"{count(self.pending)} in flight"] * bool(self.pending))
        return ", ".join(parts + [f"{count(spans)} not: {why}" for why, spans in self.refused.items()])


@dataclass(frozen=True, slots=True)
class PositionMove:
    """A reset of one partition from its commit (None: there is none) to `to`, with a note."""

    job: str
    start: int | None
    to: int
    note: str = ""

    @property
    def skipped(self) -> int:
        return max(0, self.to - self.start) if self.start is not None else 0

    @property
    def again(self) -> int:
        return max(0, self.start - self.to) if self.start is not None else 0

    def describe(self) -> str:
        parts = [f"{self.start if self.start is not None else 'no commit'} -> {self.to}"]
        parts += [f"{self.skipped} skipped"] * bool(self.skipped) + [f"{self.again} again"] * bool(self.again)
        return ", ".join(parts + [self.note] * bool(self.note))


def count(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)


def checked(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The ranges, disjoint and in order. Raises ValueError: they are malformed, or too large for one act."""
    if not ranges or any(not 0 <= start < end for start, end in ranges):
        raise ValueError("ranges: give [from, before) with 0 <= from < before")
    merged = union(ranges)
    if count(merged) > MAX_OFFSETS:
        raise ValueError(f"ranges: {count(merged)} offsets; at most {MAX_OFFSETS} in one act")
    return merged


def offsets_of(ranges: Sequence[Range]) -> Iterable[int]:
    """Every offset of `checked(ranges)`, in order."""
    return (offset for start, end in checked(ranges) for offset in range(start, end))


def runs(offsets: Iterable[int]) -> tuple[Range, ...]:
    return union((offset, offset + 1) for offset in offsets)


def text(ranges: Sequence[Range]) -> str:
    shown = [f"[{start}, {end})" if end - start > 1 else str(start) for start, end in ranges[:5]]
    return " ".join(shown) + (f" and {len(ranges) - 5} more" if len(ranges) > 5 else "")
