"""A stand between two brokers of the yard."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.yard import Yard
from tests.replica.stand import Stand, standing


@pytest.fixture
async def stand(yard: Yard) -> AsyncIterator[Stand]:
    """Brokers that all tests share, and must not be hurt."""
    async with standing(yard.bootstrap("east-regional"), yard.bootstrap("east-aggregate")) as made:
        yield made
