"""The command line in this process, for tests of many commands; as a process of its own: test_commands."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from app.cli.main import switchyard
from tests.cli.test_commands import Shell
from tests.web.runtime_fake import FakeRuntime, serving


class InProcess(Shell):
    """Runs `switchyard ...` in a folder, told of a worker; nobody is at the terminal."""

    def __call__(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        own = {"SWITCHYARD_URL": self.url, "SWITCHYARD_CONFIG": str(self.home / "none.yaml"), **env}
        with contextlib.chdir(self.home):
            ended = CliRunner().invoke(switchyard, arguments, env=own)
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return subprocess.CompletedProcess(list(arguments), ended.exit_code, ended.stdout, ended.stderr)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The worker in this process logs to the real standard error, never into a command's output."""
    kept = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.__stderr__))
    fed = FakeRuntime()
    with serving(fed) as url:
        yield InProcess(url, fed, tmp_path)
    structlog.configure(**kept)
