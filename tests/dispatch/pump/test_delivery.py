"""Headers, traces and frames arrive at the receiver as the definition says, over both contracts."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest

from app.dispatch.jobs.interceptor_chain import make_chain
from app.dispatch.pump.delivery import BatchDelivery, Delivery
from app.dispatch.push.stream.outbox import REQUEST_BYTES
from app.payload.schema_loader import SchemaLoader
from switchyard.receiver import Message, Retry
from tests.dispatch.pump.rig import definition, dispatch_rig, numbers
from tests.payload.schemas import file_of, framed, set_of

CONTRACTS = ["unary", "stream"]
HEADERS = [("X-Zone", b"east"), ("secret", b"s"), ("x-internal", b"i"), ("no name for gRPC", b"n")]


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_receiver_gets_the_headers_that_the_definition_allows(contract: str) -> None:
    headers = {"allow": ["x-*"], "deny": ["X-Internal"]}
    async with dispatch_rig(lambda _: None, target={"contract": contract}, headers=headers) as rig:
        rig.feed(rig.pump(), [(b"k", b"1")], headers=HEADERS)
        await rig.idle()

    assert [message.headers for message in rig.seen] == [[("x-zone", b"east")]]
    assert rig.copied.records == []  # a header that gRPC cannot carry, and that is not sent, does no harm


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_copies_keep_the_headers_that_the_receiver_does_not_get(contract: str) -> None:
    def handle(_: Message) -> Any:
        return Retry()

    spec = {"headers": {"allow": []}, "retry": [{"delay": "1m", "attempts": 1}]}
    async with dispatch_rig(handle, target={"contract": contract}, **spec) as rig:
        rig.feed(rig.pump(), [(b"k", b"1")], headers=HEADERS)
        await rig.idle()

    assert rig.seen[0].headers == []
    ((*_, kept),) = rig.copied.records
    assert dict(HEADERS).items() <= kept.items()


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_message_has_one_trace_over_all_attempts_and_retry_tiers(contract: str) -> None:
    def handle(message: Message) -> Any:
        if message.attempt < 3:
            raise RuntimeError("again")
        return Retry() if not message.retry_count else None

    spec = {"retry": [{"delay": "0s", "attempts": 1}]}
    async with dispatch_rig(handle, target={"contract": contract}, **spec) as rig:
        rig.feed(rig.pump(), [(b"k", b"1")])
        await rig.idle()
        ((_, key, value, headers),) = rig.copied.records
        kept = [(name, content or b"") for name, content in headers.items()]
        rig.feed(rig.pump(tier=0), [(key, value)], headers=kept)
        await rig.idle()

    assert [message.attempt for message in rig.seen] == [1, 2, 3, 4]
    assert len({message.traceparent for message in rig.seen}) == 1
    assert len(rig.seen[0].traceparent) == 55


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_not_before_in_seconds_delays_and_an_ignored_one_does_not(contract: str) -> None:
    in_an_hour = str(int(time.time()) + 3_600).encode()
    for heeded in ("header", "ignore"):
        async with dispatch_rig(lambda _: None, target={"contract": contract}, notBefore=heeded) as rig:
            pump = rig.pump()
            rig.feed(pump, [(None, b"later")], headers=[("not-before", in_an_hour)])
            rig.feed(pump, [(None, b"now")])
            await rig.until(lambda: b"now" in rig.values())
            if heeded == "ignore":
                await rig.idle()
            assert (b"later" in rig.values()) is (heeded == "ignore")


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("invalid", ["dlq", "deliver"])
@pytest.mark.parametrize("deliver", ["bytes", "record"])
async def test_a_receiver_gets_the_message_without_its_frame_unless_it_asks_for_the_record(
    deliver: str, invalid: str, contract: str, tmp_path: Path
) -> None:
    (tmp_path / "8.binpb").write_bytes(set_of(file_of("p.proto", "Parcel")))
    body = b"\x0a\x01w"
    record = framed(8, [0], body)
    spec = {
        "payload": {
            "protobuf": {
                "descriptor": tmp_path.name, "message": "acme.Parcel", "framing": "confluent",
                "deliver": deliver, "invalid": invalid,
            }
        },
        "target": {"contract": contract},
    }  # fmt: skip
    chain = await make_chain(definition("127.0.0.1:1", **spec), [], SchemaLoader(tmp_path.parent))
    async with dispatch_rig(lambda _: None, chain, **spec) as rig:
        rig.feed(rig.pump(), [(None, record), (None, None), (None, b"no frame")])
        await asyncio.wait_for(rig.idle(), 60)

    unframed = deliver == "bytes"
    wanted = {body if unframed else record, b""} | ({b"no frame"} if invalid == "deliver" else set())
    assert {message.value for message in rig.seen} == wanted
    assert rig.copied.values("dlq") == ([b"no frame"] if invalid == "dlq" else [])


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_answered_messages_are_freed_without_a_garbage_collection(contract: str) -> None:
    larger_than_a_request = b"." * 2 * REQUEST_BYTES

    def every_tenth_again(message: Message) -> Any:
        return Retry(0.01) if message.offset % 10 == 0 and message.attempt == 1 else None

    def left() -> list[object]:
        return [found for found in gc.get_objects() if isinstance(found, BatchDelivery | Delivery)]

    async with dispatch_rig(every_tenth_again, target={"contract": contract}) as rig:
        pump = rig.pump()
        gc.collect()  # what earlier tests left
        gc.disable()
        try:
            rig.feed(pump, [(None, larger_than_a_request)] * 3)
            await rig.idle()
            rig.feed(pump, numbers(200))
            await rig.idle()
            await rig.until(lambda: not left())
        finally:
            gc.enable()
