"""The three libraries as a service installs them: out of wheels, alone, in each Python that can be had."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import app
from app.dev.demo.traffic import read_all
from app.dispatch.push.metadata import MetadataTemplate
from app.dispatch.push.unary import UnaryTarget
from switchyard.audit.outputs import read_lines
from tests.dispatch.push.grpc_servers import ENOUGH_S, METHOD, CountingCaller
from tests.dispatch.push.stream_servers import RecordingSender, StreamRecord
from tests.kafka.conftest import connected, create

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "installed"
LIBRARIES = ("receiver", "producer", "audit")
MINORS = (10, 11, 12, 13, 14)
INSTALL_S = 300.0
MOST_MB = {"receiver": 40, "producer": 40, "audit": 100}  # numpy alone takes 60 MB with its BLAS
MESSAGES = 500


def python(minor: int) -> str | None:
    """An interpreter of this version: on PATH, or beside the one that runs the tests."""
    beside = Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3.{minor}")
    for program in (f"python3.{minor}", *map(str, beside)):
        asked = [program, "-c", "import sys; print(sys.version_info[1])"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, check=False)
        except OSError:
            continue
        if found.stdout.strip() == str(minor):  # a shim may be there, and find nothing
            return program
    return None


@cache
def wheels(folder: Path) -> Path:
    """The folder of the wheels of this tree."""
    for name in LIBRARIES:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--wheel-dir", folder, ROOT / "app" / "sdk" / name], check=True)
    return folder


@dataclass(frozen=True)
class Installed:
    """A virtual environment with one library, and nothing of this tree on its path."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, minor: int, what: str, found_in: Path) -> Installed:
        program = python(minor)
        if program is None:
            pytest.skip(f"there is no Python 3.{minor}")
        subprocess.run([program, "-m", "venv", "--without-pip", folder], check=True)
        made = cls(folder)
        pip = [sys.executable, "-m", "pip", "--python", made.python, "install", "--quiet"]
        subprocess.run([*pip, "--find-links", found_in, what], check=True, timeout=INSTALL_S)
        return made

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def size_mb(self) -> float:
        return sum(path.lstat().st_size for path in self.folder.rglob("*")) / 1e6

    def run(self, script: str, *arguments: object) -> str:
        """Standard output of one of the scripts, which has to end well."""
        command = [self.python, "-I", SCRIPTS / script, *map(str, arguments)]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=ENOUGH_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def installed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, minor: int, library: str, extra: str = ""
) -> Installed:
    folder = wheels(tmp_path_factory.getbasetemp() / "wheels")
    return Installed.make(tmp_path / library, minor, f"switchyard-{library}{extra}", folder)


def counted(lines: bytes) -> int:
    """Records of all reports, given as lines of JSON."""
    return sum(one.totals.count for report in read_lines(lines) for one in report.windows)


each_python = pytest.mark.parametrize("minor", MINORS, ids=lambda minor: f"3.{minor}")


def test_all_distributions_have_one_version() -> None:
    for project in (ROOT, *(ROOT / "app" / "sdk" / name for name in LIBRARIES)):
        text = (project / "pyproject.toml").read_text()
        assert f'\nversion = "{app.__version__}"\n' in text, project
        assert all(f"switchyard-{name}=={app.__version__}" in text for name in LIBRARIES if project == ROOT)


@pytest.mark.deep(minutes=0.2)
@each_python
async def test_a_receiver_handles_every_message_of_both_contracts(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, minor: int
) -> None:
    environment = installed(tmp_path, tmp_path_factory, minor, "receiver")
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
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, minor: int, bootstrap: str, topic_name: str
) -> None:
    environment = installed(tmp_path, tmp_path_factory, minor, "producer")
    assert environment.size_mb() < MOST_MB["producer"]
    async with connected(bootstrap) as client:
        await create(client, topic_name, 2)
    output = await asyncio.to_thread(environment.run, "producer.py", bootstrap, topic_name, MESSAGES)
    assert json.loads(output) == {"east": MESSAGES}


@pytest.mark.deep(minutes=0.2)
@each_python
def test_an_audit_counts_every_message(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, minor: int
) -> None:
    environment = installed(tmp_path, tmp_path_factory, minor, "audit")
    assert environment.size_mb() < MOST_MB["audit"]
    reports = tmp_path / "reports"
    environment.run("audit.py", tmp_path / "log", reports, MESSAGES)
    assert counted(reports.read_bytes()) == MESSAGES


@pytest.mark.deep(minutes=0.2)
@each_python
async def test_an_audit_reports_into_kafka(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, minor: int, bootstrap: str, topic_name: str
) -> None:
    environment = installed(tmp_path, tmp_path_factory, minor, "audit", "[kafka]")
    async with connected(bootstrap) as client:
        for topic in (topic_name, f"{topic_name}-reports"):
            await create(client, topic, 1)
    await asyncio.to_thread(environment.run, "kafka_audit.py", bootstrap, topic_name, MESSAGES)
    reports = [record.value for record in await read_all(bootstrap, f"{topic_name}-reports")]
    assert counted(b"\n".join(reports)) == MESSAGES == len(await read_all(bootstrap, topic_name))
