"""Agent `dispatch`: gives fetched batches to the workloads' partitions, which deliver their messages."""

from __future__ import annotations

from faust.types import StreamT

from app import app
from app.kafka.fetch.deliveries import FetchItem


@app.agent(app.dispatch_channel, name="dispatch")
async def dispatch(items: StreamT[FetchItem]) -> None:
    """Hands each batch to its job's pump (`app.dispatch.pump.partition`), which delivers its messages."""
    async for item in items:
        app.runtime.kinds.dispatch.accept(item)
