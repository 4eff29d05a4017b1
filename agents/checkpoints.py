"""Agent `checkpoints`: the single writer of the offset map. It folds events
(`app.offsets.model.offset_map`), so repeated events change nothing.

Nothing here raises, because an exception would skip the event and stall the agent.
"""

from __future__ import annotations

from typing import Any

import structlog

from app import app
from app.controllog import codec
from app.kafka.client.unreadable_records import UnreadableRecords
from app.offsets.model.offset_map import BarrierItem, EndedItem, NeedItem, after, at_end, with_pins
from tables.checkpoints import checkpoints

log = structlog.get_logger(__name__)

unreadable = UnreadableRecords("records of the checkpoint topic are no events")

source = app.raw_topic(app.topics_declared.checkpoints)


@app.agent(source, name="checkpoints")
async def write_checkpoints(stream: Any) -> None:
    """Adds offset syncs, pins and known ends to their lines."""
    async for event in stream.events():
        try:
            items = codec.checkpoint_event(event.value).items
        except codec.BadEvent as error:
            unreadable.add_for_later(event.message.offset, error)
            continue
        for item in items:
            try:
                _write(item)
            except Exception as error:
                log.exception(
                    "a line of the offset map was not written; its next event writes it",
                    line=item.key,
                    error=repr(error),
                )


def _write(item: BarrierItem | NeedItem | EndedItem) -> None:
    key = item.key.encode()
    stored, line = checkpoints.get(key), None
    if stored is not None:
        try:
            line = codec.checkpoint_line(stored)
        except codec.BadEvent as error:
            log.error(
                "a line of the offset map cannot be read; the agent starts it again",
                line=item.key,
                error=str(error),
            )
    match item:
        case BarrierItem():
            new = after(line, item)
        case NeedItem():
            new = with_pins(line, item)
        case EndedItem():
            new = at_end(line, item)
    if new is not None:
        checkpoints[key] = codec.encode(new)
