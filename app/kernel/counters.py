"""A bound for numbers that only grow: terms, epochs, lineages.

Any client that may write to a log could write the highest possible number and leave no room for the next one.
So a number is bounded by its position in the log. An honest writer adds one to the last number, in a record
of its own. So no honest number within the first `next_offset` records exceeds `highest(next_offset)`.

Offsets survive compaction, so every reader decides alike, wherever it begins to read. A bound relative to the
number before would not do: compaction may have removed the record that held it.
"""

from __future__ import annotations

HEADROOM = 1 << 32  # for logs restored at smaller offsets, and for numbers of older releases


def highest(next_offset: int) -> int:
    """The highest number that the first `next_offset` records of a log may hold."""
    return HEADROOM + next_offset
