"""Agent `dispatch`: gives fetched batches to the workloads' partitions, which deliver their messages."""

from __future__ import annotations

from faust.types import StreamT

from app import app
from app.worker.jobs.deliveries import FetchedItems, hand_over


@app.agent(app.dispatch_channel, name="dispatch")
async def dispatch(events: StreamT[FetchedItems]) -> None:
    """Hands each batch to its job's pump (`app.dispatch.pump.partition`), which delivers its messages."""
    async for items in events:
        hand_over(items, app.runtime.kinds.dispatch.accept)
