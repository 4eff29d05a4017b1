"""A stage for each test: the session's brokers, control topics of its own, real workers and receivers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from app.dev.demo.stage import DemoStage
from app.dev.yard import Yard


class ShortLivedStage(DemoStage):
    """A stage that kills its workers at the end, because no other test continues their work."""

    def close(self) -> None:
        """kill -9 of all processes; removes the folder."""
        for process in self.processes:
            if process.running:
                process.kill()
        super().close()


def make_stage(yard: Yard) -> DemoStage:
    """A stage with a region of its own."""
    stage = ShortLivedStage(yard, region=f"r{uuid.uuid4().hex[:8]}")
    stage.settings["worker"] = {"grace": "10s"}
    return stage


@pytest.fixture
def stage(yard: Yard) -> Iterator[DemoStage]:
    """A stage on the shared brokers, which the test must not kill or pause."""
    with make_stage(yard) as new_stage:
        yield new_stage


@pytest.fixture
def killable_stage(killable_yard: Yard) -> Iterator[DemoStage]:
    """A stage on brokers that the test may kill; the fixture restores them afterwards."""
    with make_stage(killable_yard) as new_stage:
        yield new_stage
