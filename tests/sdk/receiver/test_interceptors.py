"""Interceptors on the receiving side see every message first and last, and harm none but their own."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from app.dispatch.push.call_result import CallResult
from app.dispatch.push.metadata import MetadataTemplate
from switchyard.receiver import Ack, Message, Outcome, Receiver, Retry, Skip, Stash, Verdict
from tests.dispatch.push.conftest import CallTo, Serve
from tests.dispatch.push.grpc_servers import ENOUGH_S, metadata_of
from tests.dispatch.push.stream_servers import StreamRecord, rows

OK, UNKNOWN, FAILED_PRECONDITION, INTERNAL = 0, 2, 9, 13
KINDS = ["sync", "async", "undeclared", "batch", "async batch"]
TEMPLATE = MetadataTemplate("orders", "billing", 0)


class Decrypt:
    """Reverses the bytes; a value that begins with x is refused, each in another way."""

    def before(self, message: Message) -> Verdict:
        verdicts: dict[bytes, Any] = {
            b"xstash": Stash("not for us"), b"xskip": Skip(), b"xack": Ack(), b"xretry": Retry(after=2),
            b"xnonsense": True,
        }  # fmt: skip
        if message.value == b"xraise":
            raise LookupError("no key")
        if message.value in verdicts:
            return verdicts[message.value]  # type: ignore[no-any-return]
        message.value = message.value[::-1]
        return None


class Watch:
    """Records the outcome of each message."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def after(self, message: Message, outcome: Outcome, took_s: float) -> None:
        assert 0 <= took_s < ENOUGH_S
        self.seen.append((message.offset, repr(outcome)))


def register(receiver: Receiver, kind: str, seen: list[bytes]) -> None:
    """Registers a handler of this kind, which follows the decrypted value."""

    def take(message: Message) -> Any:
        seen.append(message.value)
        if message.value == b"raise":
            raise ValueError("mine")
        return {b"skip": Skip(), b"nonsense": 7}.get(message.value)

    async def take_later(message: Message) -> Any:
        await asyncio.sleep(0)
        return take(message)

    def take_all(messages: list[Message]) -> Any:
        seen.extend(message.value for message in messages)
        return [Skip() if message.value == b"skip" else None for message in messages]

    async def take_all_later(messages: list[Message]) -> Any:
        await asyncio.sleep(0)
        return take_all(messages)

    def undeclared(message: Message) -> Any:
        return take_later(message)

    handlers: dict[str, Any] = {
        "sync": take, "async": take_later, "undeclared": undeclared,
        "batch": take_all, "async batch": take_all_later,
    }  # fmt: skip
    decorate = receiver.on_batch if "batch" in kind else receiver.on
    decorate(topic="orders", group="billing")(handlers[kind])


REFUSED: dict[bytes, tuple[int, str | None, str, str]] = {
    b"xstash": (FAILED_PRECONDITION, "Stash", "interceptor Decrypt: not for us",
                "Stash(reason='interceptor Decrypt: not for us')"),
    b"xskip": (OK, "Skip", "", "Skip()"),
    b"xack": (OK, None, "", "Ack()"),
    b"xretry": (8, "Retry", "retry later", "Retry(after=2)"),
    b"xraise": (UNKNOWN, None, "LookupError: no key", "LookupError('no key')"),
    b"xnonsense": (INTERNAL, None, "interceptor Decrypt returned bool, which is no verdict",
                   "NoVerdict('interceptor Decrypt returned bool, which is no verdict')"),
}  # fmt: skip
PASSED: dict[bytes, tuple[int, str | None, str, str]] = {
    b"ko": (OK, None, "", "Ack()"),
    b"piks": (OK, "Skip", "", "Skip()"),
}
FAILED: dict[bytes, tuple[int, str | None, str, str]] = {
    b"esiar": (UNKNOWN, None, "ValueError: mine", "ValueError('mine')"),
    b"esnesnon": (INTERNAL, None, "the handler returned int, which is no verdict",
                  "NoVerdict('the handler returned int, which is no verdict')"),
}  # fmt: skip


def answers(results: list[CallResult]) -> list[tuple[int, str | None, str]]:
    return [(result.code, result.action, result.details) for result in results]


@pytest.mark.parametrize("contract", ["unary", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_is_changed_refused_and_watched_whatever_its_handler_and_contract(
    serve: Serve, call_to: CallTo, kind: str, contract: str
) -> None:
    seen: list[bytes] = []
    first, last = Watch(), Watch()
    receiver = Receiver(interceptors=[first, Decrypt()])
    register(receiver, kind, seen)
    assert receiver.intercept(last) is last  # also after handlers were registered
    expected = {**REFUSED, **PASSED} if "batch" in kind else {**REFUSED, **PASSED, **FAILED}
    values = [*expected, *expected, b"ko"]

    if contract == "stream":
        sender = await serve(receiver)
        sender.send([StreamRecord(offset, value) for offset, value in enumerate(values)])
        await sender.all_reported()
        results: list[CallResult] = [sender.results[0, index] for index in range(len(values))]
    else:
        call = await call_to(receiver)
        results = [
            await call(value, metadata_of(TEMPLATE, offset, None, [], 0, 0, 1))
            for offset, value in enumerate(values)
        ]

    assert answers(results) == [expected[value][:3] for value in values]
    assert sorted(first.seen) == [(offset, expected[value][3]) for offset, value in enumerate(values)]
    assert sorted(last.seen) == [each for each in sorted(first.seen) if values[each[0]] not in REFUSED]
    assert sorted(seen) == sorted(value[::-1] for value in values if value not in REFUSED)


async def test_an_error_of_a_batch_handler_fails_only_its_messages(serve: Serve) -> None:
    watch = Watch()
    receiver = Receiver(interceptors=[watch, Decrypt()])

    @receiver.on_batch(topic="orders", group="billing")
    def burst(messages: list[Message]) -> Verdict:
        if messages[0].value == b"few":
            return [None]  # type: ignore[return-value]
        raise ValueError("all of them")

    sender = await serve(receiver)
    sender.send([StreamRecord(0, b"a"), StreamRecord(1, b"xstash"), StreamRecord(2, b"b")])
    sender.send([StreamRecord(3, b"wef"), StreamRecord(4, b"xskip"), StreamRecord(5, b"b")])
    sender.send([StreamRecord(6, b"xack"), StreamRecord(7, b"xskip")])
    await sender.all_reported()

    codes = [sender.codes(number) for number in range(3)]
    assert codes == [[UNKNOWN, FAILED_PRECONDITION, UNKNOWN], [INTERNAL, OK, INTERNAL], [OK, OK]]
    assert sender.results[0, 2].details == "ValueError: all of them"
    assert sender.results[1, 0].details == "the handler returned 1 verdicts for 2 messages"
    assert [offset for offset, _ in sorted(watch.seen)] == list(range(8))


async def test_interceptors_run_in_order_and_finish_in_reverse_until_one_refuses() -> None:
    way: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def before(self, message: Message) -> Verdict:
            way.append(f"{self.name} before")
            return Stash("") if message.value == self.name.encode() else None

        def after(self, message: Message, outcome: Outcome, took_s: float) -> None:
            way.append(f"{self.name} after")

    receiver = Receiver(interceptors=[Named("a"), Named("b")])
    receiver.intercept(Named("c"))
    receiver.on(topic="orders", group="billing")(lambda message: way.append("handler"))
    client = receiver.test_client()

    assert await client.deliver(topic="orders", group="billing", value=b"") == Ack()
    assert way == ["a before", "b before", "c before", "handler", "c after", "b after", "a after"]
    way.clear()
    refused = await client.deliver(topic="orders", group="billing", value=b"b")
    assert refused == Stash("interceptor Named: no reason given")
    assert way == ["a before", "b before", "b after", "a after"]


async def test_the_test_client_redelivers_the_sent_message_and_not_an_interceptors_change() -> None:
    seen: list[bytes] = []
    receiver = Receiver(interceptors=[Decrypt()])
    register(receiver, "sync", seen)
    client = receiver.test_client()

    with pytest.raises(ValueError, match="mine"):
        await client.deliver(topic="orders", group="billing", value=b"esiar", retries=2)
    with pytest.raises(LookupError, match="no key"):
        await client.deliver(topic="orders", group="billing", value=b"xraise")
    assert seen == [b"raise"] * 3

    batches = Receiver(interceptors=[Decrypt()])
    register(batches, "batch", seen)
    client = batches.test_client()
    many = await client.deliver_batch(topic="orders", group="billing", values=[b"ko", b"xskip", b"xstash"])
    assert many == [Ack(), Skip(), Stash("interceptor Decrypt: not for us")]
    with pytest.raises(LookupError, match="no key"):
        await client.deliver_batch(topic="orders", group="billing", values=[b"ko", b"xraise"])


async def test_a_cancelled_delivery_is_observed_as_cancelled(serve: Serve) -> None:
    watch, began = Watch(), asyncio.Event()
    receiver = Receiver(interceptors=[watch])

    @receiver.on(topic="orders", group="billing")
    async def wait(_: Message) -> None:
        began.set()
        await asyncio.sleep(ENOUGH_S)

    sender = await serve(receiver)
    batch = sender.send(rows(1))
    await sender.until(began.is_set)
    sender.target.cancel(batch, 0, 1)
    await sender.until(lambda: watch.seen)

    assert watch.seen == [(0, "CancelledError()")]


async def test_an_after_that_fails_changes_no_verdict_and_is_logged_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    class Burst:
        def after(self, message: Message, outcome: Outcome, took_s: float) -> None:
            raise LookupError("metrics are away")

    watch = Watch()
    receiver = Receiver(interceptors=[watch, Burst()])
    receiver.on(topic="orders", group="billing")(lambda message: Skip())
    sender = await serve(receiver)
    with caplog.at_level(logging.ERROR, "switchyard.receiver"):
        sender.send(rows(50))
        await sender.all_reported()

    assert {result.action for result in sender.results.values()} == {"Skip"}
    assert len(watch.seen) == 50
    assert [record.message for record in caplog.records] == [
        "interceptor Burst failed after a message; its verdict stands"
    ]


async def later(message: Message) -> Verdict:
    return None


class Later:
    async def before(self, message: Message) -> Verdict:
        return None


class Short:
    def after(self, message: Message) -> None: ...


WRONG: list[tuple[Any, str]] = [
    (later, "asynchronous"), (Later(), "asynchronous"), (Decrypt, "is a class"), (7, "neither `before`"),
    (Short(), "must take"), (lambda: None, "must take"),
]  # fmt: skip


@pytest.mark.parametrize(("interceptor", "words"), WRONG)
def test_an_invalid_interceptor_is_refused_when_it_is_installed(interceptor: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Receiver(interceptors=[interceptor])
    with pytest.raises(TypeError, match=words):
        Receiver().intercept(interceptor)


def test_without_interceptors_a_handler_is_called_as_it_is() -> None:
    receiver = Receiver()

    def handler(message: Message) -> Verdict:
        return None

    receiver.on(topic="orders", group="billing")(handler)
    route = receiver._routes["billing", "orders"]
    assert route.handler is handler
    receiver.intercept(lambda message: None)
    assert route.handler is not handler
