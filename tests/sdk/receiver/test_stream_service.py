"""The receiver SDK on the stream contract: verdicts, credit, concurrency, cancellation, graceful stop."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from app.dispatch.push.health import ReceiverHealth
from app.dispatch.push.stream.client import METHOD
from switchyard.receiver import Ack, Message, Receiver, Renew, Retry, Skip, Stash, Verdict
from switchyard.receiver.outcomes import StreamOutcomes
from switchyard.v1.receiver_pb2 import DeliverRequest, DeliverResponse
from tests.dispatch.push.conftest import Serve
from tests.dispatch.push.grpc_servers import ENOUGH_S, check_health
from tests.dispatch.push.stream_servers import EOF, StreamRecord, rows

OK, CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 1, 2, 4, 12, 13, 14
RESOURCE_EXHAUSTED = 8
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def judge(message: Message) -> Any:
    """Returns the verdict that the value names."""
    word = message.value.decode()
    if word == "raise":
        raise LookupError("no such order ü")
    verdicts = {
        "none": None, "ack": Ack(), "skip": Skip(), "retry": Retry(), "later": Retry(after=2.5),
        "renew": Renew(7), "stash": Stash("kaputt: ü"), "surrogate": Stash("\ud800"),
        "nonsense": 7, "true": True,
    }  # fmt: skip
    return verdicts[word]


EXPECTED = {
    "none": (OK, None, "", None), "ack": (OK, None, "", None), "skip": (OK, "Skip", "", None),
    "retry": (8, "Retry", "retry later", None), "later": (8, "Retry", "retry later", 2.5),
    "renew": (8, "Renew", "the receiver asks for more time", None),
    "stash": (9, "Stash", "kaputt: ü", None), "surrogate": (9, "Stash", "?", None),
    "raise": (UNKNOWN, None, "LookupError: no such order ü", None),
    "nonsense": (INTERNAL, None, "the handler returned int, which is no verdict", None),
    "true": (INTERNAL, None, "the handler returned bool, which is no verdict", None),
}  # fmt: skip


def in_line(receiver: Receiver) -> None:
    receiver.on(topic="orders", group="billing")(judge)


def as_tasks(receiver: Receiver) -> None:
    @receiver.on(topic="orders", group="billing")
    async def later(message: Message) -> Verdict:
        await asyncio.sleep(0.001)
        verdict: Verdict = judge(message)
        return verdict


def undeclared(receiver: Receiver) -> None:
    """A sync handler that sometimes returns an awaitable."""

    async def later(message: Message) -> Any:
        return judge(message)

    receiver.on(topic="orders", group="billing")(
        lambda message: later(message) if message.offset % 3 == 1 else judge(message)
    )


@pytest.mark.parametrize("register", [in_line, as_tasks, undeclared])
async def test_each_message_gets_its_own_handlers_verdict(
    serve: Serve, register: Callable[[Receiver], None]
) -> None:
    receiver = Receiver()
    register(receiver)
    sender = await serve(receiver)
    words = [*EXPECTED, "ack", "ack", "raise", *EXPECTED]

    sender.send([StreamRecord(offset, word.encode()) for offset, word in enumerate(words)])
    await sender.all_reported()

    results = [sender.results[0, index] for index in range(len(words))]
    assert [(each.code, each.action, each.details, each.retry_after_s) for each in results] == [
        EXPECTED[word] for word in words
    ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_batch_handler_gets_lists_in_order_and_answers_each_or_all(
    serve: Serve, is_async: bool
) -> None:
    receiver = Receiver()
    seen: list[Any] = []

    def take(messages: list[Message]) -> Any:
        seen.extend(message.offset for message in messages)
        match messages[0].value:
            case b"all":
                return Skip()
            case b"each":
                return [judge(Message("", "", b"retry" if each.offset % 2 else b"ack")) for each in messages]
            case b"few":
                return [None]
            case b"raise":
                raise LookupError("gone")
        return None

    async def take_later(messages: list[Message]) -> Any:
        return take(messages)

    receiver.on_batch(topic="orders", group="billing")(take_later if is_async else take)
    sender = await serve(receiver)
    for value in (b"none", b"all", b"each", b"few", b"raise"):
        sender.send(rows(4, value))
        await sender.all_reported()

    assert seen == [0, 1, 2, 3] * 5
    assert [sender.codes(number) for number in range(5)] == [
        [OK] * 4, [OK] * 4, [OK, 8, OK, 8], [INTERNAL] * 4, [UNKNOWN] * 4,
    ]  # fmt: skip
    assert sender.results[1, 0].action == "Skip"
    assert "1 verdicts for 4 messages" in sender.results[3, 0].details


async def test_the_message_equals_the_record(serve: Serve) -> None:
    receiver = Receiver()
    seen: list[Any] = []
    receiver.on(topic="orders", group="billing")(seen.append)
    sender = await serve(receiver)
    record = StreamRecord(
        1 << 40,
        None,
        b"",
        -1,
        [
            ("Töpic", None),
            ("traceparent", TRACE),
            ("x", b"\xff"),
        ],
    )

    sender.send([record], partition=7, retry_count=2, attempt=9)
    await sender.all_reported()

    assert seen == [
        Message(
            "orders", "billing", b"", 7, 1 << 40, b"",
            [("töpic", b""), ("traceparent", TRACE), ("x", b"\xff")], -1, 2, 9, TRACE.decode(),
            tombstone=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "size", "code"),
    [(2_000, 1_000, OK), (2_000, 3_000, RESOURCE_EXHAUSTED), (-1, 17 << 20, OK), (20 << 20, 17 << 20, OK)],
)
async def test_the_size_that_the_server_takes_is_the_operators(
    serve: Serve, limit: int, size: int, code: int
) -> None:
    receiver = Receiver(options=[("grpc.max_receive_message_length", limit)])
    receiver.on(topic="orders", group="billing")(lambda _: None)
    sender = await serve(receiver)
    sender.send([StreamRecord(0, bytes(size)), StreamRecord(1, b"small")])
    await sender.all_reported()

    assert sender.codes(0) == [code, OK]
    assert sender.results[0, 0].too_large == (code != OK)


async def test_a_large_message_does_not_wait_for_those_in_flight(serve: Serve) -> None:
    receiver = Receiver(options=[("grpc.max_receive_message_length", 20 << 20)])
    large_is_here = asyncio.Event()

    @receiver.on(topic="orders", group="billing")
    async def take(message: Message) -> None:
        if len(message.value) > 1_000:
            large_is_here.set()
        await large_is_here.wait()

    sender = await serve(receiver)
    sender.send([StreamRecord(0, b"small"), StreamRecord(1, bytes(17 << 20))])
    await sender.all_reported()
    assert sender.codes(0) == [OK, OK]


async def test_a_hundred_thousand_messages_are_handled_once_each_in_order(serve: Serve) -> None:
    receiver, seen = Receiver(window=3_000, window_bytes=300_000), []
    receiver.on(topic="orders", group="billing")(lambda message: seen.append(message.offset))
    sender = await serve(receiver)

    for start in range(0, 100_000, 250):
        sender.send([StreamRecord(offset, b"x" * 200) for offset in range(start, start + 250)])
    await sender.all_reported()

    assert seen == list(range(100_000))
    assert {result.code for result in sender.results.values()} == {OK}


async def test_tasks_are_bounded_and_a_stuck_one_delays_no_other(serve: Serve) -> None:
    receiver, go = Receiver(max_tasks=20, window=100, window_bytes=20_000), asyncio.Event()
    running = most = 0

    @receiver.on(topic="orders", group="billing")
    async def work(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await (go.wait() if message.offset == 5 else asyncio.sleep(0.001))
        running -= 1

    sender = await serve(receiver)
    for start in range(0, 2_000, 50):
        sender.send([StreamRecord(offset, bytes(100)) for offset in range(start, start + 50)])
    await sender.until(lambda: len(sender.reported) == 1_999)
    assert (0, 5) not in sender.reported
    assert most == 20
    go.set()
    await sender.all_reported()


async def test_a_slow_sync_handler_delays_neither_results_nor_health_checks(serve: Serve) -> None:
    receiver, blocked = Receiver(), threading.Event()

    def slow(_: Message) -> None:
        blocked.wait(0.01)

    receiver.on(topic="orders", group="billing")(slow)
    sender = await serve(receiver)
    sender.send(rows(300))

    assert await check_health(f"127.0.0.1:{receiver.port}", timeout_s=ENOUGH_S) is ReceiverHealth.SERVING
    await sender.until(lambda: sender.reported)
    assert len(sender.reported) < 300
    blocked.set()
    await sender.all_reported()


async def test_a_delivery_that_timed_out_is_cancelled_at_the_receiver_and_frees_its_place(
    serve: Serve,
) -> None:
    receiver, canceled = Receiver(max_tasks=3, window=6), []

    @receiver.on(topic="orders", group="billing")
    async def stick(message: Message) -> None:
        if message.value == b"stuck":
            try:
                await asyncio.sleep(ENOUGH_S * 2)
            except asyncio.CancelledError:
                canceled.append(message.offset)
                raise

    sender = await serve(receiver, timeout_s=1.0)
    await sender.connected()
    sender.send(rows(6, b"stuck"))
    await sender.all_reported()
    assert sender.codes() == [DEADLINE_EXCEEDED] * 6
    sender.target.timeout_s = ENOUGH_S
    for _ in range(4):
        sender.send(rows(5))
        await sender.all_reported()

    assert canceled == [0, 1, 2]
    assert {code for number in range(1, 5) for code in sender.codes(number)} == {OK}


async def test_a_handler_that_gives_up_by_itself_fails_its_message(serve: Serve) -> None:
    receiver = Receiver()

    @receiver.on(topic="orders", group="billing")
    async def give_up(_: Message) -> None:
        raise asyncio.CancelledError

    sender = await serve(receiver)
    sender.send(rows(1))
    await sender.all_reported()

    assert sender.codes() == [UNKNOWN]


async def test_handlers_of_a_stream_that_is_gone_are_canceled(serve: Serve) -> None:
    receiver, began, ended = Receiver(), [], []

    @receiver.on(topic="orders", group="billing")
    async def wait(message: Message) -> None:
        began.append(message.offset)
        try:
            await asyncio.sleep(ENOUGH_S * 2)
        finally:
            ended.append(message.offset)

    sender = await serve(receiver)
    sender.send(rows(5))
    await sender.until(lambda: len(began) == 5)
    await sender.target.close()
    await sender.until(lambda: len(ended) == 5)
    assert sender.codes() == [CANCELLED] * 5


async def test_messages_without_a_handler_here_are_not_dead_lettered(serve: Serve) -> None:
    sender = await serve(Receiver())
    sender.send(rows(2))
    await sender.all_reported()
    assert sender.codes() == [UNIMPLEMENTED] * 2
    assert "there is no handler for billing/orders" in sender.lost[0].details


async def test_a_receiver_of_unary_calls_only_says_so(serve: Serve) -> None:
    receiver = Receiver(stream=False)
    receiver.on(topic="orders", group="billing")(lambda message: None)
    sender = await serve(receiver)
    sender.send(rows(2))
    await sender.all_reported()
    assert sender.target.supported is False


async def test_a_receiver_that_stops_reports_it_first_and_then_finishes_its_deliveries(serve: Serve) -> None:
    receiver, began, go = Receiver(), asyncio.Event(), asyncio.Event()

    @receiver.on(topic="orders", group="billing")
    async def wait(_: Message) -> Skip:
        began.set()
        await go.wait()
        return Skip()

    sender = await serve(receiver)
    sender.send(rows(1))
    await sender.until(began.is_set)
    stopping = asyncio.create_task(receiver.stop(ENOUGH_S))
    async with asyncio.timeout(ENOUGH_S), aio.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        status = health_pb2.HealthCheckResponse.SERVING
        while status == health_pb2.HealthCheckResponse.SERVING:
            status = (await stub.Check(health_pb2.HealthCheckRequest())).status
    assert status == health_pb2.HealthCheckResponse.NOT_SERVING
    sender.send(rows(3))  # too late: not handled here; the worker delivers them to another receiver
    assert not stopping.done()
    go.set()
    await sender.all_reported()
    await stopping

    assert (sender.codes(), sender.results[0, 0].action) == ([OK], "Skip")
    assert sender.codes(1) == [UNAVAILABLE] * 3


async def test_draining_finishes_running_deliveries(serve: Serve) -> None:
    receiver, began, go = Receiver(), asyncio.Event(), asyncio.Event()

    @receiver.on(topic="orders", group="billing")
    async def wait(_: Message) -> None:
        began.set()
        await go.wait()

    sender = await serve(receiver)
    sender.send(rows(3))
    await sender.until(began.is_set)
    draining = asyncio.create_task(sender.target.drain())
    await asyncio.sleep(0.05)  # a drain that does not wait would end here
    assert not draining.done()
    go.set()
    async with asyncio.timeout(ENOUGH_S):
        await draining

    assert sender.codes() == [OK] * 3
    assert not sender.lost


async def read_all(call: Any) -> None:
    """Reads a stream to its end."""
    while await call.read() is not EOF:
        pass


OPEN = {"group": "billing", "topic": "orders"}
WRONG: dict[str, list[Any]] = {
    "no open": [{"batches": [{"messages": [{}]}]}],
    "a gap": [{"open": OPEN}, {"batches": [{"first_delivery": 1, "messages": [{}]}]}],
    "beyond the credit": [{"open": OPEN}, {"batches": [{"messages": [{}] * 11}]}],
    "no protobuf": [{"open": OPEN}, b"\xff\xff"],
}


@pytest.mark.parametrize("requests", WRONG.values(), ids=WRONG)
async def test_a_sender_that_breaks_the_contract_gets_the_reason(serve: Serve, requests: list[Any]) -> None:
    receiver = Receiver(window=10)
    receiver.on(topic="orders", group="billing")(lambda message: None)
    await serve(receiver)

    async with aio.insecure_channel(f"127.0.0.1:{receiver.port}") as channel, asyncio.timeout(ENOUGH_S):
        method: Any = channel.stream_stream(METHOD, None, None)
        call = method()
        for request in requests:
            await call.write(
                request if isinstance(request, bytes) else DeliverRequest(**request).SerializeToString()
            )
        with pytest.raises(aio.AioRpcError) as error:
            await read_all(call)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("limits", [{"window": 0}, {"window_bytes": 0}, {"max_tasks": -1}])
def test_impossible_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Receiver(**limits)


def test_acknowledgements_in_any_order_become_the_fewest_ranges() -> None:
    outcomes = StreamOutcomes()
    for number in (5, 3, 4, 9, 0):
        outcomes.add(number, Ack())
    outcomes.acknowledge(6, 9)
    outcomes.acknowledge(20, 30)
    outcomes.acknowledge(7, 7)
    response = DeliverResponse()

    assert outcomes.count == 7
    outcomes.take_into(response)

    ranges = [(span.start, span.end) for span in response.results.acknowledged]
    assert ranges == [(0, 1), (3, 10), (20, 30)]
    assert outcomes.count == 0


@pytest.mark.parametrize("batch", [False, True])
async def test_a_handler_asks_for_more_time_from_its_task_and_from_a_thread(
    serve: Serve, batch: bool
) -> None:
    receiver = Receiver()

    async def take_long(message: Message) -> None:
        if message.offset % 2:
            assert await asyncio.to_thread(message.renew, 60.0)
        else:
            assert message.renew(60.0)
        assert 50 < message.time_left() <= 60

    async def take_one(message: Message) -> None:
        await take_long(message)
        await asyncio.sleep(4.0)

    async def take_all(messages: list[Message]) -> None:
        for message in messages:
            await take_long(message)
        await asyncio.sleep(4.0)

    if batch:
        receiver.on_batch(topic="orders", group="billing")(take_all)
    else:
        receiver.on(topic="orders", group="billing")(take_one)
    sender = await serve(receiver, timeout_s=2.5)
    await sender.connected()
    sender.send(rows(20), longest_s=600.0)
    await sender.all_reported()
    assert set(sender.codes()) == {OK}


async def test_a_message_knows_the_most_time_that_it_can_have(serve: Serve) -> None:
    receiver, left = Receiver(), list[tuple[bool, float]]()

    @receiver.on(topic="orders", group="billing")
    async def handle(message: Message) -> None:
        for seconds in (30.0, 600.0, 600.0, 30.0):
            left.append((message.renew(seconds), message.time_left()))

    sender = await serve(receiver, timeout_s=20.0)
    await sender.connected()
    sender.send(rows(1), longest_s=100.0)
    await sender.all_reported()
    answers, times_s = zip(*left, strict=True)
    assert answers == (True, True, False, True), "it has what it asked for last"
    assert 20 < times_s[0] <= 30
    assert all(50 < one <= 100 for one in times_s[1:])


async def test_a_wrong_wish_fails_its_message_only_and_a_message_can_be_copied(serve: Serve) -> None:
    receiver, copies = Receiver(), []

    @receiver.on(topic="orders", group="billing")
    async def handle(message: Message) -> None:
        copies.append((dataclasses.asdict(message), copy.deepcopy(message), ForkingPickler.dumps(message)))
        wrong: Any = timedelta(seconds=60)
        message.renew(wrong if message.offset == 3 else 60.0)

    sender = await serve(receiver)
    sender.send(rows(10), longest_s=ENOUGH_S)
    await sender.all_reported()
    assert sender.codes() == [UNKNOWN if offset == 3 else OK for offset in range(10)]
    assert "TypeError" in sender.results[0, 3].details
    _, copied, pickled = copies[0]
    for again in (copied, ForkingPickler.loads(pickled)):
        assert (again.renew(5.0), again.time_left()) == (False, math.inf)


async def test_messages_ask_for_no_time_when_they_have_ended(serve: Serve) -> None:
    receiver, seen = Receiver(), list[Message]()

    @receiver.on(topic="orders", group="billing")
    async def handle(message: Message) -> None:
        seen.append(message)
        assert message.renew(5.0)

    sender = await serve(receiver)
    sender.send(rows(3), longest_s=ENOUGH_S)
    await sender.all_reported()
    assert [message.renew(5.0) for message in seen] == [False] * 3


async def test_a_sender_that_does_not_know_more_time_is_not_asked_for_it() -> None:
    """Its message is retried."""
    receiver, asked = Receiver(), []

    @receiver.on(topic="orders", group="billing")
    def renew(message: Message) -> Verdict:
        asked.append(message.renew(5.0))
        return Renew(5.0, after=2.0)

    async with aio.insecure_channel(f"127.0.0.1:{await receiver.start()}") as channel:
        call: Any = channel.stream_stream(METHOD, None, None)()
        opened = {"group": "billing", "topic": "orders"}
        batch = {"first_delivery": 0, "messages": [{"value": b"v"}]}
        await call.write(DeliverRequest(open=opened, batches=[batch]).SerializeToString())
        answer = DeliverResponse()
        while not answer.HasField("results"):
            answer = DeliverResponse.FromString(await call.read())
    await receiver.stop(0)
    assert asked == [False]
    (retried,) = answer.results.retried
    assert (retried.deliveries.end, retried.after_ms) == (1, 2_000)
    assert not answer.results.renewed
    assert not answer.renewals
