"""How far numbers may have come that only grow: terms, epochs, lineages. Pure.

Anybody who may write to a log may write a number there that leaves no room for the next one. So a number in a
log is bounded by its position. An honest one is the former one and one more, and each takes a record: behind
`next_offset` records none is above `highest(next_offset)`, and the next honest one always fits.

Offsets survive compaction, so every reader decides the same, whenever it began. A bound relative to the
former number would not do, because compaction may have removed that one.
"""

from __future__ import annotations

HEADROOM = 1 << 32  # what a log that was restored, at smaller offsets, or an older release may bring with it


def highest(next_offset: int) -> int:
    """The highest number that may stand in the first `next_offset` records of a log."""
    return HEADROOM + next_offset
