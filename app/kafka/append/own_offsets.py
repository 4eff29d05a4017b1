"""Batches whose records have other offsets than their broker gave, and what is copied in their place.

See `app.kafka.records.verbatim_copy`, rule 4. Looking takes 0.4 us a record of an uncompressed batch. A
thread looks at large ones, so that the event loop runs meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib

from app.kafka.fetch.deliveries import FetchedBatches
from app.kafka.records.batch import RecordBatch, iter_batches
from app.kafka.records.checksum import crc32c
from app.kafka.records.verbatim_copy import has_own_offsets, may_have_own_offsets, renumbered

RECORDS_AT_ONCE = 4096  # some 2 ms

Mended = dict[int, RecordBatch | None]


async def mended(fetched: FetchedBatches) -> Mended:
    """Of each such batch, by base offset, one with its broker's offsets; None: it has no sound records."""
    found: Mended = {}
    if fetched.damage:
        return found
    looked_at = 0
    for batch in iter_batches(fetched.data):
        header = batch.header
        if not may_have_own_offsets(header):
            continue
        looked_at += header.record_count
        if looked_at <= RECORDS_AT_ONCE:
            _look(batch, found)
        else:
            await asyncio.to_thread(_look, batch, found)
            looked_at = 0
    return found


def _look(batch: RecordBatch, found: Mended) -> None:
    if has_own_offsets(batch):
        at = batch.header.base_offset
        found[at] = None
        with contextlib.suppress(ValueError):
            found[at] = renumbered(batch, crc32c)
