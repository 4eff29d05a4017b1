"""`.ci/install.py`, with which make installs packages: it shows its progress, and pip explains errors."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "install.py"
METADATA = "Metadata-Version: 2.1\nName: a-package\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "wheels" / "a_package-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a_package.py", "")
        file.writestr("a_package-1.0.dist-info/METADATA", METADATA)
        file.writestr("a_package-1.0.dist-info/WHEEL", WHEEL)
        file.writestr("a_package-1.0.dist-info/RECORD", "")
    return path


def install(wheel: Path, sha256: str, target: Path) -> subprocess.CompletedProcess[str]:
    lock = target.with_suffix(".lock")
    lock.write_text(f"a-package==1.0 \\\n    --hash=sha256:{sha256}\n")
    environment = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_TARGET": str(target),
    }
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(lock)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_packages_are_installed_with_a_few_lines_of_progress(wheel: Path, tmp_path: Path) -> None:
    done = install(wheel, hashlib.sha256(wheel.read_bytes()).hexdigest(), tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "a_package.py").exists()
    assert done.stderr.startswith("Installing 1 package into ")
    assert done.stderr.endswith("Installing packages: 100 %\n")


def test_a_hash_that_is_not_locked_fails_with_pips_message(wheel: Path, tmp_path: Path) -> None:
    done = install(wheel, hashlib.sha256(b"something else").hexdigest(), tmp_path / "site")
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "100 %" not in done.stderr
    assert not (tmp_path / "site" / "a_package.py").exists()
