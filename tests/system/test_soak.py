"""Random faults under constant traffic: every message has an end, and every repetition a cause.

SWITCHYARD_SOAK_S: seconds of traffic (30, in which every kind of incident comes once at least).
SWITCHYARD_SOAK_SEED: the seed of faults and incidents; printed. SWITCHYARD_SOAK_KEEP: a folder for the logs
and the receivers' journal.
"""

from __future__ import annotations

import os
import random
import shutil
import sys

import psutil
import pytest

from app.dev.yard import Yard
from tests.system.conftest import make_stage
from tests.system.soak.play import SoakRun
from tests.system.soak.report import report

FOR_S = float(os.environ.get("SWITCHYARD_SOAK_S") or 30)
SEED = int(os.environ.get("SWITCHYARD_SOAK_SEED") or random.SystemRandom().randrange(1_000_000))


def print_line(text: str) -> None:
    """Prints a line, which pytest shows when the test fails, or with -s."""
    sys.stdout.write(text + "\n")


@pytest.mark.deep(minutes=1.0)
@pytest.mark.system
@pytest.mark.timeout(FOR_S + 240)
def test_under_random_faults_every_message_has_an_end_and_every_repetition_a_cause(
    killable_yard: Yard, topic_name: str
) -> None:
    before = set(psutil.Process().children())  # with children of their own, as a browser has
    with make_stage(killable_yard) as stage:
        soak = SoakRun(stage, SEED, FOR_S, topic_name, say=print_line)
        try:
            outcome = soak.run()
        finally:
            keep = os.environ.get("SWITCHYARD_SOAK_KEEP")
            if keep:
                shutil.copytree(stage.home, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("data"))
    leftovers = [process for process in psutil.Process().children() if process not in before]
    text = report(outcome)
    print_line(text)
    account = outcome.account
    assert account.produced > FOR_S * 10, text
    assert not account.lost, text
    assert not account.unexplained, text
    assert account.duplicates <= account.allowed, text
    assert not account.disordered, text
    assert not account.wrong, text
    assert not outcome.lag, text
    assert not outcome.troubles, text
    assert not leftovers, f"still there: {leftovers}\n{text}"
