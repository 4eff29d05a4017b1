"""The age of the first record that is not copied, in heartbeats."""

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


def with_horizon(batch: Bytes) -> bytes:
    """A batch whose first-timestamp field holds a delete horizon; records' timestamps count from there."""
    found = bytearray(batch)
    found[CHECKED_FROM + 1] |= DELETE_HORIZON
    found[status.FIRST_TIMESTAMP] = (9_000_000_000_000).to_bytes(8)
    return bytes(found)


def pump_with(head: Any, held: Any) -> Any:
    """A pump at offset 5 of 7, with a batch in flight or a waiting one."""
    return SimpleNamespace(
        ledger=SimpleNamespace(head=head), intake=SimpleNamespace(held=[held]),
        halted=None, base=5, high_watermark=7, copied_ms=COPIED_MS,
    )  # fmt: skip


@pytest.mark.parametrize("is_under_way", [True, False])
@pytest.mark.parametrize(
    ("data", "oldest_ms"),
    [
        (as_logged(5, ROWS), 1_600_000_000_000),
        (with_horizon(as_logged(5, ROWS)), 1_600_000_000_007),
        (b"", COPIED_MS),
    ],
)
def test_the_first_record_is_as_old_as_its_batch_header_says(
    data: bytes, oldest_ms: int, is_under_way: bool
) -> None:
    batch = SimpleNamespace(data=data, damage="")
    assert status._oldest_ms(pump_with(batch if is_under_way else None, batch)) == oldest_ms


def test_the_time_in_a_batch_that_cannot_be_read_is_not_believed() -> None:
    batch = SimpleNamespace(data=as_logged(5, ROWS), damage="its checksum does not match")
    assert status._oldest_ms(pump_with(None, batch)) == COPIED_MS
