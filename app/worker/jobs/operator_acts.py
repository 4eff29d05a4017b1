"""What an operator's act came to, and which offsets it may name: pure.

Ranges are half-open, disjoint and in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.kernel.ranges import Range, union

MAX_OFFSETS = 10_000  # ended at once


@dataclass(slots=True)
class EndedOffsets:
    """What became of offsets that were to be ended.

    Attributes:
        ended: those that are, or (of a dry run) would be.
        pending: those whose call or copy is still on its way; they end as decided once it is back,
            unless the job moves before.
        refused: why -> those that cannot be ended now.
    """

    ended: tuple[Range, ...] = ()
    pending: tuple[Range, ...] = ()
    refused: dict[str, tuple[Range, ...]] = field(default_factory=dict)

    def describe(self) -> str:
        """For people."""
        parts = [f"{count(self.ended)} ended"] + ([f"{count(self.pending)} under way"] * bool(self.pending))
        return ", ".join(parts + [f"{count(spans)} not: {why}" for why, spans in self.refused.items()])


@dataclass(frozen=True, slots=True)
class PositionMove:
    """A reset of one partition: from its commit (None: there is none) to `to`, and what that means."""

    job: str
    start: int | None
    to: int
    note: str = ""

    @property
    def skipped(self) -> int:
        """Offsets that are passed over."""
        return max(0, self.to - self.start) if self.start is not None else 0

    @property
    def again(self) -> int:
        """Offsets that are read again."""
        return max(0, self.start - self.to) if self.start is not None else 0

    def describe(self) -> str:
        """For people."""
        parts = [f"{self.start if self.start is not None else 'no commit'} -> {self.to}"]
        parts += [f"{self.skipped} skipped"] * bool(self.skipped) + [f"{self.again} again"] * bool(self.again)
        return ", ".join(parts + [self.note] * bool(self.note))


def count(ranges: Iterable[Range]) -> int:
    """How many offsets."""
    return sum(end - start for start, end in ranges)


def checked(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Ranges that may be ended at once, disjoint and in order. Raises ValueError."""
    if not ranges or any(not 0 <= start < end for start, end in ranges):
        raise ValueError("ranges: give [from, before) with 0 <= from < before")
    merged = union(ranges)
    if count(merged) > MAX_OFFSETS:
        raise ValueError(f"ranges: {count(merged)} offsets; at most {MAX_OFFSETS} at once")
    return merged


def offsets_of(ranges: Sequence[Range]) -> Iterable[int]:
    """Every offset of `checked(ranges)`, in order."""
    return (offset for start, end in checked(ranges) for offset in range(start, end))


def runs(offsets: Iterable[int]) -> tuple[Range, ...]:
    """Offsets as ranges."""
    return union((offset, offset + 1) for offset in offsets)


def text(ranges: Sequence[Range]) -> str:
    """The first few, for people."""
    shown = [f"[{start}, {end})" if end - start > 1 else str(start) for start, end in ranges[:5]]
    return " ".join(shown) + (f" and {len(ranges) - 5} more" if len(ranges) > 5 else "")
