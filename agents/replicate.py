"""Agent `replicate`: fetched batches from the channel to the replicas whose sink is another cluster."""

from __future__ import annotations

from typing import Any

from app import app


@app.agent(app.replicate_channel, name="replicate")
async def replicate(batches: Any) -> None:
    """Hands each batch to the replica of its job, which copies it and keeps where it stands."""
    async for batch in batches:
        app.runtime.jobs.hand_to_pump(batch)
