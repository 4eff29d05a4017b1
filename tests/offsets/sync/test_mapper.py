"""The jobs of many copies are searched once per change, not once per query."""

from __future__ import annotations

from typing import Any

import pytest

from app.offsets.store.tables import RegionAtlas
from app.offsets.sync.mapper import OffsetMapper
from app.replicate.definition import RouteDefinition
from app.replicate.model.route import Route
from tests.offsets.clusters import HERE, THERE, a_route

TOPICS = 300


async def test_copies_into_a_topic_are_found_among_many_jobs_without_a_new_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    real = RouteDefinition.route

    def route(definition: RouteDefinition) -> Route:
        made.append(definition.key)
        return real(definition)

    monkeypatch.setattr(RouteDefinition, "route", route)
    nothing: Any = None
    tables: Any = type("Tables", (), {"atlas": RegionAtlas("own", {}, {})})
    routes = {name: a_route(name, HERE, THERE, "t.*") for name in ("a", "b")}
    jobs = [f"replicate:{name}:t{n}:{p}" for name in routes for n in range(TOPICS) for p in range(2)]
    mapper = OffsetMapper(tables, nothing, lambda: dict(routes), lambda: [*jobs, "dispatch:g/t1:t1:0"])
    for n in range(TOPICS):
        found = mapper._copies_by_topic()[THERE, f"t{n}"]
        assert {(one.name, topic, p) for one, topic, p in found} == {
            (name, f"t{n}", p) for name in routes for p in range(2)
        }
    assert sorted(made) == ["a", "b"]
    jobs.append("replicate:a:t0:2")
    assert ("t0", 2) in {(topic, p) for _, topic, p in mapper._copies_by_topic()[THERE, "t0"]}
    del routes["b"]
    assert {one.name for one, _, _ in mapper._copies_by_topic()[THERE, "t1"]} == {"a"}
    assert not mapper._copies_by_topic().get((HERE, "t1"))
