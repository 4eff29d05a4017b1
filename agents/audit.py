"""Agent `audit`: hands fetched batches from the channel to the pumps that count them."""

from __future__ import annotations

from typing import Any

from app import app


@app.agent(app.audit_channel, name="audit")
async def audit(batches: Any) -> None:
    """Hands each batch to the pump of its job, which counts it."""
    async for batch in batches:
        app.runtime.jobs.hand_to_pump(batch)
