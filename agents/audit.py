"""Agent `audit`: gives fetched batches to the audits that count them."""

from __future__ import annotations

from faust.types import StreamT

from app import app
from app.kafka.fetch.deliveries import FetchItem


@app.agent(app.audit_channel, name="audit")
async def audit(items: StreamT[FetchItem]) -> None:
    """Hands each batch to its job's pump (`app.audit.pump.partition`), which counts it."""
    async for item in items:
        app.runtime.kinds.audit.accept(item)
