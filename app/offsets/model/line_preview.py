"""A preview of an offset map line: the state that the table's writer will write once it has caught up. Pure.

    table's copy   a line, with all offset syncs up to some time
    gathered       the line's later offset syncs, read from the checkpoint topic
    with_barriers  the line as the writer will write it

The preview uses the writer's function (`app.offsets.model.offset_map.after`), so it accepts and refuses
the same offset syncs. A missing one costs precision only; a late or repeated one changes nothing. The
gathered offset syncs of a line are bounded, because they only bridge the writer's lag.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from app.offsets.model.offset_map import BarrierItem, OffsetMapLine, after

MAX_ITEMS = 8  # in a line: one for each owner, log and leader epoch within the writer's lag
MAX_BARRIERS = 64  # in an item: about a minute's, at one a second


def gathered(known: Sequence[BarrierItem], item: BarrierItem) -> list[BarrierItem]:
    """The gathered items of a line, with `item`. Items that differ only in their offset syncs become one."""
    found = list(known)
    before: list[BarrierItem] = [found.pop()] if found and _is_alike(found[-1], item) else []
    barriers = [barrier for one in (*before, item) for barrier in one.barriers]
    found.append(msgspec.structs.replace(item, barriers=barriers[-MAX_BARRIERS:]))
    return found[-MAX_ITEMS:]


def _is_alike(one: BarrierItem, other: BarrierItem) -> bool:
    return msgspec.structs.replace(one, barriers=other.barriers) == other


def with_barriers(line: OffsetMapLine | None, items: Iterable[BarrierItem]) -> OffsetMapLine | None:
    """The line with its gathered items; None: the line does not exist."""
    for item in items:
        if item.barriers and (line is None or _is_further(line, item)):
            line = after(line, item) or line
    return line


def _is_further(line: OffsetMapLine, item: BarrierItem) -> bool:
    """Whether the writer applies the item after what it has written."""
    new, known = (item.epoch, item.lineage, item.losses), (line.epoch, line.lineage, line.losses)
    if new != known:
        return new > known
    # Two logs under one owner have no known order, so an item of another log does not count.
    is_same = (item.target_topic, item.target_partition) == (line.target_topic, line.target_partition)
    is_same = is_same and not (line.is_of_another(item) or line.target.is_another(item.target))
    last = line.barriers[-1] if line.barriers else None
    newest = max((one.source_end, one.target_end) for one in item.barriers)  # the last one may be late
    return is_same and (last is None or newest >= (last.source_end, last.target_end))
