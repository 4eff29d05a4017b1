"""A slow receiver at a steady rate, for long: the backlog must stay as large as what the receiver holds."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from app.dev.demo.stage import DemoStage, Process
from app.dev.demo.traffic import create_topic
from tests.bench.run import Progress
from tests.bench.unary import receiver
from tests.bench.unary.ours import CLUSTER, Run, between
from tests.bench.unary.topic import Feed

DELAY_MS, PER_SECOND, IN_FLIGHT, VALUE_BYTES = 1_000, 1_000, 2_000, 200
WARM_UP_S = 5.0
POLL_S = 1.0
REPORT_POLLS = 30


def measure(stage: DemoStage, worker: Process, seconds: float, progress: Progress) -> list[dict[str, Any]]:
    """The rows. Raises StageError: it does not start or end."""
    topic, bootstrap = "unary-long", stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic, 1))
    go = receiver.started(stage, DELAY_MS)
    run = Run(stage, worker, topic, "unary-long", IN_FLIGHT, go.address)
    feed = Feed(bootstrap, topic, PER_SECOND, VALUE_BYTES)
    try:
        run.wait_started()
        time.sleep(WARM_UP_S)
        sent, begin = feed.sent, run.mark()
        end, backlogs = begin, [sent - begin.messages]
        while end.at_s - begin.at_s < seconds:
            time.sleep(POLL_S)
            now_sent, end = feed.sent, run.mark()
            backlogs.append(now_sent - end.messages)
            if len(backlogs) % REPORT_POLLS == 0:
                progress(
                    f"{end.at_s - begin.at_s:.0f} s: {end.messages:,} acknowledged, backlog {backlogs[-1]:,}"
                )
    finally:
        feed.stop()
        run.end()
        go.terminate()
    found = between(begin, end)
    name = f"dispatch-unary, {DELAY_MS:,} ms receiver, {PER_SECOND:,} messages/s for {found.seconds:.0f} s"
    least = PER_SECOND * DELAY_MS // 1_000
    return [
        {
            "bench": name, "value": round(found.per_second, 1), "unit": "messages/s", "peer": "produced",
            "peer_value": round((now_sent - sent) / found.seconds, 1), "cpu_us": round(found.cpu_us, 1),
            "in_flight": IN_FLIGHT,
        },
        {
            "bench": f"{name}, backlog at its end", "value": backlogs[-1], "unit": "messages",
            "peer": "in the receiver at this rate", "peer_value": least, "largest": max(backlogs),
        },
    ]  # fmt: skip
