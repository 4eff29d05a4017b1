"""Virtual environments of any Python with a distribution installed from this tree's wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
LIBRARIES = ("receiver", "producer", "audit")
TIMEOUT_S = 300.0  # ends a run that hangs; an index may be slow


def python(minor: int) -> str | None:
    """An interpreter of this version: on PATH, or next to the one that runs the tests. None: not found."""
    beside = Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3.{minor}")
    for program in (f"python3.{minor}", *map(str, beside)):
        command = [program, "-c", "import sys; print(sys.version_info[1])"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            continue
        if found.stdout.strip() == str(minor):  # a shim may exist that finds no interpreter
            return program
    return None


@dataclass(frozen=True)
class Installed:
    """A virtual environment; nothing of this tree is on its path."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def environment(self) -> dict[str, str]:
        return {
            name: value
            for name, value in os.environ.items()
            if name == "SWITCHYARD_HOME" or not name.startswith(("PYTHON", "SWITCHYARD_"))
        }

    def size_mb(self) -> float:
        return sum(path.lstat().st_size for path in self.folder.rglob("*")) / 1e6

    def run(self, *command: object) -> str:
        """Runs a program of the environment, which must succeed; returns its standard output."""
        program, *arguments = map(str, command)
        done = subprocess.run(
            [str(self.folder / "bin" / program), *arguments], env=self.environment, cwd=self.folder,
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels of this tree."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (*(ROOT / "app" / "sdk" / name for name in LIBRARIES), ROOT):
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--wheel-dir", folder, project], check=True)
    return folder


Install = Callable[[int, str], Installed]


@pytest.fixture
def install(wheels: Path, tmp_path: Path) -> Install:
    """Installs a distribution and all it needs in an empty environment of Python 3.<minor>."""

    def made(minor: int, distribution: str) -> Installed:
        program = python(minor)
        if program is None:
            pytest.skip(f"there is no Python 3.{minor}")
        environment = Installed(tmp_path / "environment")
        subprocess.run([program, "-m", "venv", "--without-pip", environment.folder], check=True)
        name, bracket, extra = distribution.partition("[")
        (wheel,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")  # never from an index
        pip = [sys.executable, "-m", "pip", "--python", environment.python, "install", "--quiet"]
        wanted = f"{wheel}{bracket}{extra}"
        subprocess.run([*pip, "--find-links", wheels, wanted], check=True, timeout=TIMEOUT_S)
        return environment

    return made
