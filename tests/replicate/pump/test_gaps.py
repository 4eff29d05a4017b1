"""A route that continues at gaps reports each of them."""

from __future__ import annotations

from typing import Any

import pytest

from app.dev.yard import Yard
from app.kafka.fetch.deliveries import FetchKey, LogGap
from tests.kafka.conftest import write
from tests.worker.runtime.replica_manager import HOME, replica_manager_rig


@pytest.mark.parametrize(
    ("gap", "kind", "message_part", "lineage_and_base"),
    [
        ({"start": 3, "end": 9}, "offsets-lost", "offsets [3, 9) are gone and were not copied", (0, 9)),
        (
            {"start": 3, "end": 2, "begun_anew": True, "truncated_in": 4},
            "log-truncated",
            "the source was truncated; [2, 3) was copied before",
            (1, 3),  # the present records were copied again
        ),
        (
            {"start": 3, "end": 0, "begun_anew": True},
            "log-begun-anew",
            "the source has another log from offset 3 on",
            (1, 3),
        ),
    ],
)
async def test_a_route_that_continues_at_gaps_reports_the_lost_offsets_and_where_it_continues(
    yard: Yard,
    topic_name: str,
    gap: dict[str, Any],
    kind: str,
    message_part: str,
    lineage_and_base: tuple[int, int],
) -> None:
    async with replica_manager_rig(yard, topic_name) as manager:
        manager.put(onGap="continue")
        manager.assign()
        await write(yard.bootstrap(HOME), topic_name, [b"a", b"b", b"c"])
        pump = await manager.copied(3)
        manager.jobs.kinds.replicate.accept(
            LogGap(FetchKey(manager.job, pump.epoch), topic_name, 0, reason="by hand", **gap)
        )
        await manager.until(
            lambda: manager.pump is not None and (manager.pump.lineage, manager.pump.base) == lineage_and_base
        )
        ((reported, message),) = manager.incidents
        assert reported == kind
        assert message_part in message
        assert f"{topic_name}/0" in message
        assert f"copying continues at {gap['end']}" in message
