"""Agent `replicate`: hands fetched batches from the channel to the replicas that copy them to another
cluster."""

from __future__ import annotations

from typing import Any

from app import app


@app.agent(app.replicate_channel, name="replicate")
async def replicate(batches: Any) -> None:
    """Hands each batch to the replica of its job, which copies it and saves its progress."""
    async for batch in batches:
        app.runtime.jobs.hand_to_pump(batch)
