"""A message reaches the receiver of its zone and environment, and never one of another environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.receiver_routing import Fallbacks, ReceiverRouting, RoutingRefusal, Unmatched

TARGETS = [
    ("staging", None, "staging:1"),
    ("staging", "b", "staging-b:1"),
    ("ci", "b", "ci-b:1"),
    (None, "b", "main-b:1"),
]
PRODUCTION = ("production", "prod")


def routing(unmatched: Unmatched = Unmatched.DLQ) -> ReceiverRouting:
    """With all of it."""
    return ReceiverRouting(
        "main:1", zone="zone", environment="env", targets=TARGETS, unmatched=unmatched, production=PRODUCTION
    )


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ([], "main:1"),
        ([("env", b"prod")], "main:1"),
        ([("env", b"Production")], "main:1"),
        ([("ENV", b"staging")], "staging:1"),
        ([("Env", b"staging"), ("ZONE", b"b")], "staging-b:1"),
        ([("zone", b"b")], "main-b:1"),
        ([("zone", b"unknown")], "main:1"),
        ([("env", b"prod"), ("zone", b"b")], "main-b:1"),
        ([("env", b"staging")], "staging:1"),
        ([("env", b"staging"), ("zone", b"b")], "staging-b:1"),
        ([("env", b"staging"), ("zone", b"unknown")], "staging:1"),
        ([("env", b"ci"), ("zone", b"b")], "ci-b:1"),
        ([("env", b"prod"), ("env", b"staging")], "staging:1"),
    ],
)
def test_each_message_has_its_receiver(headers: list[tuple[str, bytes | None]], address: str) -> None:
    assert routing().choose(headers) == address


@pytest.mark.parametrize(
    "headers",
    [
        [("env", b"ci")],
        [("env", b"qa")],
        [("env", b"\xff\xfe")],
        [("env", None)],
        [("env", b"")],
        [("env", b" ")],
    ],
)
def test_an_environment_without_a_target_does_as_the_definition_says(
    headers: list[tuple[str, bytes | None]],
) -> None:
    refused = routing().choose(headers)
    skipped = routing(Unmatched.SKIP).choose(headers)
    assert isinstance(refused, RoutingRefusal)
    assert not refused.skip
    assert "no target" in refused.reason
    assert isinstance(skipped, RoutingRefusal)
    assert skipped.skip
    assert routing(Unmatched.DEFAULT).choose(headers) == "main:1"


@given(
    st.lists(st.tuples(st.sampled_from(["env", "Env", "zone", "other"]), st.none() | st.binary(max_size=8)))
)
def test_only_production_reaches_production_whatever_the_headers(
    headers: list[tuple[str, bytes | None]],
) -> None:
    chosen = routing().choose(headers)
    values = [value for name, value in headers if name.lower() == "env"]
    environment = (values[-1] or b"").decode("utf-8", "replace").strip() if values else "prod"
    is_production = environment.casefold() in PRODUCTION
    assert (chosen in ("main:1", "main-b:1")) == is_production


ADDRESSES = "abcde"
graphs = st.dictionaries(st.sampled_from(ADDRESSES), st.sampled_from(ADDRESSES))


@given(graphs, st.sets(st.sampled_from(ADDRESSES)), st.floats(0, 100), st.floats(0, 100))
def test_a_fallback_is_there_and_is_taken_only_of_a_target_that_was_away_for_long_enough(
    graph: dict[str, str], away: set[str], after_s: float, passed_s: float
) -> None:
    fallbacks = Fallbacks(graph, after_s)
    for address in ADDRESSES:
        fallbacks.update(address, 0.0, is_away=address in away)
    for address in ADDRESSES:
        chosen = fallbacks.choose(address, passed_s, away.__contains__)
        if chosen != address:
            assert address in away
            assert passed_s >= after_s
            assert chosen not in away
            assert address in graph
        elif address in away and passed_s >= after_s and graph.get(address, address) != address:
            assert graph[address] in away, "its fallback was there"


def test_a_target_that_is_back_has_its_messages_at_once_and_its_time_away_begins_again() -> None:
    fallbacks = Fallbacks({"a": "b"}, 10.0)
    fallbacks.update("a", 0.0, is_away=True)
    assert fallbacks.choose("a", 10.0, "a".__eq__) == "b"
    fallbacks.update("a", 10.0, is_away=False)
    assert fallbacks.choose("a", 10.0, "".__eq__) == "a"
    fallbacks.update("a", 11.0, is_away=True)
    assert fallbacks.choose("a", 20.0, "a".__eq__) == "a"
