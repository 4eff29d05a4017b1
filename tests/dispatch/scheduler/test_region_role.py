"""Each message carries the region's role to its receiver, over both contracts, also after a change."""

from __future__ import annotations

import pytest

from app.dispatch.push.metadata import SenderRole
from switchyard.receiver import RegionRole as ReceivedRole
from tests.dispatch.pump.rig import dispatch_rig, numbers

EAST = SenderRole("east", primary=True, epoch=0)
MOVED = SenderRole("east", primary=False, epoch=65)


@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_messages_carry_what_the_region_is_now(contract: str) -> None:
    async with dispatch_rig(lambda _: None, target={"contract": contract}) as rig:
        pump = rig.pump()
        for role in (None, EAST, MOVED, None):
            rig.runtime.announce_role(role)
            rig.feed(pump, numbers(3))
            await rig.idle()
        seen = [message.role for message in rig.seen]

    east, moved = ReceivedRole("east", primary=True, epoch=0), ReceivedRole("east", primary=False, epoch=65)
    assert seen == [*[None] * 3, *[east] * 3, *[moved] * 3, *[None] * 3]


@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_a_receiver_that_is_named_later_gets_the_role_too(contract: str) -> None:
    async with dispatch_rig(lambda _: None, target={"contract": contract}) as rig:
        rig.runtime.announce_role(EAST)
        address, seen, _ = await rig.another_receiver(lambda _: None)
        spec = rig.runtime.workload.spec
        target = spec.target.model_copy(update={"address": address})
        changed = rig.runtime.workload.model_copy(update={"spec": spec.model_copy(update={"target": target})})
        rig.runtime.change(changed, None)
        rig.feed(rig.pump(), numbers(3))
        await rig.idle()

    assert [message.role for message in seen] == [ReceivedRole("east", primary=True, epoch=0)] * 3
