"""The tail of a region's checkpoint topic in the store: offset syncs that the region's table may lack.

    switchyard-west-checkpoints-changelog ─copied─▶ CHECKPOINTS ─┬─▶ `RegionTables.lines_into`, `lines_from`
    switchyard-west-checkpoints           ─copied─▶ BARRIERS ────┘

A table's writer may be tens of seconds late on a busy machine. Without the tail, the newest copies would
have no known source, and records finished in another region would be delivered again. Positions have a
tail for the same reason (`app.offsets.store.tracker_tail`). This region's own topic is read in place.

Rules
1. The tail begins `MARGIN_MS` before the table's newest record, or later
   (`app.offsets.store.tracker_tail`, rule 1). A missed offset sync costs precision only.
2. A query merges the tail into the line as the table's writer will (`app.offsets.model.line_preview`).
3. Pinned offsets and ends of lines come from the table only.
"""

from __future__ import annotations

from app.controllog import codec
from app.kafka.client.unreadable_records import UnreadableRecords
from app.offsets.model.offset_map import BarrierItem
from app.offsets.store.records import ChangelogOrigin, ReadRecords, RegionStore


def add_tail(
    store: RegionStore,
    region: str,
    records: ReadRecords,
    origin: ChangelogOrigin,
) -> None:
    """Adds events to the store; `origin`: the next offsets behind them. Blocking."""
    items: list[BarrierItem] = []
    for at, read in records.items():
        unreadable = UnreadableRecords(
            "unreadable events of a checkpoint topic are skipped", region=region, partition=at.partition
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
