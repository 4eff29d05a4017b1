"""What a line of the offset map will hold, once its table's writer has come as far. Pure.

    table's copy   a line, with all barriers up to some time
    end            barriers of the checkpoint topic since then, by line: `gathered`
    both           `with_barriers`: the line as the writer will write it

Nothing here is concluded that the writer will not conclude: it adds the same barriers by the same rules
(`app.offsets.model.offset_map.after`), and those that it refuses are refused here. Barriers that never came
here cost precision, as all do that are lost. What was read late or twice changes nothing.

What is gathered of a line is bounded: it bridges the time by which a writer is behind, no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from app.offsets.model.offset_map import BarrierItem, OffsetMapLine, after

MAX_ITEMS = 8  # of a line: owners, logs and leader epochs meanwhile
MAX_BARRIERS = 64  # of each: a minute's, told every second


def gathered(known: Sequence[BarrierItem], item: BarrierItem) -> list[BarrierItem]:
    """What was gathered of a line, with `item`: those that say all the same but barriers as one."""
    found = list(known)
    before: list[BarrierItem] = [found.pop()] if found and _is_alike(found[-1], item) else []
    barriers = [barrier for one in (*before, item) for barrier in one.barriers]
    found.append(msgspec.structs.replace(item, barriers=barriers[-MAX_BARRIERS:]))
    return found[-MAX_ITEMS:]


def _is_alike(one: BarrierItem, other: BarrierItem) -> bool:
    return msgspec.structs.replace(one, barriers=other.barriers) == other


def with_barriers(line: OffsetMapLine | None, items: Iterable[BarrierItem]) -> OffsetMapLine | None:
    """The line with what was gathered of it; None: there is nothing of it."""
    for item in items:
        if item.barriers and (line is None or _is_further(line, item)):
            line = after(line, item) or line
    return line


def _is_further(line: OffsetMapLine, item: BarrierItem) -> bool:
    """Whether the writer comes to it after what it has written. Of two logs under one owner nobody can tell
    which came first."""
    told, known = (item.epoch, item.lineage, item.losses), (line.epoch, line.lineage, line.losses)
    if told != known:
        return told > known
    is_same = (item.target_topic, item.target_partition) == (line.target_topic, line.target_partition)
    is_same = is_same and not (line.is_of_another(item) or line.target.is_another(item.target))
    last = line.barriers[-1] if line.barriers else None
    newest = max((one.source_end, one.target_end) for one in item.barriers)  # the last one may have come late
    return is_same and (last is None or newest >= (last.source_end, last.target_end))
