"""The three libraries as a service installs them: alone, from wheels, in each Python that is available."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

import app
from app.dev.demo.traffic import read_all
from app.dispatch.push.metadata import MetadataTemplate
from switchyard.audit.outputs import read_lines
from tests.dispatch.push.grpc_servers import ENOUGH_S, METHOD, CountingCaller, metadata_of, unary_target
from tests.dispatch.push.stream_servers import RecordingSender, StreamRecord
from tests.distributions.conftest import LIBRARIES, ROOT, SCRIPTS, Install
from tests.kafka.conftest import connected, create

MOST_MB = {"receiver": 40, "producer": 40, "audit": 100}  # numpy alone takes 60 MB with its BLAS
MESSAGES = 500
WINDOW = 4  # of the script `receiver.py`


def counted(lines: bytes) -> int:
    """The number of records in all reports; `lines` are the reports in JSON."""
    return sum(one.totals.count for report in read_lines(lines) for one in report.windows)


each_python = pytest.mark.parametrize("minor", [10, 11, 12, 13, 14], ids=lambda minor: f"3.{minor}")


def test_all_distributions_have_one_version() -> None:
    for project in (ROOT, *(ROOT / "app" / "sdk" / name for name in LIBRARIES)):
        text = (project / "pyproject.toml").read_text()
        assert f'\nversion = "{app.__version__}"\n' in text, project
        named = re.findall(r'"switchyard-\w+==(.*?)"', text)
        assert set(named) <= {app.__version__}, project
        assert len(named) == len(LIBRARIES) if project == ROOT else True


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_carries_the_licence_also_from_its_source(tmp_path: Path, name: str) -> None:
    project = ROOT / "app" / "sdk" / name
    assert (project / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert not (project / "LICENSE").is_symlink()
    hatch = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(hatch, cwd=project, check=True, capture_output=True)
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as found:
        licence = found.getmember(f"switchyard_{name}-{app.__version__}/LICENSE")
        assert licence.isreg()


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
    try:
        async with asyncio.timeout(ENOUGH_S):
            handled = await delivered(process)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
    sent = [b"later", *WINDOW * [b"slow"], *(b"%d" % number for number in range(MESSAGES + 10))]
    assert Counter(handled) == Counter(sent)


async def delivered(process: asyncio.subprocess.Process) -> list[bytes]:
    """Delivers messages by both contracts and cancels some. Returns the values that the receiver had handled
    at its end."""
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    sender = RecordingSender(port)
    call = CountingCaller(unary_target(f"127.0.0.1:{port}", METHOD))
    try:
        slow = sender.send([StreamRecord(number, b"slow") for number in range(WINDOW)])
        handled = [(await process.stdout.readline()).strip() for _ in range(WINDOW)]
        sender.target.cancel(slow, 0, WINDOW)
        sender.send([StreamRecord(number, b"%d" % number) for number in range(MESSAGES)])
        # Results arrive only once the canceled deliveries have given their credit back.
        await sender.until(lambda: len(sender.reported) == WINDOW + MESSAGES)
        for number in range(MESSAGES, MESSAGES + 10):
            metadata = metadata_of(MetadataTemplate("orders", "billing", 3), number, None, [], 0, 1, 2)
            assert (await call(b"%d" % number, metadata)).code == 0
        assert (await call(b"later", metadata)).action == "Retry"
        assert set(sender.reported.values()) == {1}
        process.terminate()
        return [*handled, *(await process.stdout.read()).split()]
    finally:
        await sender.target.close()
        await call.target.close()


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
