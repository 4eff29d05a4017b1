"""Random trouble under traffic that never stops: every message has its end, and every repetition a cause.

SWITCHYARD_SOAK_S: seconds of traffic (30, in which every kind of trouble comes once at least).
SWITCHYARD_SOAK_SEED: what to draw the trouble from; printed.
SWITCHYARD_SOAK_KEEP: a folder for the logs and the receivers' journal.
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
from tests.system.soak.play import Play
from tests.system.soak.report import report

FOR_S = float(os.environ.get("SWITCHYARD_SOAK_S") or 30)
SEED = int(os.environ.get("SWITCHYARD_SOAK_SEED") or random.SystemRandom().randrange(1_000_000))


def tell(text: str) -> None:
    """Shown when the test fails, or with -s."""
    sys.stdout.write(text + "\n")


@pytest.mark.deep(minutes=1.0)
@pytest.mark.system
@pytest.mark.timeout(FOR_S + 240)
def test_whatever_fails_every_message_is_accounted_for(killable_yard: Yard, topic_name: str) -> None:
    before = set(psutil.Process().children(recursive=True))
    with make_stage(killable_yard) as stage:
        play = Play(stage, SEED, FOR_S, topic_name, say=tell)
        try:
            outcome = play.run()
        finally:
            keep = os.environ.get("SWITCHYARD_SOAK_KEEP")
            if keep:
                shutil.copytree(stage.home, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("data"))
    left = [process for process in psutil.Process().children(recursive=True) if process not in before]
    text = report(outcome)
    tell(text)
    account = outcome.account
    assert account.produced > FOR_S * 10, text
    assert not account.lost, text
    assert not account.unexplained, text
    assert account.duplicates <= account.allowed, text
    assert not account.disordered, text
    assert not account.wrong, text
    assert not outcome.lag, text
    assert not outcome.troubles, text
    assert not left, f"still there: {left}\n{text}"
