"""Runs every property with random examples for a given time: `make fuzz`, or `python -m tests.fuzz`.

    python -m tests.fuzz --minutes 60            every property, in rounds, for an hour
    python -m tests.fuzz tests/kernel tests/audit  those of some folders, for ten minutes

A property that fails is printed with its example, and later rounds leave it out. The example is copied to
`tests/found`, and every later run of the tests tries it. Commit it with the fix, and add it to the test
itself, because Hypothesis finds no stored example of a test whose code has changed.

The exit code is 0 when nothing failed, else 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import FOUND, FUZZED

ROOT = Path(__file__).parents[1]
EXAMPLES = re.compile(r"(\d+) passing, (\d+) failing")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", re.MULTILINE)
NOTHING_LEFT = int(pytest.ExitCode.NO_TESTS_COLLECTED)


def fuzz(minutes: float, arguments: list[str]) -> int:
    """Runs rounds until the time is over; the exit code."""
    ends_s = time.monotonic() + 60 * minutes
    failed: list[str] = []
    examples = rounds = 0
    while not rounds or time.monotonic() < ends_s:
        code, output = run_round(failed, arguments)
        if code == NOTHING_LEFT:
            break
        rounds += 1
        examples += sum(int(passing) + int(failing) for passing, failing in EXAMPLES.findall(output))
        found = [name for name in FAILED.findall(output) if name not in failed]
        if found:
            keep_found()
            say(output[output.find("= FAILURES =") :])
            say(f"repeat with: HYPOTHESIS_PROFILE=fuzz pytest {' '.join(found)}")
        failed += found
        say(f"round {rounds}: {examples:,} examples in all, {len(failed)} properties failed")
    for name in failed:
        say(f"FAILED {name}")
    return bool(failed)


def say(text: str) -> None:
    """Prints the text at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_round(leave_out: list[str], arguments: list[str]) -> tuple[int, str]:
    """Runs all properties but those in `leave_out`; pytest's exit code and output."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "property", "--hypothesis-show-statistics",
        *(f"--deselect={name}" for name in leave_out), *arguments,
    ]  # fmt: skip
    env = {**os.environ, "HYPOTHESIS_PROFILE": "fuzz"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 1, NOTHING_LEFT}:
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode, done.stdout


def keep_found() -> None:
    """Copies the failing examples to `tests/found`."""
    if FUZZED.exists():
        shutil.copytree(FUZZED, FOUND, dirs_exist_ok=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="no round begins after so long (10)")
    known, others = parser.parse_known_args()
    sys.exit(fuzz(known.minutes, others))
