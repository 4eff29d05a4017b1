"""Fixtures: replicas between two brokers of the yard."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.dev.yard import Yard
from app.kafka.append import encoder
from tests.replicate.rig import ReplicaRig, replica_rig


@pytest.fixture
async def rig(yard: Yard) -> AsyncIterator[ReplicaRig]:
    """Replicas between brokers that all tests share, so the test must not stop these."""
    async with replica_rig(yard.bootstrap("east-regional"), yard.bootstrap("east-aggregate")) as made:
        yield made


@pytest.fixture
def unjoined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are copied as they were written, for tests of what happens between batches."""
    monkeypatch.setattr(encoder, "SMALL_BYTES", 0)
