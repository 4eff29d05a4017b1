"""Agent `audit`: gives fetched batches to the audits that count them."""

from __future__ import annotations

from faust.types import StreamT

from app import app
from app.worker.jobs.deliveries import FetchedItems, hand_over


@app.agent(app.audit_channel, name="audit")
async def audit(events: StreamT[FetchedItems]) -> None:
    """Hands each batch to its job's pump (`app.audit.pump.partition`), which counts it."""
    async for items in events:
        hand_over(items, app.runtime.kinds.audit.accept)
