"""PySpark is an extra: where it is missing, each job says how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.__main__ import JOBS


@pytest.fixture
def without_pyspark(tmp_path: Path) -> dict[str, str]:
    """An environment in which PySpark cannot be imported."""
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\")")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def spark(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.parametrize("job", sorted(JOBS.keys() - {"jars"}))
def test_a_job_without_pyspark_says_how_to_get_it(without_pyspark: dict[str, str], job: str) -> None:
    ended = spark(without_pyspark, job, "--help")
    assert ended.returncode == 5
    assert "pip install 'switchyard-kafka[spark]'" in ended.stderr
    assert "make install" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_connectors_jars_can_be_had_without_pyspark(without_pyspark: dict[str, str]) -> None:
    assert spark(without_pyspark, "jars", "--help").returncode == 0
    assert spark(without_pyspark, "--help").returncode == 0


def test_a_demo_with_a_report_checks_for_pyspark_before_it_starts_anything(
    without_pyspark: dict[str, str],
) -> None:
    command = [sys.executable, "-m", "app.cli", "demo", "--once", "--report", "out"]
    ended = subprocess.run(
        command, env=without_pyspark, capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.returncode == 1
    assert "pip install 'switchyard-kafka[spark]'" in ended.stderr
    assert "starting" not in ended.stderr
