"""A yard's brokers are killed, stopped, paused and started by name; all of them end with their user."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from app.dev.yard import Yard, YardError
from app.dev.yard.errors import UnknownClusterError
from app.dev.yard.jars import JarSet
from app.dev.yard.probe import answers
from app.dev.yard.processes import running

ENOUGH_S = 60.0
USER = """
import os, sys, time
from app.dev.yard import Yard
yard = Yard(regions=1)
print(yard.home, flush=True)
yard.up()
if "fork" in sys.argv and os.fork() == 0:  # now it holds the pipe to the warden open
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


async def create_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    finally:
        await admin.close()


async def topics(bootstrap: str) -> set[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        return set(await admin.list_topics())
    finally:
        await admin.close()


def test_a_broker_starts_with_the_classes_that_a_former_one_has_left(yard: Yard) -> None:
    process = psutil.Process(yard.clusters[0].pid)
    mapped = {Path(one.path) for one in process.memory_maps()}
    assert mapped & set(JarSet.load().folder.glob("classes-*.jsa"))


@pytest.mark.deep(minutes=0.3)
async def test_a_killed_broker_comes_back_on_its_port_with_its_data(
    killable_yard: Yard, topic_name: str
) -> None:
    name = "east-regional"
    bootstrap = killable_yard.bootstrap(name)
    await create_topic(bootstrap, topic_name)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic_name, b"kept")

    killable_yard.kill(name)
    assert not answers(bootstrap)
    assert [info.pid for info in killable_yard.clusters if info.cluster == name] == [None]

    assert killable_yard.start(name).bootstrap == bootstrap
    async with AIOKafkaConsumer(
        topic_name, bootstrap_servers=bootstrap, auto_offset_reset="earliest", metadata_max_age_ms=1_000
    ) as consumer:
        record = await consumer.getone()
    assert record.value == b"kept"


@pytest.mark.deep(minutes=0.2)
def test_a_stopped_broker_is_gone_in_order_and_starts_again(killable_yard: Yard) -> None:
    before = {info.cluster: info for info in killable_yard.clusters}["east-aggregate"]
    killable_yard.stop("east-aggregate")
    assert "east-aggregate" not in running(killable_yard.home)
    assert not killable_yard.missing()
    after = killable_yard.start("east-aggregate")
    assert after.bootstrap == before.bootstrap
    assert after.pid != before.pid


def test_a_paused_broker_keeps_its_process_and_answers_again_when_resumed(killable_yard: Yard) -> None:
    bootstrap = killable_yard.bootstrap("east-aggregate")
    pid = running(killable_yard.home)["east-aggregate"].pid
    killable_yard.pause("east-aggregate")
    assert not answers(bootstrap, timeout_s=0.3)
    killable_yard.resume("east-aggregate")
    deadline = time.monotonic() + ENOUGH_S
    while not answers(bootstrap):  # it was paused, and the machine may be busy
        assert time.monotonic() < deadline
    assert running(killable_yard.home)["east-aggregate"].pid == pid


@pytest.mark.deep(minutes=0.2)
def test_a_broker_that_does_not_start_shows_the_end_of_its_log(killable_yard: Yard) -> None:
    name = "east-aggregate"
    (info,) = (info for info in killable_yard.clusters if info.cluster == name)
    meta = info.data_dir / "meta.properties"
    good = meta.read_text()
    killable_yard.stop(name)
    meta.write_text(good.replace("node.id=1", "node.id=2"))
    try:
        with pytest.raises(YardError, match=r"(?s)east-aggregate did not start.*broker\.log:.*node"):
            killable_yard.start(name)
        assert name not in running(killable_yard.home)
    finally:
        meta.write_text(good)


def test_an_unknown_cluster_is_refused_with_the_known_names(yard: Yard) -> None:
    with pytest.raises(
        UnknownClusterError, match=r"no cluster 'north-regional'.*east-regional, east-aggregate"
    ):
        yard.kill("north-regional")


@pytest.mark.deep(minutes=0.2)
async def test_four_clusters_share_neither_ports_nor_topics_nor_folders(yard2: Yard, topic_name: str) -> None:
    infos = yard2.clusters
    assert [info.cluster for info in infos] == [
        "east-regional",
        "east-aggregate",
        "west-regional",
        "west-aggregate",
    ]
    assert len({info.bootstrap for info in infos}) == len({info.data_dir for info in infos}) == 4
    await create_topic(infos[0].bootstrap, topic_name)
    async with asyncio.timeout(120):
        while topic_name not in await topics(infos[0].bootstrap):  # noqa: ASYNC110 - a broker hears late of it
            await asyncio.sleep(0.05)
    assert [topic_name in await topics(info.bootstrap) for info in infos] == [True, False, False, False]


def test_brokers_listen_on_loopback_only(yard: Yard) -> None:
    for process in running(yard.home).values():
        listening = [c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_kafkas_own_tools_run_against_the_yard(yard: Yard) -> None:
    command = yard.tool("org.apache.kafka.tools.TopicCommand", "--list")
    done = subprocess.run(
        [*command, "--bootstrap-server", yard.bootstrap("east-regional")],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.deep(minutes=0.1)
@pytest.mark.parametrize("moment", ["while brokers start", "once they run"])
def test_no_broker_outlives_a_user_killed_with_9(cached: JarSet, moment: str) -> None:
    forks = ["fork"] if moment == "once they run" else []
    with subprocess.Popen([sys.executable, "-c", USER, *forks], stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        home = Path(user.stdout.readline().strip())
        children = [int(user.stdout.readline())] if forks else []
        deadline = time.monotonic() + ENOUGH_S
        while not running(home) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert running(home)
        user.kill()
        deadline = time.monotonic() + ENOUGH_S
        while (running(home) or home.exists()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert not running(home)
    assert not home.exists()
