"""The checksum is Kafka's, for any kind of buffer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.checksum import crc32c
from app.kafka.records.verbatim_copy import Bytes


def test_checksum_matches_the_values_of_the_rfc() -> None:
    """RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0


@pytest.mark.parametrize("kept_as", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
@given(data=st.binary(max_size=4_096), start=st.integers(0, 64))
def test_checksum_equals_that_of_aiokafka(kept_as: Callable[[bytes], Bytes], data: bytes, start: int) -> None:
    assert crc32c(kept_as(data)[start:]) == calc_crc32c(data[start:])
