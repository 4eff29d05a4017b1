"""Receivers of a workload that runs in several regions learn the sending region's role before each
message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.push.metadata import MetadataTemplate, SenderRole
from switchyard.receiver import Message, Receiver
from switchyard.receiver import RegionRole as ReceivedRole
from switchyard.receiver.unary_service import read_message
from switchyard.v1.receiver_pb2 import Role
from tests.dispatch.push.conftest import Serve
from tests.dispatch.push.grpc_servers import metadata_of
from tests.dispatch.push.stream_servers import ReceiverStream, StreamRecord, hold, rows, streaming

EAST = SenderRole("east", primary=True, epoch=64)
EAST_NO_MORE = SenderRole("east", primary=False, epoch=129)


@given(st.sampled_from(["east", "eu-1"]), st.booleans(), st.integers(0, 2**53))
def test_a_unary_call_has_the_regions_role(region: str, primary: bool, epoch: int) -> None:
    metadata = metadata_of(MetadataTemplate("orders", "billing", 0), 5, None, [], 0, 0, 1)

    message = read_message(b"v", (*metadata, *SenderRole(region, primary, epoch).metadata()))

    assert message.role == ReceivedRole(region, primary, epoch)
    assert read_message(b"v", metadata).role is None


def test_the_metadata_has_the_names_that_receivers_read() -> None:
    assert dict(EAST.metadata()) == {
        "switchyard-region": "east", "switchyard-primary": "true", "switchyard-primary-epoch": "64",
    }  # fmt: skip


async def test_a_stream_sends_the_role_before_the_first_message_and_at_each_change() -> None:
    received: list[Role | int] = []

    async def note(stream: ReceiverStream) -> None:
        await stream.accept(1 << 40)
        while (request := await stream.request()) is not None:
            if request.HasField("role"):
                received.append(request.role)
            for batch in request.batches:
                received.extend(batch.base_offset + message.offset_delta for message in batch.messages)
                numbers = {"start": batch.first_delivery, "end": batch.first_delivery + len(batch.messages)}
                await stream.say(results={"acknowledged": [numbers]})
            if received[-1] == 3:
                return  # the stream is lost

    is_primary = Role(region="east", primary=True, epoch=64)
    was_primary = Role(region="east", primary=False, epoch=129)
    async with streaming(note) as sender:
        sender.target.announce_role(EAST)
        await sender.connected()
        sender.send([StreamRecord(0), StreamRecord(1)])
        await sender.until(lambda: received == [is_primary, 0, 1])
        sender.target.announce_role(EAST)  # no change
        sender.target.announce_role(EAST_NO_MORE)  # sent at once, without a message
        await sender.until(lambda: received == [is_primary, 0, 1, was_primary])
        sender.send([StreamRecord(2)])
        await sender.until(lambda: received == [is_primary, 0, 1, was_primary, 2])
        sender.send([StreamRecord(3)])
        await sender.until(lambda: received == [is_primary, 0, 1, was_primary, 2, 3])
        await sender.until(lambda: sender.lost)
        sender.send([StreamRecord(4)])
        await sender.until(lambda: received == [is_primary, 0, 1, was_primary, 2, 3, was_primary, 4])
        sender.target.announce_role(None)
        await sender.until(lambda: received == [is_primary, 0, 1, was_primary, 2, 3, was_primary, 4, Role()])


async def test_a_message_that_travels_alone_follows_the_role_too() -> None:
    requests: list[tuple[bool, int]] = []

    async def note(stream: ReceiverStream) -> None:
        await stream.accept(1 << 40)
        while sum(count for _, count in requests) < 1:
            request = await stream.request()
            assert request is not None
            requests.append((request.HasField("role"), len(request.batches)))
        await hold(stream)

    async with streaming(note) as sender:
        sender.target.announce_role(EAST)
        await sender.connected()
        sender.send(rows(1, b"x" * 400_000))  # more than a request's usual size
        await sender.until(lambda: len(requests) == 2)

    assert requests == [(True, 0), (False, 1)]


async def test_a_handler_finds_the_role_on_its_message(serve: Serve) -> None:
    receiver = Receiver()
    seen: list[ReceivedRole | None] = []

    @receiver.on(topic="orders", group="billing")
    def take(message: Message) -> None:
        seen.append(message.role)

    sender = await serve(receiver)
    for role in (None, EAST, EAST_NO_MORE, None):
        sender.target.announce_role(role)
        sender.send(rows(2))
        await sender.all_reported()

    east, no_more = (
        ReceivedRole("east", primary=True, epoch=64),
        ReceivedRole("east", primary=False, epoch=129),
    )
    assert seen == [None, None, east, east, no_more, no_more, None, None]
