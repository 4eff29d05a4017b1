"""What a heartbeat says of how old the first record is that is not copied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.kafka.records.batch import CHECKED_FROM
from app.kafka.records.verbatim_copy import DELETE_HORIZON, Bytes
from app.replicate.pump import status
from tests.kafka.records.test_verbatim_copy import as_logged

COPIED_MS = 1_700_000_000_000
ROWS: Any = [(0, 1_600_000_000_000, None, b"a", []), (1, 1_600_000_000_007, None, b"b", [])]
# Format 1: offset, length, checksum, magic, attributes, timestamp; then key and value, whose bytes lie where
# a later format has its timestamps.
OLD = bytes(8) + (40).to_bytes(4) + bytes(4) + b"\1\0" + (1_600_000_000_000).to_bytes(8) + b"\xff" * 30


def with_horizon(batch: Bytes) -> bytes:
    """Its first timestamp is another one then; its records count from there."""
    found = bytearray(batch)
    found[CHECKED_FROM + 1] |= DELETE_HORIZON
    found[status.FIRST_TIMESTAMP] = (9_000_000_000_000).to_bytes(8)
    return bytes(found)


@pytest.mark.parametrize("is_under_way", [True, False])
@pytest.mark.parametrize(
    ("data", "oldest_ms"),
    [
        (as_logged(5, ROWS), 1_600_000_000_000),
        (with_horizon(as_logged(5, ROWS)), 1_600_000_000_007),
        (OLD, COPIED_MS),
        (b"", COPIED_MS),
    ],
)
def test_it_is_as_old_as_its_batch_says_if_that_says_anything(
    data: bytes, oldest_ms: int, is_under_way: bool
) -> None:
    batch = SimpleNamespace(data=data)
    pump: Any = SimpleNamespace(
        ledger=SimpleNamespace(head=batch if is_under_way else None), intake=SimpleNamespace(held=[batch]),
        halted=None, base=5, high_watermark=7, copied_ms=COPIED_MS,
    )  # fmt: skip
    assert status._oldest_ms(pump) == oldest_ms
