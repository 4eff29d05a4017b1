"""An answer that a quota empties is requested again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka.errors import RequestTimedOutError

from app.kafka.client.only_partition import only_partition


def test_only_partition_is_returned() -> None:
    assert only_partition(SimpleNamespace(topics=[("t", [(3, 0, 17, b"data")])])) == [3, 0, 17, b"data"]


def test_answer_emptied_by_a_quota_raises_a_retriable_error() -> None:
    """The fault: a ValueError ended a Spark job for all topics."""
    with pytest.raises(RequestTimedOutError, match="quota delays the answer by 900 ms") as met:
        only_partition(SimpleNamespace(topics=[], throttle_time_ms=900))
    assert met.value.retriable
