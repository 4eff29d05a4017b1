"""Agent `replicate`: gives fetched batches to the replicas that copy them to another cluster."""

from __future__ import annotations

from faust.types import StreamT

from app import app
from app.worker.jobs.deliveries import FetchedItems, hand_over


@app.agent(app.replicate_channel, name="replicate")
async def replicate(events: StreamT[FetchedItems]) -> None:
    """Hands each batch to its job's pump (`app.replicate.pump.partition`), which copies it."""
    async for items in events:
        hand_over(items, app.runtime.kinds.replicate.accept)
