"""A leader's duties beside placement: it does them only while it leads, and a failure does not cost it the
lead.
"""

from __future__ import annotations

import msgspec
import pytest

from app.controllog.events import Claim, FailoverDeleted, FailoverPut
from tests.failover.run.region_fakes import failover
from tests.placement.test_leader import LONG_S, a_region_in_which_a_leads


async def test_only_the_leader_does_its_duties_with_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)
    done: list[str] = []
    for name in ("a", "b"):

        async def chore(name: str = name) -> None:
            done.append(name)

        region.leaders[name]._chores = chore
    await region.run_for(2.0, "a", "b")
    assert set(done) == {"a"}
    assert len(done) >= 3
    done.clear()
    region.log.apply(Claim(at_ms=0, term=9, worker="b"))
    await region.run_for(1.0, "a", "b")
    assert set(done) == {"b"}


async def test_a_duty_that_fails_for_long_does_not_end_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)

    async def chore() -> None:
        raise ZeroDivisionError

    region.leaders["a"]._chores = chore
    await region.run_for(LONG_S, "a", "b")
    assert region.leaders["a"].term, "its placement rounds still succeed"
    assert region.log.view.leader == "a"


async def test_a_refused_definition_of_regions_is_overwritten_with_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)
    current = failover()
    region.log.apply(current)
    refused = msgspec.structs.replace(current, etag="other", expected="nothing")
    deleted_put = msgspec.structs.replace(refused, key="failover:gone")
    region.log.refused = [refused, deleted_put]
    await region.run_for(0.5, "a")

    put, deleted = (e for e in region.log.appended if isinstance(e, FailoverPut | FailoverDeleted))
    assert put == msgspec.structs.replace(current, expected=current.etag)
    assert isinstance(deleted, FailoverDeleted)
    assert (deleted.key, deleted.expected) == ("failover:gone", "")
