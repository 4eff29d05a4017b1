"""How many records a copy lacks of its source: the number that its job reported last, with the time of the
report.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from app.failover.plan.impact import ImpactAssessor
from tests.web.runtime_fake import (
    FakeRuntime,
    assigned,
    beat,
    copying,
    definition,
    flowing,
    put,
    put_route,
    route,
)

KEY = "billing/orders"
REPORTED_MS = 1_790_000_000_000


async def test_missing_records_have_the_time_of_their_jobs_report() -> None:
    fed = FakeRuntime()
    fed.apply(
        put(definition(mode="active-passive")), put_route(route("mirror", "west", "east")),
        put_route(route("idle", "west", "east")), assigned(copying(0, name="idle"), worker=""),
    )  # fmt: skip
    heartbeat = beat(flowing(copying(0), committed=40, high_watermark=47))
    fed.observe(msgspec.structs.replace(heartbeat, at_ms=REPORTED_MS))
    workload = fed.catalog.workloads.workload(KEY)
    assert workload is not None
    runtime: Any = fed
    found = await ImpactAssessor(runtime, time.monotonic() + 5.0)._unreplicated(workload, 0)
    assert {(one.route, one.records, one.as_of_ms, one.reachable) for one in found} == {
        ("mirror", 7, REPORTED_MS, False), ("idle", None, None, False),
    }  # fmt: skip
