"""A worker with a low limit of open files raises it, and reports a limit that is too low at the start and
later."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from app.dev.demo.stage import DemoStage, Process, free_port, http, wait_until
from tests.system.fleet import incidents

pytestmark = pytest.mark.system

ENOUGH_S = 120.0
LIMITED = (
    "import os, resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))\n"
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def limited_worker(stage: DemoStage, soft: int, hard: int) -> Process:
    port, name = free_port(), f"worker-{soft}-{hard}"
    return stage.start(
        name,
        [
            sys.executable, "-c", LIMITED, str(soft), str(hard),
            sys.executable, "-m", "faust", "-A", "app", "worker", "-l", "info",
        ],
        {"SWITCHYARD_CONFIG": str(stage.config(name)), "SWITCHYARD_WEB_PORT": str(port)},
        port=port,
    )  # fmt: skip


def test_a_worker_with_too_low_a_file_limit_ends_and_names_the_need_and_the_command(stage: DemoStage) -> None:
    """Regression: the worker was ready, then delivered nothing and closed every connection to its port
    without a message."""
    worker = limited_worker(stage, 256, 256)
    assert worker.popen.wait(ENOUGH_S) == 3
    log = worker.log.read_text()
    assert "this worker may have 256 files open at once, and needs about" in log
    assert "`ulimit -n 65536`" in log
    assert "Traceback" not in log


def test_a_worker_raises_its_file_limit_and_reports_an_incident_when_files_run_out(stage: DemoStage) -> None:
    worker = limited_worker(stage, 256, 4_096)
    stage.wait_ready(worker)
    pid = worker.popen.pid
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (4_096, 4_096)

    def readiness() -> tuple[int, str]:
        try:
            status, body = http("GET", f"{worker.url}/health/ready")
        except OSError as error:  # no file may be left for this connection
            return 0, repr(error)
        return status, body["open_files"]

    assert readiness() == (200, "")
    # Its tables are still being opened: a table that cannot be opened ends the worker.
    wait_until(lambda: "Worker ready" in worker.log.read_text(), ENOUGH_S, worker.tail)

    def refuses_when_nearly_full() -> bool:
        """Lowers the limit to just above the open files, whose number changes all the time."""
        few = len(list(Path(f"/proc/{pid}/fd").iterdir())) + 16
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, 4_096))
        return readiness()[0] == 503

    wait_until(refuses_when_nearly_full, ENOUGH_S, lambda: str(readiness()), 0.5)
    assert "files that this worker may have open are open" in readiness()[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (4_096, 4_096))
    wait_until(lambda: incidents(worker, "open-files"), ENOUGH_S, worker.tail, 0.5)
    wait_until(lambda: readiness()[0] == 200, ENOUGH_S, lambda: str(readiness()), 0.5)
