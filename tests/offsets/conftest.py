"""Fixtures for tests of offset sync."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.dev.yard import Yard
from tests.offsets.clusters import HERE, THERE, regions
from tests.offsets.group_case import COUNT, GroupCase


@pytest.fixture
async def case(yard: Yard, tmp_path: Path, topic_name: str) -> AsyncIterator[GroupCase]:
    async with regions(yard, tmp_path) as rig:
        for cluster, before in ((HERE, 0), (THERE, 10)):
            await rig.make(cluster, topic_name)
            for partition in (0, 1):
                values = [b"x"] * before + [b"%d" % n for n in range(COUNT)]
                await rig.values(cluster, topic_name, partition, *values)
        yield GroupCase(rig, topic_name, f"g-{uuid.uuid4().hex[:8]}", {})
