"""Agent `replicate`: gives fetched batches to the replicas that copy them to another cluster."""

from __future__ import annotations

from faust.types import StreamT

from app import app
from app.kafka.fetch.deliveries import FetchItem


@app.agent(app.replicate_channel, name="replicate")
async def replicate(items: StreamT[FetchItem]) -> None:
    """Hands each batch to its job's pump (`app.replicate.pump.partition`), which copies it."""
    async for item in items:
        app.runtime.kinds.replicate.accept(item)
