"""Interceptors change only what they may, and a chain bounds the harm of the ones that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from app.payload.interceptors import (
    INTERCEPTOR_STALL_S,
    LOG_INTERVAL_S,
    MAX_REASON_CHARS,
    SEND,
    SLOW_INTERCEPTOR_S,
    InterceptorChain,
    Message,
    Outgoing,
    Reject,
    Send,
    Skip,
)

MESSAGE = Message("orders", 3, 42, b"key", b"value", (("h", b"1"),), 1_000, 1)
SENT = Outgoing(b"value", ())


class Scripted:
    """An interceptor that calls `act` and remembers the messages."""

    def __init__(self, act: Callable[[Message], Any]) -> None:
        self.act = act
        self.saw: list[Message] = []

    def before(self, message: Message) -> Any:
        self.saw.append(message)
        return self.act(message)


def _chain(*acts: Callable[[Message], Any]) -> InterceptorChain:
    return InterceptorChain([(f"i{number}", Scripted(act)) for number, act in enumerate(acts)])


def _raise(error: BaseException) -> Callable[[Message], Any]:
    def act(message: Message) -> Any:
        raise error

    return act


def test_an_interceptor_sees_the_value_of_the_previous_one_and_the_same_identity() -> None:
    first, second = (
        Scripted(lambda m: Send(b"<" + m.value + b">", (("a", "1"),))),
        Scripted(lambda m: Send(m.value * 2)),
    )
    last = Scripted(lambda m: Send(metadata=(("b-bin", b"\xff"),)))
    chain = InterceptorChain([("first", first), ("second", second), ("last", last)])
    assert chain.before(MESSAGE) == Outgoing(b"<value><value>", (("a", "1"), ("b-bin", b"\xff")))
    assert second.saw == [MESSAGE._replace(value=b"<value>")]
    assert last.saw == [MESSAGE._replace(value=b"<value><value>")]
    with pytest.raises(AttributeError):
        MESSAGE.offset = 7  # type: ignore[misc]


def test_a_value_may_become_a_tombstone_and_an_unchanged_value_is_kept() -> None:
    assert _chain(lambda m: Send(None)).before(MESSAGE) == Outgoing(None, ())
    assert _chain(lambda m: SEND, lambda m: Send()).before(MESSAGE) == SENT
    assert _chain(lambda m: Send(None), lambda m: Send()).before(MESSAGE) == Outgoing(None, ())


def test_the_first_reject_or_skip_ends_the_chain() -> None:
    last = Scripted(lambda m: SEND)
    for verdict, expected in [
        (Reject("no"), Reject("interceptor first: no")),
        (Skip("not mine"), Skip("interceptor first: not mine")),
    ]:
        chain = InterceptorChain([("first", Scripted(lambda m, verdict=verdict: verdict)), ("last", last)])
        assert chain.before(MESSAGE) == expected
    assert last.saw == []


@pytest.mark.parametrize(
    "error", [ValueError("secret"), SystemExit("secret"), asyncio.CancelledError(), RecursionError()]
)
def test_an_exception_rejects_this_message_only_and_its_text_stays_secret(error: BaseException) -> None:
    left = [error]

    def act(message: Message) -> Send:
        if left:
            raise left.pop()
        return SEND

    chain = _chain(act)
    assert chain.before(MESSAGE) == Reject(f"interceptor i0 raised {type(error).__name__}")
    assert chain.before(MESSAGE) == SENT


def test_a_keyboard_interrupt_still_ends_the_process() -> None:
    with pytest.raises(KeyboardInterrupt):
        _chain(_raise(KeyboardInterrupt())).before(MESSAGE)


async def _forgotten() -> None:
    """A coroutine that no interceptor may return."""


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda m: None, "returned NoneType"),
        (lambda m: b"bytes", "returned bytes"),
        (lambda m: _forgotten(), "returned coroutine"),
        (lambda m: Send("text"), "sent a value of type str, not bytes"),
        (lambda m: Send(metadata=[("a", "b")]), "metadata as a list"),
        (lambda m: Send(metadata=None), "metadata as a NoneType"),
        (lambda m: Send(metadata=("ab",)), "not a tuple of pairs"),
        (lambda m: Send(metadata=(("A", "b"),)), "name that gRPC refuses"),
        (lambda m: Send(metadata=((7, "b"),)), "name that gRPC refuses"),
        (lambda m: Send(metadata=(("kafka-offset", "7"),)), "'kafka-offset', which is a reserved name"),
        (lambda m: Send(metadata=(("traceparent", "x"),)), "a reserved name"),
        (lambda m: Send(metadata=(("grpc-timeout", "x"),)), "a reserved name"),
        (lambda m: Send(metadata=(("a", b"b"),)), "'a' that is not printable ASCII"),
        (lambda m: Send(metadata=(("a", "b\n"),)), "'a' that is not printable ASCII"),
        (lambda m: Send(metadata=(("a-bin", "b"),)), "'a-bin' that is not bytes"),
        (lambda m: Send(metadata=(("a", "b" * 5000),)), "more than 4096"),
        (lambda m: Reject(None), "no reason given"),
        (lambda m: Skip(""), "no reason given"),
    ],
)
def test_an_invalid_verdict_rejects_the_message_with_a_reason(
    act: Callable[[Message], Any], words: str
) -> None:
    verdict = _chain(lambda m: SEND, act, _raise(AssertionError("not reached"))).before(MESSAGE)
    assert not isinstance(verdict, Outgoing)
    assert words in verdict.reason
    assert "interceptor i1" in verdict.reason


def test_the_metadata_of_all_interceptors_together_is_bounded() -> None:
    add = lambda m: Send(metadata=(("a", "b" * 2000),))  # noqa: E731
    assert isinstance(_chain(add).before(MESSAGE), Outgoing)
    assert isinstance(_chain(add, add, add).before(MESSAGE), Reject)


def test_a_reason_is_made_safe_and_cut() -> None:
    verdict = _chain(lambda m: Reject("\x1b[31m" + "x" * 10_000)).before(MESSAGE)
    assert isinstance(verdict, Reject)
    assert verdict.reason.isprintable()
    assert len(verdict.reason) <= MAX_REASON_CHARS + 50


def test_a_slow_interceptor_is_logged_once_in_an_interval() -> None:
    now = [0.0]

    def slow(message: Message) -> Send:
        now[0] += SLOW_INTERCEPTOR_S * 2
        return SEND

    chain = InterceptorChain(
        [("slow", Scripted(slow)), ("fast", Scripted(lambda m: SEND))], clock=lambda: now[0]
    )
    with structlog.testing.capture_logs() as logged:
        for _ in range(5):
            chain.before(MESSAGE)
        assert len(logged) == 1
        now[0] += LOG_INTERVAL_S
        chain.before(MESSAGE)
    assert [entry["slow"] for entry in logged] == [1, 6]
    assert b"value" not in repr(logged).encode()
    assert {entry["interceptor"] for entry in logged} == {"slow"}


def test_one_slow_call_among_many_is_not_logged_but_a_stall_is() -> None:
    now, took_s = [0.0], [0.0]

    def act(message: Message) -> Send:
        now[0] += took_s[0]
        return SEND

    chain = InterceptorChain([("act", Scripted(act))], clock=lambda: now[0])
    with structlog.testing.capture_logs() as logged:
        for _ in range(200):
            chain.before(MESSAGE)
        took_s[0] = SLOW_INTERCEPTOR_S * 2
        chain.before(MESSAGE)
        assert logged == []
        took_s[0] = INTERCEPTOR_STALL_S * 2
        chain.before(MESSAGE)
    assert [entry["slow"] for entry in logged] == [2]


def _anything() -> st.SearchStrategy[Any]:
    leaf = st.one_of(st.none(), st.binary(max_size=4), st.text(max_size=4), st.integers())
    return st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=6
    )


@given(st.lists(st.one_of(_anything(), st.builds(Send, _anything(), _anything())), max_size=3))
def test_any_returned_object_becomes_a_valid_verdict(results: list[Any]) -> None:
    verdict = _chain(*(lambda m, result=result: result for result in results)).before(MESSAGE)
    if isinstance(verdict, Outgoing):
        assert verdict.value is None or isinstance(verdict.value, bytes)
        assert all(
            isinstance(name, str) and isinstance(value, str | bytes) for name, value in verdict.metadata
        )
    else:
        assert isinstance(verdict, Reject)
        assert verdict.reason
