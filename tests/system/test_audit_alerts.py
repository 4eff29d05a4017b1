"""Alerts of real workers on a loss between two clusters, although the leader is killed.

A webhook and Alertmanager get one notice of the loss, and one of its end once the records have arrived.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from click.testing import CliRunner

from app.cli.main import switchyard
from app.dev.demo.stage import DemoStage, Process, http, wait_until
from app.dev.demo.traffic import create_topic
from app.kernel.clock import iso
from tests.alerts.api.test_rest import receiving
from tests.alerts.delivery.receivers import WebhookServer, definition
from tests.kafka.conftest import producing
from tests.system.fleet import known_workers, start_workers
from tests.system.test_audit import AWAY, ENOUGH_S, HOME, PARTITIONS, WIDTH_MS, Traffic, plan

pytestmark = pytest.mark.system


def is_leader(worker: Process, seen_by: Process) -> bool:
    """Whether another worker lists this one as the leader."""
    return any(item["leader"] and item["url"] == worker.url for item in known_workers(seen_by))


def test_a_loss_and_its_end_are_alerted_once_each_although_the_leader_is_killed(
    stage: DemoStage, topic_name: str
) -> None:
    home, away = stage.yard.bootstrap(HOME), stage.yard.bootstrap(AWAY)
    for bootstrap in (home, away):
        asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = start_workers(stage)
    with receiving() as hook, receiving() as manager, Traffic([home, away], topic_name) as traffic:
        channels = {"webhook": {"url": hook.url}}, {"alertmanager": {"url": manager.url}}
        alert = definition(*channels, topics=[topic_name])
        stage.deploy(workers[0], plan("all", topic_name, clusters=["regional", "aggregate"]))
        stage.deploy(workers[0], alert.to_wire())
        wait_until(lambda: traffic.sent.total() > 500, ENOUGH_S, workers[0].tail)
        at_ms = time.time_ns() // 1_000_000

        async def write(bootstrap: str) -> None:
            async with producing(bootstrap) as producer:
                for _ in range(3):
                    await producer.send_and_wait(topic_name, b"lost", partition=0, timestamp_ms=at_ms)

        asyncio.run(write(home))
        wait_until(lambda: hook.taken and manager.taken, ENOUGH_S, workers[0].tail, 0.2)
        first = hook.bodies[0]
        (window,) = first["windows"]
        assert (first["status"], first["topic"], window["start_ms"], window["missing"]) == (
            "firing", topic_name, at_ms - at_ms % WIDTH_MS, 3,
        )  # fmt: skip
        wait_until(partial(_is_written, workers[0]), ENOUGH_S, workers[0].tail, 0.2)
        listing = CliRunner().invoke(switchyard, ["alert", "list", "--url", workers[1].url])
        assert "firing" in listing.output, listing.output

        leader = next(worker for worker in workers if is_leader(worker, workers[0]))
        workers.remove(leader)
        leader.kill()
        wait_until(lambda: is_leader(workers[0], workers[0]), ENOUGH_S, workers[0].tail)
        asyncio.run(write(away))  # the lost records arrive late
        wait_until(partial(_is_over, hook), ENOUGH_S, lambda: f"{hook.bodies}\n{workers[0].tail()}", 0.2)
        assert {body["id"] for body in hook.bodies} == {f"{first['alert']}-1", f"{first['alert']}-2"}
        assert len(hook.bodies) == 2, "a notice in the control log is not sent again"
        wait_until(partial(_has_ended, manager), ENOUGH_S, workers[0].tail, 0.2)
        assert len({str(alert["labels"]) for (alert,) in manager.bodies}) == 1, "Alertmanager sees one alert"


def _is_written(worker: Process) -> bool:
    """Whether the control log has the acknowledgement of every channel."""
    (alert,) = http("GET", f"{worker.url}/api/v1/alerts")[1]["items"]
    return not any(channel["waits"] for channel in alert["channels"])


def _is_over(hook: WebhookServer) -> bool:
    return any(body["status"] == "resolved" for body in hook.bodies)


def _has_ended(manager: WebhookServer) -> bool:
    """Whether the newest request to Alertmanager says that the alert ended."""
    ((newest,),) = manager.bodies[-1:]
    return bool(newest["endsAt"] < iso(time.time_ns() // 1_000_000))
