"""Workers in containers are stopped by Docker or cut off from the network; every message is counted."""

from __future__ import annotations

import pytest

from app.dev.demo.stage import wait_until
from app.dev.demo.traffic import messages
from tests.docker.region import JOBS, MAX_IN_FLIGHT, READY_S, Region, state
from tests.system.fleet import most_deliveries_within

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]  # the first test builds the images
PER_SECOND = 400.0
UNSAVED_MS = 600.0  # snapshots are taken every 100 ms; pushing stops 500 ms after a missed one


@pytest.mark.deep(minutes=5.6)
def test_docker_stop_of_a_worker_under_load_drains_it_and_delivers_nothing_twice(region: Region) -> None:
    first, second = region.two_workers()
    with region.load(messages(4_000), PER_SECOND):
        region.wait_delivered(1_000)
        assert second.stop() == 0
        wait_until(lambda: list(first.owners().values()) == [JOBS], READY_S, lambda: str(first.owners()))
    report = region.settle()
    assert report.sound, report
    assert report.duplicates == 0


@pytest.mark.deep(minutes=0.7)
def test_a_worker_cut_off_under_load_loses_nothing_repeats_only_what_was_in_flight_and_comes_back(
    region: Region,
) -> None:
    first, second = region.two_workers()
    both = first.alive()
    assert len(both) == 2
    with region.load(messages(1_000_000), PER_SECOND, to_its_end=False):
        region.wait_delivered(1_500)
        region.cut_off(second)
        wait_until(lambda: list(first.owners().values()) == [JOBS], READY_S, lambda: str(first.owners()))
        (remaining,) = first.alive()
        assert state(second.container)["Running"], "the worker that was cut off has ended"
        wait_until(
            lambda: not second.ready(), READY_S, lambda: "the worker is cut off and reports that it is ready"
        )
        # It comes back while messages flow; by its last knowledge it owns half of the jobs.
        before = len(region.sent)
        region.reconnect(second)
        wait_until(lambda: first.alive() == both, READY_S, lambda: str(first.alive()))
        wait_until(second.ready, READY_S, lambda: "it is not ready again")
        assert len(region.sent) > before
    report = region.settle()
    assert report.sound, report
    assert report.duplicates <= MAX_IN_FLIGHT + most_deliveries_within(region.deliveries(), UNSAVED_MS)

    # It works normally again: alone, it delivers everything.
    assert first.stop() == 0
    with region.load(messages(500, prefix="later"), PER_SECOND):
        pass
    later = region.settle()
    assert later.sound, later
    assert later.duplicates == report.duplicates
    assert set(second.owners()) == both - {remaining}
