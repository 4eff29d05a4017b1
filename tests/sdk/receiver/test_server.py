"""The receiver SDK: a handler's verdict becomes the status and trailer that its table promises."""

from __future__ import annotations

import asyncio
import queue
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from app.dispatch.push.call_result import CallResult
from app.dispatch.push.health import ReceiverHealth
from app.dispatch.push.metadata import MetadataTemplate
from switchyard.receiver import Ack, Message, Receiver, Renew, Retry, Skip, Stash, Verdict
from switchyard.receiver.addresses import listening_address
from switchyard.receiver.verdicts import MAX_REASON_CHARS
from tests.dispatch.push.conftest import CallTo
from tests.dispatch.push.grpc_servers import ENOUGH_S, METHOD, check_health, metadata_of

OK, UNKNOWN, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = (
    0,
    2,
    8,
    9,
    12,
    13,
    14,
)
METADATA = metadata_of(MetadataTemplate("orders", "billing", 0), 0, None, [], 0, 0, 1)

Deliver = Callable[..., Any]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    started = Receiver()
    yield started
    await started.stop(0)


@pytest.fixture
async def deliver(receiver: Receiver, call_to: CallTo) -> Deliver:
    """Calls the receiver over the network, and starts it before the first call."""

    async def call(method: str = METHOD, value: bytes = b"v") -> CallResult:
        return await (await call_to(receiver, method))(value, METADATA)

    return call


VERDICTS: list[tuple[Verdict, int, str | None, str]] = [
    (None, OK, None, ""),
    (Ack(), OK, None, ""),
    (Skip(), OK, "Skip", ""),
    (Retry(), RESOURCE_EXHAUSTED, "Retry", "retry later"),
    (Retry(after=5), RESOURCE_EXHAUSTED, "Retry", "retry later"),
    (Renew(60), RESOURCE_EXHAUSTED, "Renew", "the receiver asks for more time"),
    (Stash(), FAILED_PRECONDITION, "Stash", ""),
    (Stash("kaputt: ü"), FAILED_PRECONDITION, "Stash", "kaputt: ü"),
    (Stash("🚂" * 999), FAILED_PRECONDITION, "Stash", "🚂" * MAX_REASON_CHARS),
]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("verdict", "code", "action", "details"), VERDICTS)
async def test_a_verdict_arrives_as_status_and_action(
    receiver: Receiver,
    deliver: Deliver,
    is_async: bool,
    verdict: Verdict,
    code: int,
    action: str,
    details: str,
) -> None:
    async def later(_: Message) -> Verdict:
        await asyncio.sleep(0)
        return verdict

    def at_once(_: Message) -> Verdict:
        return verdict

    receiver.on(topic="orders", group="billing")(later if is_async else at_once)

    result = await deliver()

    assert (result.code, result.action, result.details) == (code, action, details)


@pytest.mark.parametrize(
    ("after_s", "header"),
    [
        (None, None),
        (0, None),
        (-1, None),
        (float("nan"), None),
        (0.0001, "1"),
        (2.5, "2500"),
        (1e99, str(2**32 - 1)),
    ],
)
async def test_a_requested_delay_travels_in_milliseconds(
    receiver: Receiver, after_s: float | None, header: str | None
) -> None:
    receiver.on(topic="orders", group="billing")(lambda message: Retry(after=after_s))

    async with aio.insecure_channel(f"127.0.0.1:{await receiver.start()}") as channel:
        call: Any = channel.unary_unary(METHOD, None, None)(b"", metadata=METADATA, timeout=ENOUGH_S)
        trailers = dict(await call.trailing_metadata())

    assert (trailers["kafka-action"], trailers.get("kafka-retry-after-ms")) == ("Retry", header)


@pytest.mark.parametrize(
    ("verdict", "timeout", "after"),
    [(Renew(60), "60000", None), (Renew(0), None, None), (Renew(0.5, after=2), "500", "2000")],
)
async def test_a_wish_for_more_time_travels_in_milliseconds(
    receiver: Receiver, verdict: Renew, timeout: str | None, after: str | None
) -> None:
    receiver.on(topic="orders", group="billing")(lambda message: verdict)

    async with aio.insecure_channel(f"127.0.0.1:{await receiver.start()}") as channel:
        call: Any = channel.unary_unary(METHOD, None, None)(b"", metadata=METADATA, timeout=ENOUGH_S)
        trailers = dict(await call.trailing_metadata())

    found = trailers["kafka-action"], trailers.get("kafka-timeout-ms"), trailers.get("kafka-retry-after-ms")
    assert found == ("Renew", timeout, after)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_raises_fails_its_message_only_and_says_why(
    receiver: Receiver, deliver: Deliver, is_async: bool
) -> None:
    def burst(message: Message) -> Verdict:
        if message.value == b"bad":
            raise LookupError("no such order ü" + "x" * 9999)
        return None

    async def burst_later(message: Message) -> Verdict:
        return burst(message)

    receiver.on(topic="orders", group="billing")(burst_later if is_async else burst)

    failed, fine = await deliver(value=b"bad"), await deliver(value=b"good")

    assert (failed.code, failed.action) == (UNKNOWN, None)
    assert failed.details.startswith("LookupError: no such order ü")
    assert len(failed.details) == MAX_REASON_CHARS
    assert fine.code == OK


@pytest.mark.parametrize("nonsense", [True, False, 0, "Ack", Ack, object()])
async def test_an_invalid_verdict_is_never_an_acknowledgement(
    receiver: Receiver, deliver: Deliver, nonsense: Any
) -> None:
    receiver.on(topic="orders", group="billing")(lambda message: nonsense)

    assert (await deliver()).code == INTERNAL
    with pytest.raises(TypeError, match="no verdict"):
        await receiver.test_client().deliver(topic="orders", group="billing", value=b"")


async def test_a_method_without_a_handler_is_unimplemented(receiver: Receiver, deliver: Deliver) -> None:
    receiver.on(topic="orders", group="billing")(lambda message: None)

    assert (await deliver("/kafka.consumerproxy.billing/refunds")).code == UNIMPLEMENTED
    assert (await deliver()).code == OK


async def test_each_group_and_topic_has_its_own_handler_also_under_its_own_method(
    receiver: Receiver, deliver: Deliver
) -> None:
    called: list[str] = []
    receiver.on(topic="orders", group="billing")(lambda message: called.append("orders"))
    receiver.on(topic="refunds", group="billing")(lambda message: called.append("refunds"))
    receiver.on(topic="orders", group="audit", method="/acme.A/Take")(lambda message: called.append("audit"))

    for method in (METHOD, "/kafka.consumerproxy.billing/refunds", "/acme.A/Take"):
        assert (await deliver(method)).code == OK

    assert called == ["orders", "refunds", "audit"]


async def test_a_handler_may_be_added_while_the_receiver_runs(receiver: Receiver, deliver: Deliver) -> None:
    assert (await deliver()).code == UNIMPLEMENTED
    receiver.on(topic="orders", group="billing")(lambda message: None)
    assert (await deliver()).code == OK


def no_argument() -> None: ...
def two_arguments(message: Message, other: int) -> None: ...
def named_argument(message: Message, *, other: int) -> None: ...
def only_named(*, message: Message) -> None: ...


@pytest.mark.parametrize("handler", [no_argument, two_arguments, named_argument, only_named])
def test_a_handler_of_another_shape_is_refused_when_it_is_registered(handler: Any) -> None:
    with pytest.raises(TypeError, match=f"{handler.__name__} must take exactly one argument"):
        Receiver().on(topic="orders", group="billing")(handler)


def test_arguments_with_defaults_do_no_harm() -> None:
    def handler(message: Message, times: int = 2, *rest: int, **more: int) -> None: ...

    assert Receiver().on(topic="orders", group="billing")(handler) is handler


def test_a_second_handler_of_the_same_messages_is_refused() -> None:
    receiver = Receiver()
    receiver.on(topic="orders", group="billing")(lambda message: None)

    for method in (None, "/acme.A/Take"):
        with pytest.raises(ValueError, match="has a handler already"):
            receiver.on(topic="orders", group="billing", method=method)(lambda message: None)


async def test_the_test_client_delivers_as_the_network_does(receiver: Receiver) -> None:
    seen: list[Message] = []

    @receiver.on(topic="orders", group="billing", method="/acme.Billing/Take")
    async def take(message: Message) -> Verdict:
        seen.append(message)
        return Stash("no") if message.value == b"bad" else None

    client = receiver.test_client()

    assert await client.deliver(topic="orders", group="billing", value=b"v", key=b"k", attempt=2) == Ack()
    assert await client.deliver(topic="orders", group="billing", value=b"bad") == Stash("no")
    assert seen[0] == Message("orders", "billing", b"v", key=b"k", attempt=2)
    with pytest.raises(KeyError):
        await client.deliver(topic="refunds", group="billing", value=b"")


async def test_the_test_client_raises_the_handlers_error(receiver: Receiver) -> None:
    @receiver.on(topic="orders", group="billing")
    def burst(_: Message) -> Verdict:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await receiver.test_client().deliver(topic="orders", group="billing", value=b"")


async def test_the_test_client_delivers_again_as_retries_do(receiver: Receiver) -> None:
    seen: list[tuple[int, int]] = []

    @receiver.on(topic="orders", group="billing")
    def third_time_lucky(message: Message) -> Verdict:
        seen.append((message.attempt, message.retry_count))
        if len(seen) % 3 == 1:
            raise LookupError("gone")
        return Retry(after=1) if len(seen) % 3 == 2 else None

    client = receiver.test_client()

    assert await client.deliver(topic="orders", group="billing", value=b"", retries=9) == Ack()
    assert seen == [(1, 0), (2, 0), (3, 1)]
    assert await client.deliver(topic="orders", group="billing", value=b"", retries=1) == Retry(after=1)
    assert await client.deliver(topic="orders", group="billing", value=b"") == Ack()
    with pytest.raises(LookupError, match="gone"):
        await client.deliver(topic="orders", group="billing", value=b"")
    with pytest.raises(KeyError):
        await client.deliver(topic="refunds", group="billing", value=b"", retries=1)


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_test_client_delivers_batches(receiver: Receiver, is_async: bool) -> None:
    def take(messages: list[Message]) -> list[Verdict]:
        return [Skip() if message.offset == 8 else None for message in messages]

    async def take_later(messages: list[Message]) -> list[Verdict]:
        return take(messages)

    receiver.on_batch(topic="orders", group="billing")(take_later if is_async else take)
    receiver.on(topic="refunds", group="billing")(lambda message: Stash(message.value.decode()))
    client = receiver.test_client()

    many = await client.deliver_batch(topic="orders", group="billing", values=[b"", b"", b""], offset=7)
    one = await client.deliver(topic="orders", group="billing", value=b"", offset=8)
    other = await client.deliver_batch(topic="refunds", group="billing", values=[b"a", b"b"])

    assert (many, one, other) == ([Ack(), Skip(), Ack()], Skip(), [Stash("a"), Stash("b")])


async def test_a_batch_handler_takes_unary_calls_one_by_one(receiver: Receiver, deliver: Deliver) -> None:
    sizes: list[int] = []
    receiver.on_batch(topic="orders", group="billing")(lambda messages: sizes.append(len(messages)))
    receiver.on_batch(topic="refunds", group="billing")(lambda messages: [None, None])

    assert (await deliver()).code == OK
    assert (await deliver("/kafka.consumerproxy.billing/refunds")).code == INTERNAL
    assert sizes == [1]


async def test_a_receiver_that_stops_turns_new_calls_away(receiver: Receiver, deliver: Deliver) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @receiver.on(topic="orders", group="billing")
    async def wait(_: Message) -> None:
        began.set()
        await go.wait()

    first = asyncio.create_task(deliver())
    async with asyncio.timeout(ENOUGH_S):
        await began.wait()
        stopping = asyncio.create_task(receiver.stop(ENOUGH_S))
        assert (await deliver()).code == UNAVAILABLE
        go.set()
        assert (await first).code == OK
        await stopping


async def test_the_health_service_says_serving(receiver: Receiver) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{await receiver.start()}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=ENOUGH_S)

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_credentials_that_grpc_does_not_take_are_named_with_the_remedy() -> None:
    wrong = grpc.ssl_server_credentials([(b"no key", b"no certificate")])
    with pytest.raises(RuntimeError, match="or the credentials are wrong: check the certificate and its key"):
        await Receiver(credentials=wrong).start()


async def test_a_port_in_use_is_an_error_that_names_it_and_the_remedy(receiver: Receiver) -> None:
    port = await receiver.start()
    with pytest.raises(RuntimeError) as met:
        await Receiver(port=port).start()
    assert str(met.value) == (
        f"cannot listen on 127.0.0.1:{port}: another process listens there; stop that process, or choose "
        "another port (0: a free one)"
    )


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        (
            "203.0.113.7",
            0,
            "203.0.113.7:0: no network interface of this host has that address; listen on 0.0.0.0 or",
        ),
        ("127.0.0.1", 70_000, "127.0.0.1:70000: that is no port; choose one from 0 (a free one) to 65535"),
        ("no such host", 0, "no such host:0: the name 'no such host' does not resolve ("),
    ],
)
async def test_an_address_that_cannot_be_listened_on_is_named_with_reason_and_remedy(
    host: str, port: int, words: str
) -> None:
    with pytest.raises(RuntimeError, match=re.escape(f"cannot listen on {words}")):
        await Receiver(host, port).start()


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
@pytest.mark.parametrize("host", ["::", "::1", "[::1]"])
async def test_a_receiver_listens_on_an_ipv6_address(host: str) -> None:
    started = Receiver(host)
    port = await started.start()
    assert await check_health(f"[::1]:{port}", timeout_s=ENOUGH_S) is ReceiverHealth.SERVING
    await started.stop(0)


def test_an_ipv6_address_is_written_in_brackets_and_others_as_they_are() -> None:
    addresses = [listening_address(host, 1) for host in ("::", "[::]", "fe80::1%eth0", "10.0.0.1", "name")]
    assert addresses == ["[::]:1", "[::]:1", "[fe80::1%eth0]:1", "10.0.0.1:1", "name:1"]


def test_a_receiver_runs_in_a_thread_without_the_programs_signals_until_it_is_shut_down() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    errors: list[threading.ExceptHookArgs] = []
    ports: queue.Queue[int] = queue.Queue()
    receiver = Receiver()
    thread = threading.Thread(target=lambda: asyncio.run(receiver.serve(ports.put)), daemon=True)
    hook, threading.excepthook = threading.excepthook, errors.append
    try:
        thread.start()
        address = f"127.0.0.1:{ports.get(timeout=ENOUGH_S)}"
        assert asyncio.run(check_health(address, timeout_s=ENOUGH_S)) is ReceiverHealth.SERVING
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        receiver.shutdown()
        thread.join(ENOUGH_S)
        assert not thread.is_alive()
        assert asyncio.run(check_health(address, timeout_s=ENOUGH_S)) is ReceiverHealth.UNREACHABLE
        second = threading.Thread(
            target=receiver.run, daemon=True
        )  # it may run again, and end before it began
        receiver.shutdown()
        second.start()
        second.join(ENOUGH_S)
        assert not second.is_alive()
    finally:
        threading.excepthook = hook
    assert errors == []


async def test_more_calls_at_once_than_allowed_are_turned_away_as_overload(call_to: CallTo) -> None:
    receiver, go = Receiver(max_concurrent=2), asyncio.Event()

    @receiver.on(topic="orders", group="billing")
    async def wait(_: Message) -> None:
        await go.wait()

    call = await call_to(receiver)
    calls = [call.begin()[1] for _ in range(5)]
    async with asyncio.timeout(ENOUGH_S):
        turned_away, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        go.set()
        codes = sorted([(await result).code for result in calls])
    assert {result.result().code for result in turned_away} == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
    assert codes[:2] == [OK, OK]
    assert not any(result.result().too_large for result in calls)
