"""Routes in the control log that must not run together."""

from __future__ import annotations

import pytest

from app.replicate.model import regular_language
from app.replicate.model.copy_graph import ALONE
from app.replicate.topics.conflicts import conflicts
from tests.replicate.model.test_copy_graph import route

THERE, BACK = route("there", "east", "west", "(.*a.{12})"), route("back", "west", "east", "(.*b.{12})")
APART, LOOPS = route("apart", "east", "north", "orders"), route("loops", "west", "west", "orders")


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_language, "MAX_WORK", 50_000)


def test_routes_that_cannot_be_proved_are_refused_with_a_remedy_and_affect_no_others() -> None:
    """The fault: such a route ran, with only a line in a log."""
    (refused,) = conflicts([THERE, APART, BACK], {"back"}, ALONE)

    assert refused.names == {"back"}
    assert "cannot be proved that no loop is possible among back, there" in refused.message
    assert "write simpler ones" in refused.remedy


def test_a_new_leader_refuses_as_few_routes_as_possible() -> None:
    routes = [THERE, APART, LOOPS, BACK]
    found = {
        name: one for one in conflicts(routes, {one.name for one in routes}, ALONE) for name in one.names
    }

    assert found.keys() == {"loops", "there"}
    assert found["loops"].message.startswith("would loop")
    assert "cannot be proved" in found["there"].message


def test_sound_routes_stay_sound_beside_new_ones() -> None:
    assert conflicts([THERE, APART, BACK], {"apart"}, ALONE) == []
