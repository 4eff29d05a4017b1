"""The three libraries as a service installs them: out of wheels, alone, in each Python that can be had."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

import app
from app.dev.demo.traffic import read_all
from app.dispatch.push.metadata import MetadataTemplate
from app.dispatch.push.unary import UnaryTarget
from switchyard.audit.outputs import read_lines
from tests.dispatch.push.grpc_servers import METHOD, CountingCaller
from tests.dispatch.push.stream_servers import RecordingSender, StreamRecord
from tests.distributions.conftest import LIBRARIES, ROOT, SCRIPTS, Install
from tests.kafka.conftest import connected, create

MOST_MB = {"receiver": 40, "producer": 40, "audit": 100}  # numpy alone takes 60 MB with its BLAS
MESSAGES = 500


def counted(lines: bytes) -> int:
    """Records of all reports, given as lines of JSON."""
    return sum(one.totals.count for report in read_lines(lines) for one in report.windows)


each_python = pytest.mark.parametrize("minor", [10, 11, 12, 13, 14], ids=lambda minor: f"3.{minor}")


def test_all_distributions_have_one_version() -> None:
    for project in (ROOT, *(ROOT / "app" / "sdk" / name for name in LIBRARIES)):
        text = (project / "pyproject.toml").read_text()
        assert f'\nversion = "{app.__version__}"\n' in text, project
        assert all(f"switchyard-{name}=={app.__version__}" in text for name in LIBRARIES if project == ROOT)


@pytest.mark.deep(minutes=0.2)
@each_python
async def test_a_receiver_handles_every_message_of_both_contracts(
    install: Install, tmp_path: Path, minor: int
) -> None:
    environment = install(minor, "switchyard-receiver")
    assert environment.size_mb() < MOST_MB["receiver"]
    process = await asyncio.create_subprocess_exec(
        environment.python, "-I", str(SCRIPTS / "receiver.py"), env=environment.environment,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    sender = RecordingSender(port)
    call = CountingCaller(UnaryTarget(f"127.0.0.1:{port}", METHOD, channels=1))
    try:
        sender.send([StreamRecord(number, b"%d" % number) for number in range(MESSAGES)])
        await sender.until(lambda: len(sender.told) == MESSAGES)
        for number in range(MESSAGES, MESSAGES + 10):
            metadata = MetadataTemplate("orders", "billing", 3).build(number, None, [], 0, 1, 2)
            assert (await call(b"%d" % number, metadata)).code == 0
        assert (await call(b"later", metadata)).action == "Retry"
    finally:
        await sender.target.close()
        await call.target.close()
        process.terminate()
    handled = (await process.stdout.read()).split()
    assert await process.wait() == 0
    assert Counter(handled) == Counter(b"%d" % number for number in range(MESSAGES + 10)) + Counter(
        [b"later"]
    )
    assert set(sender.told.values()) == {1}


@pytest.mark.deep(minutes=0.2)
@each_python
async def test_a_producer_delivers_every_message(
    install: Install, minor: int, bootstrap: str, topic_name: str
) -> None:
    environment = install(minor, "switchyard-producer")
    assert environment.size_mb() < MOST_MB["producer"]
    async with connected(bootstrap) as client:
        await create(client, topic_name, 2)
    output = await asyncio.to_thread(
        environment.run, "python", "-I", SCRIPTS / "producer.py", bootstrap, topic_name, MESSAGES
    )
    assert json.loads(output) == {"east": MESSAGES}


@pytest.mark.deep(minutes=0.2)
@each_python
def test_an_audit_counts_every_message(install: Install, tmp_path: Path, minor: int) -> None:
    environment = install(minor, "switchyard-audit")
    assert environment.size_mb() < MOST_MB["audit"]
    reports = tmp_path / "reports"
    environment.run("python", "-I", SCRIPTS / "audit.py", tmp_path / "log", reports, MESSAGES)
    assert counted(reports.read_bytes()) == MESSAGES


@pytest.mark.deep(minutes=0.2)
@each_python
async def test_an_audit_reports_into_kafka(
    install: Install, minor: int, bootstrap: str, topic_name: str
) -> None:
    environment = install(minor, "switchyard-audit[kafka]")
    async with connected(bootstrap) as client:
        for topic in (topic_name, f"{topic_name}-reports"):
            await create(client, topic, 1)
    await asyncio.to_thread(
        environment.run, "python", "-I", SCRIPTS / "kafka_audit.py", bootstrap, topic_name, MESSAGES
    )
    reports = [record.value for record in await read_all(bootstrap, f"{topic_name}-reports")]
    assert counted(b"\n".join(reports)) == MESSAGES == len(await read_all(bootstrap, topic_name))
