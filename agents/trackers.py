"""Agent `trackers`: the single writer of the tracker table. It writes down what this worker has folded of the
topic (`app.worker.tracker.follower`), for those who begin to follow it, for Spark and for people.

The fold is not made from the table: one that was restored from a changelog in which a deposed writer has
written last would be behind, and nobody could tell (`app.worker.tracker.fold`, rules 2 and 4).
Nothing here raises: an exception would skip the event anyway and stall the agent.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from app import app
from app.controllog import codec
from tables.trackers import trackers

log = structlog.get_logger(__name__)

RECORDS_PER_TURN = 100  # records are written before others get the loop

source = app.raw_topic(app.topics_declared.trackers)


@app.agent(source, name="trackers")
async def write_trackers(stream: Any) -> None:
    """Writes the records that changed, once the event has been folded in; those of later events with them."""
    async for event in stream.events():
        try:
            runtime = await app.started_runtime()
            fold = await runtime.follower.folded(event.message.partition, event.message.offset)
            for count, job in enumerate(list(fold.changed)):
                trackers[job.encode()] = codec.encode(fold.record(job))
                fold.changed.discard(job)
                if count % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                    await asyncio.sleep(0)
        except Exception as error:
            log.exception("tracker records were not written and are written with the next", error=repr(error))
