"""The reference rule for positions between copies (its k_r, x_r and x), against which
`app.offsets.model.translation` is tested.

For a reader with next offset c in one destination:

- `k = max S` with T <= c of the line into the topic that was read. All of the source below k was read.
- `x = max T` with S <= k of the line into the other topic. No record of the source from k on lies below x.

The position is the least x of all sources. If no x is known, or the lineage differs, it is the log's start,
never its end.

A source spread over several partitions was read up to the least k of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

from app.offsets.model.offset_map import LineSource, OffsetMapLine


def translate(
    next_offsets: Mapping[int, int],
    read: Iterable[LineSource],
    resumed: Iterable[LineSource],
    log_starts: Mapping[int, int],
) -> dict[int, int]:
    """By partition, the next offsets in another copy for a reader of one copy of a topic.

    Args:
        next_offsets: The reader's, by partition of its copy. A partition without one was not read.
        read: All lines into that copy.
        resumed: All lines into the other copy.
        log_starts: The other copy's, for all of its partitions.
    """
    known: dict[Hashable, tuple[int, OffsetMapLine]] = {}
    unknown: set[Hashable] = set()
    for name, line in read:
        source_end = line.read_up_to(next_offsets.get(line.target_partition, -1))
        before = known.get(name)
        if source_end is None or (before and before[1].is_of_another(line)):
            unknown.add(name)
        elif not before or source_end < before[0]:
            known[name] = source_end, line
    found: dict[int, list[int]] = defaultdict(list)
    for name, line in resumed:
        next_offset = None
        if name in known and name not in unknown:
            source_end, other = known[name]
            next_offset = None if other.is_of_another(line) else line.resume_at(source_end)
        found[line.target_partition].append(-1 if next_offset is None else next_offset)
    return {
        partition: max(log_start, min(found.get(partition, [-1])))
        for partition, log_start in log_starts.items()
    }
