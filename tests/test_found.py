"""The failing examples that `make fuzz` has found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import FOUND
from tests.fuzz import ROOT


@pytest.mark.beside
def test_every_example_that_once_failed_passes_now() -> None:
    if not any(entry.is_dir() for entry in FOUND.iterdir()):
        return  # collecting all properties takes half a minute
    command = [sys.executable, "-m", "pytest", "-q", "-m", "property and beside"]
    env = {**os.environ, "HYPOTHESIS_PROFILE": "found"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
