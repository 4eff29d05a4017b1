"""A workload with a large backlog: new messages are delivered at once, the backlog beside them, across a
drain and a kill -9.
"""

from __future__ import annotations

import asyncio

import pytest

from app.dev.demo.report import count
from app.dev.demo.stage import DemoStage, http, wait_until
from app.dev.demo.traffic import messages, produce
from tests.system.fleet import id_of, start_workers
from tests.system.test_delivery import GROUP, SETTLE_S, DeliveryScenario, owners

pytestmark = pytest.mark.system

BACKLOG, FRESH = 8_000, 200
RATE, FAST_RATE = 50, 4_000  # of the backlog, in messages a second: during the checks, and afterwards


@pytest.mark.deep(minutes=0.5)
def test_new_messages_arrive_before_the_backlog_and_a_drain_neither_loses_nor_repeats_any(
    stage: DemoStage, topic_name: str
) -> None:
    scenario = DeliveryScenario(stage, topic_name, BACKLOG)
    scenario.produce()
    stage.settings["worker"] |= {"capacity": {"cpu": 16}}  # nothing moves for want of room
    first, second = start_workers(stage)
    stage.deploy(first, scenario.definition(catchUp={"lag": 500, "rate": RATE}))

    def states() -> list[str]:
        _, body = http("GET", f"{first.url}/api/v1/workloads/{GROUP}/{topic_name}")
        return [part["state"] for part in body["partitions"] if part["topic"] == topic_name]

    def drain(draining: bool) -> None:
        body = {"draining": draining, "execute": True}
        status, answer = http("POST", f"{first.url}/api/v1/workers/{id_of(first)}/drain", body)
        assert status == 200, answer

    # Messages produced before a split belong to the backlog, and a job that moves is split again.
    wait_until(lambda: states() == ["catching-up"] * 4, SETTLE_S, lambda: str(states()))
    drain(True)
    wait_until(
        lambda: owners(first).keys() == {id_of(second)} and states() == ["catching-up"] * 4,
        SETTLE_S,
        lambda: f"{owners(first)} {states()}",
    )
    drain(False)

    fresh = list(messages(FRESH, prefix="fresh"))
    asyncio.run(produce(scenario.bootstrap, topic_name, fresh))
    wanted = {message.id for message in fresh}
    wait_until(lambda: wanted <= {d["id"] for d in stage.deliveries()}, SETTLE_S, first.tail)
    assert len({d["id"] for d in stage.deliveries()} - wanted) < BACKLOG
    assert any(committed is None or committed < end for committed, end in scenario.committed().values())

    scenario.sent += fresh
    handed_over = count(scenario.sent, stage.deliveries(), scenario.dead())
    assert (handed_over.duplicates, handed_over.unexpected) == (0, ()), "nobody was killed so far"

    second.kill()
    stage.deploy(first, scenario.definition(catchUp={"lag": 500, "rate": FAST_RATE}))
    report = scenario.settle()
    assert report.lost == ()
    assert report.duplicates <= 4 * (100 + RATE)
    scenario.wait_committed()
