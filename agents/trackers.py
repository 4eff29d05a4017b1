"""Agent `trackers`: the single writer of the tracker table. It writes the rows that this worker folded
from the tracker topic (`app.worker.tracker.follower`), for new followers, for Spark and for people.

The fold does not start from this table. A table restored from a changelog with a deposed writer's late row
would be behind, and no reader could see that (`app.worker.tracker.fold`, rules 2 and 4).

Nothing here raises, because an exception would skip the event and stall the agent.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from app import app
from app.controllog import codec
from tables.trackers import trackers

log = structlog.get_logger(__name__)

RECORDS_PER_TURN = 100  # rows that are written before other tasks run

source = app.raw_topic(app.topics_declared.trackers)


@app.agent(source, name="trackers")
async def write_trackers(stream: Any) -> None:
    """Writes the rows that changed, once the event is folded, with those of later events."""
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
            log.exception("tracker rows were not written; the next event writes them", error=repr(error))
