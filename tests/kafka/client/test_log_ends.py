"""The log end on real brokers with too few in-sync replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.dev.yard import Yard
from app.kafka.client.cluster import LATEST
from app.kafka.client.log_ends import LogEnd, log_ends
from tests.replicate.pump.test_min_in_sync import in_doubt


@pytest.mark.deep(minutes=0.4)
async def test_log_end_includes_records_above_the_high_watermark(
    killable_yard: Yard, topic_name: str, tmp_path: Path
) -> None:
    async with in_doubt(killable_yard, topic_name, tmp_path) as (rig, _, _):
        away, at = rig.target, (topic_name, 0)
        await away.topic_ids([topic_name])
        assert await away.offsets([at], LATEST) == {at: 50}
        assert await log_ends(away, [at, (topic_name, 7)]) == {at: LogEnd(50, 100, away.leader_epoch(*at))}
