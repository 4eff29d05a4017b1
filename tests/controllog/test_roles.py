"""Roles: no two regions share an epoch, however late, often and out of order they hear each other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from app.controllog.events import RolePut, RoleReleased
from app.controllog.roles import ACTIVE, MAX_EPOCH, MAX_REGIONS, MOVING, Roles, initial, next_epoch, rank

KEY = "billing/orders"
REGIONS = ("west", "east", "north", "south")
regions = st.sampled_from(REGIONS)


def put(region: str, epoch: int, state: str = ACTIVE, key: str = KEY) -> RolePut:
    return RolePut(at_ms=epoch, key=key, region=region, epoch=epoch, state=state)  # type: ignore[arg-type]


def release_of(region: str, epoch: int) -> RoleReleased:
    return RoleReleased(at_ms=epoch, key=KEY, region=region, epoch=epoch)


class RegionsApart(RuleBasedStateMachine):
    """Regions that decide by what they know, and hear the others' decisions later."""

    decisions = Bundle("decisions")

    @initialize(primary=st.none() | regions)
    def begin(self, primary: str | None) -> None:
        self.known = {region: Roles() for region in REGIONS}
        self.heard: dict[str, list[RolePut]] = {region: [] for region in REGIONS}
        self.logs: list[RolePut | RoleReleased] = []
        self.acted: dict[int, set[str]] = {}
        self.first = initial(primary, REGIONS)

    def _hear(self, region: str, event: RolePut | RoleReleased) -> None:
        known = self.known[region]
        if isinstance(event, RoleReleased):
            known.release(event)
            return
        before = known.of(event.key)
        counted = known.put(event)
        self.heard[region].append(event)
        after = known.of(event.key)
        assert after is not None
        if before is not None:
            assert after.epoch >= before.epoch, "an epoch went back"
            if counted and after.region != before.region:
                assert after.epoch > before.epoch, "the region changed under the same epoch"
            if (after.epoch, before.state) == (before.epoch, ACTIVE):
                assert after.state == ACTIVE, "an active role moves again under the same epoch"

    def _write(self, region: str, event: RolePut | RoleReleased) -> RolePut | RoleReleased:
        self._hear(region, event)
        self.logs.append(event)
        return event

    @rule(target=decisions, at=regions)
    def records_the_first_role(self, at: str) -> RolePut | RoleReleased:
        region, epoch = self.first
        return self._write(at, put(region, epoch))

    @rule(target=decisions, at=regions, to=regions, state=st.sampled_from([MOVING, ACTIVE]))
    def moves(self, at: str, to: str, state: str) -> RolePut | RoleReleased:
        known = self.known[at].of(KEY)
        epoch = next_epoch(-1 if known is None else known.epoch, to, REGIONS)
        return self._write(at, put(to, epoch, state))

    @rule(target=decisions, at=regions)
    def activates(self, at: str) -> object:
        known = self.known[at].of(KEY)
        if known is None or known.region != at:
            return multiple()
        return self._write(at, put(at, known.epoch))

    @rule(target=decisions, at=regions)
    def lets_go(self, at: str) -> object:
        known = self.known[at].of(KEY)
        if known is None or known.region == at:
            return multiple()
        return self._write(at, release_of(at, known.epoch))

    @rule(event=decisions, at=regions)
    def hears(self, event: RolePut | RoleReleased, at: str) -> None:
        self._hear(at, event)

    @invariant()
    def no_epoch_is_held_by_two_regions(self) -> None:
        for region, known in self.known.items():
            role = known.of(KEY)
            if role is not None and known.is_active(KEY, region):
                self.acted.setdefault(role.epoch, set()).add(region)
        assert all(len(of) == 1 for of in self.acted.values()), self.acted

    @invariant()
    def no_region_acts_under_an_epoch_that_it_heard_superseded(self) -> None:
        for region, known in self.known.items():
            if known.is_active(KEY, region):
                assert max(event.epoch for event in self.heard[region]) % MAX_REGIONS == rank(region, REGIONS)

    def teardown(self) -> None:
        """Once all regions have heard all decisions they agree, and at most one acts."""
        for known in self.known.values():
            for event in reversed(self.logs):
                known.put(event) if isinstance(event, RolePut) else known.release(event)
        assert len({(r.region, r.epoch, r.state) for k in self.known.values() if (r := k.of(KEY))}) <= 1
        assert sum(known.is_active(KEY, region) for region, known in self.known.items()) <= 1
        first, *others = (known.released(KEY) for known in self.known.values())
        assert all(other == first for other in others)


TestRegionsApart = RegionsApart.TestCase
TestRegionsApart.settings = settings(stateful_step_count=30)


@given(st.integers(-1, MAX_EPOCH // 2), regions)
def test_the_next_epoch_is_above_and_the_regions_own(above: int, region: str) -> None:
    epoch = next_epoch(above, region, REGIONS)

    assert above < epoch <= above + MAX_REGIONS
    assert epoch % MAX_REGIONS == rank(region, REGIONS)
    assert len({next_epoch(above, other, REGIONS) for other in REGIONS}) == len(REGIONS)


def test_another_order_of_priorities_gives_no_other_regions_epochs() -> None:
    assert next_epoch(5, "west", REGIONS) == next_epoch(5, "west", tuple(reversed(REGIONS)))


def test_the_first_role_is_the_primarys_or_else_the_first_regions() -> None:
    assert initial(None, REGIONS) == ("west", 3)
    assert initial("east", REGIONS) == ("east", 0)
    assert initial("east", ()) == ("east", 0)
    with pytest.raises(LookupError, match="mars"):
        initial("mars", REGIONS)
    with pytest.raises(LookupError, match="deploy a Failover definition"):
        initial(None, ())


@pytest.mark.parametrize("epoch", [-1, MAX_EPOCH, 2**63])
def test_an_epoch_that_nothing_could_follow_is_refused(epoch: int) -> None:
    roles = Roles()

    assert not roles.put(put("east", epoch))
    assert not roles.release(release_of("east", epoch))
    assert roles.of(KEY) is None


def test_a_release_counts_for_the_present_epoch_and_later_ones_only() -> None:
    roles = Roles()
    roles.release(release_of("east", 67))  # it may arrive before the move that it answers
    roles.put(put("west", 3))
    assert roles.has_released(KEY, "east")
    roles.put(put("west", 67))
    assert roles.has_released(KEY, "east")
    assert not roles.has_released(KEY, "west")
    roles.put(put("east", 128))
    assert not roles.has_released(KEY, "east"), "an old release does not answer a later move"


def test_definitions_that_differ_leave_one_region_in_the_end() -> None:
    one, other = Roles(), Roles()
    for first, second, known in (("east", "west", one), ("west", "east", other)):
        known.put(put(first, 7))
        known.put(put(second, 7))
    assert one.of(KEY) == other.of(KEY) == put("west", 7)
