"""A stand between two brokers of the yard."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.dev.yard import Yard
from app.kafka.append import encoder
from tests.replicate.rig import ReplicaRig, replica_rig


@pytest.fixture
async def stand(yard: Yard) -> AsyncIterator[ReplicaRig]:
    """Brokers that all tests share, and must not be hurt."""
    async with replica_rig(yard.bootstrap("east-regional"), yard.bootstrap("east-aggregate")) as made:
        yield made


@pytest.fixture
def unjoined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches travel as they were written, however small: for tests of what happens between them."""
    monkeypatch.setattr(encoder, "SMALL_BYTES", 0)
