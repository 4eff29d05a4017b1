"""The command line against a served fake runtime.

- `shell`: runs commands in this process, because importing the application takes 1.5 seconds of a processor.
- `process_shell`: runs each command in a process of its own, as users do.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner

from app.cli.main import switchyard
from tests.web.runtime_fake import FakeRuntime, serving

SCRIPT = "from app.cli.main import main; main()"


class Shell:
    """Runs `switchyard ...` in a process of its own, in a folder and with a worker's URL."""

    def __init__(self, url: str, fed: FakeRuntime, home: Path) -> None:
        self.url = url
        self.fed = fed
        self.home = home

    def environment(self, **env: str) -> dict[str, str]:
        """The variables that a command gets in addition to those of this process."""
        return {"SWITCHYARD_URL": self.url, "SWITCHYARD_CONFIG": str(self.home / "none.yaml"), **env}

    def __call__(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments],
            cwd=self.home, env=os.environ | self.environment(**env),
            capture_output=True, text=True, timeout=150, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def file(self, *definitions: dict[str, Any], name: str = "workloads.yaml") -> str:
        """Writes a file with these definitions; its path."""
        path = self.home / name
        path.write_text("---\n".join(json.dumps(data) + "\n" for data in definitions))
        return str(path)


class InProcess(Shell):
    """Runs `switchyard ...` in this process, in a folder and with a worker's URL; without a terminal."""

    def __call__(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        with contextlib.chdir(self.home):
            ended = CliRunner().invoke(switchyard, arguments, env=self.environment(**env))
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return subprocess.CompletedProcess(list(arguments), ended.exit_code, ended.stdout, ended.stderr)


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """Makes the worker in this process log to the real standard error, not into a command's output."""
    kept = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.__stderr__))
    yield
    structlog.configure(**kept)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    fed = FakeRuntime()
    with quiet_log(), serving(fed) as url:
        yield InProcess(url, fed, tmp_path)


@pytest.fixture
def process_shell(tmp_path: Path) -> Iterator[Shell]:
    fed = FakeRuntime()
    with serving(fed) as url:
        yield Shell(url, fed, tmp_path)
