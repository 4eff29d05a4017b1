"""The end of a region's checkpoint topic: barriers of the offset map that its table does not hold yet, in the
store.

    switchyard-west-checkpoints-changelog ─copied─▶ CHECKPOINTS ─┬─▶ `Tables.into`, `Tables.of`
    switchyard-west-checkpoints           ─copied─▶ BARRIERS ────┘

As positions have (`app.offsets.store.tracker_tail`), and for the same reason: a table's writer may be tens of
seconds behind on a busy machine, and for so long nobody would know where the newest copies lie, so that what
was finished in another region came again. This region's own topic is read where it is.

Rules
1. It is read from `MARGIN_MS` before the newest record of the table, or later
   (`app.offsets.store.tracker_tail`, rule 1). Barriers that are missed so cost precision, nothing else.
2. What is told of a line is what its writer will make of it (`app.offsets.model.line_preview`), once somebody
   asks.
3. What is needed of lines, and that their jobs have no owner any more, the table tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import TopicPartition

from app.controllog import codec
from app.kafka.client.unreadable_records import UnreadableRecords
from app.offsets.model.offset_map import BarrierItem
from app.offsets.store.records import ChangelogOrigin, RegionStore


def add_to(
    store: RegionStore, region: str, records: Mapping[TopicPartition, Iterable[Any]], origin: ChangelogOrigin
) -> None:
    """Adds what was read to the store; `origin`: how far that is. Blocking, as the store."""
    items: list[BarrierItem] = []
    for at, read in records.items():
        unreadable = UnreadableRecords(
            "events of a region's checkpoint topic are passed over", region=region, partition=at.partition
        )
        for record in read:
            try:
                event = codec.checkpoint_event(record.value)
            except codec.BadEvent as error:
                unreadable.add(record.offset, error)
            else:
                items += [item for item in event.items if isinstance(item, BarrierItem)]
        unreadable.report()
    store.add(region, items, origin)
