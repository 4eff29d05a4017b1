"""Agent `dispatch`: hands fetched batches from the channel to their pumps. An event is a batch of
messages."""

from __future__ import annotations

from typing import Any

from app import app


@app.agent(app.dispatch_channel, name="dispatch")
async def dispatch(batches: Any) -> None:
    """Hands each batch to the pump of its job, which delivers and tracks its messages."""
    async for batch in batches:
        app.runtime.jobs.hand_to_pump(batch)
