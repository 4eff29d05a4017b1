"""Routes that must not run together, as they stand in the control log."""

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


def test_what_cannot_be_proved_is_refused_with_the_routes_and_the_remedy_and_costs_no_others() -> None:
    """It ran with a line in a log."""
    (refused,) = conflicts([THERE, APART, BACK], {"back"}, ALONE)

    assert refused.names == {"back"}
    assert "cannot be proved that no loop is possible among back, there" in refused.message
    assert "write simpler ones" in refused.remedy


def test_a_leader_that_begins_refuses_as_little_of_what_it_finds() -> None:
    routes = [THERE, APART, LOOPS, BACK]
    found = {
        name: one for one in conflicts(routes, {one.name for one in routes}, ALONE) for name in one.names
    }

    assert found.keys() == {"loops", "there"}
    assert found["loops"].message.startswith("would loop")
    assert "cannot be proved" in found["there"].message


def test_what_was_sound_before_stays_so_when_something_else_is_new() -> None:
    assert conflicts([THERE, APART, BACK], {"apart"}, ALONE) == []
