"""Interceptors on the receiving side: code of the receiver's that sees every message before its handler does,
and what became of it.

    class Decrypt:
        def before(self, message: Message) -> Verdict:
            if not message.key:
                return Stash("orders have a key")
            message.value = decrypt(message.value)
            return None

    class Measure:
        def after(self, message: Message, outcome: Outcome, took_s: float) -> None:
            SECONDS.labels(message.topic, type(outcome).__name__).observe(took_s)

    receiver = Receiver(interceptors=[Measure(), Decrypt()])

An object has `before`, `after`, or both; a function is a `before` (`@receiver.intercept`). It is the shape of
the sending side's (`app.payload.interceptors`), and both contracts and the test client ask it alike.

Rules
1. In order: each sees the message as the one before it left it; it is changed in place. None goes on. The
   first that returns a verdict ends the row, and the handler does not see the message; of a batch it sees the
   others. A Stash's reason gets the interceptor's name.
2. `after` is told once what became of each message whose row came to it, refused or handled, the last
   interceptor first: the verdict (`Ack()` where the handler returned None), or what was raised, which is
   CancelledError for a delivery that was given up. Given up before its handler began, nothing is told.
3. They are called in the event loop: they must not wait. Coroutine functions are refused.
4. A `before` that raises fails its message and no other, as a handler that raises does: unlike on the sending
   side it is delivered again a few times, since a key server may be away. What can never be read is a Stash.
5. An `after` that raises changes nothing; it is told in the log, once in `LOG_INTERVAL_S`.
6. Where there are none nothing is wrapped, and nothing is paid.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Any, Final, Protocol

from switchyard.receiver.verdicts import (
    Ack,
    Failed,
    Message,
    NoVerdict,
    Retry,
    Skip,
    Stash,
    Verdict,
    checked,
    spread,
)

log = logging.getLogger("switchyard.receiver")

LOG_INTERVAL_S = 60.0
ACK: Final = Ack()

Outcome = Ack | Retry | Stash | Skip | BaseException


class Before(Protocol):
    """Sees messages first. See the module."""

    def before(self, message: Message) -> Verdict:
        """None: go on with the message, as it is now; else what becomes of it."""
        ...


class After(Protocol):
    """Sees what became of messages. See the module."""

    def after(self, message: Message, outcome: Outcome, took_s: float) -> None:
        """`took_s`: since the message's row began, or its batch's."""
        ...


Interceptor = Before | After | Callable[[Message], Verdict]


class _Link:
    __slots__ = ("after", "before", "name", "told_s")

    def __init__(self, interceptor: Any) -> None:
        self.name = getattr(interceptor, "__name__", type(interceptor).__name__)
        self.before: Any = getattr(interceptor, "before", None)
        self.after: Any = getattr(interceptor, "after", None)
        self.told_s = float("-inf")
        if isinstance(interceptor, type):
            raise TypeError(f"interceptor {self.name} is a class; give an instance, {self.name}()")
        if self.before is None and self.after is None:
            if not callable(interceptor):
                raise TypeError(
                    f"interceptor {self.name} has neither `before` nor `after`, and is no function"
                )
            self.before = interceptor
        for method, arguments in ((self.before, "message"), (self.after, "message, outcome, took_s")):
            if method is None:
                continue
            if inspect.iscoroutinefunction(method):
                raise TypeError(f"interceptor {self.name} is asynchronous; it must not wait: use `def`")
            try:
                inspect.signature(method).bind(*arguments.split())
            except TypeError as error:
                raise TypeError(f"interceptor {self.name} must take ({arguments}): {error}") from error

    def judge(self, message: Message) -> Verdict | Failed:
        try:
            verdict: Any = self.before(message)
        except Exception as error:  # noqa: BLE001 - the interceptor's
            return Failed(error)
        if verdict is None or isinstance(verdict, Ack | Retry | Skip):
            return verdict
        if isinstance(verdict, Stash):
            return Stash(f"interceptor {self.name}: {verdict.reason or 'no reason given'}")
        if inspect.iscoroutine(verdict):
            verdict.close()
        return Failed(NoVerdict(f"interceptor {self.name} returned {type(verdict).__name__}, no verdict"))

    def observe(self, message: Message, outcome: Outcome, now_s: float, started_s: float) -> None:
        try:
            self.after(message, outcome, now_s - started_s)
        except Exception:  # rule 5
            if now_s >= self.told_s + LOG_INTERVAL_S:
                self.told_s = now_s
                log.exception("interceptor %s failed after a message; its verdict stands", self.name)


class HandlerChain:
    """Interceptors in a row, around handlers."""

    __slots__ = ("_afters", "_links")

    def __init__(self, interceptors: Iterable[Interceptor] = ()) -> None:
        self._links: list[_Link] = []
        self._afters: list[_Link] = []
        for interceptor in interceptors:
            self.add(interceptor)

    def add(self, interceptor: Interceptor) -> None:
        """Puts it last.

        Raises:
            TypeError: it is none; see the module.
        """
        self._links.append(_Link(interceptor))
        self._afters = _observers(self._links)

    def around(self, handler: Any, *, batch: bool) -> Any:
        """The handler, of a message or of a list of them, as it is without interceptors."""
        if not self._links:
            return handler
        return self._around_batch(handler) if batch else self._around_one(handler)

    def _around_one(self, handler: Callable[[Message], Any]) -> Callable[[Message], Any]:
        def handle(message: Message) -> Any:
            started_s = perf_counter()
            ended = self._before(message, started_s)
            if ended is not None:
                return ended
            try:
                answer = handler(message)
                if answer is not None:
                    if inspect.isawaitable(answer):
                        return finish(message, answer, started_s)
                    checked(answer)
            except Exception as error:
                self._after(message, error, started_s)
                raise
            self._after(message, answer, started_s)
            return answer

        async def finish(message: Message, answer: Awaitable[Any], started_s: float) -> Any:
            try:
                verdict = checked(await answer)
            except (Exception, asyncio.CancelledError) as error:
                self._after(message, error, started_s)
                raise
            self._after(message, verdict, started_s)
            return verdict

        return handle

    def _around_batch(self, handler: Callable[[list[Message]], Any]) -> Callable[[list[Message]], Any]:
        def handle(messages: list[Message]) -> Any:
            started_s = perf_counter()
            verdicts = [self._before(message, started_s) for message in messages]
            passed = [message for message, ended in zip(messages, verdicts, strict=True) if ended is None]
            answer = None
            if passed:
                try:
                    answer = handler(passed)
                    if inspect.isawaitable(answer):
                        return finish(messages, verdicts, passed, answer, started_s)
                except Exception as error:  # noqa: BLE001 - the handler's; what was refused stays refused
                    answer = Failed(error)
            return merge(messages, verdicts, passed, answer, started_s)

        async def finish(
            messages: list[Message], verdicts: list[Any], passed: list[Message], answer: Any, started_s: float
        ) -> list[Any]:
            try:
                answer = await answer
            except asyncio.CancelledError as error:
                for message in passed:
                    self._after(message, error, started_s)
                raise
            except Exception as error:  # noqa: BLE001 - likewise
                answer = Failed(error)
            return merge(messages, verdicts, passed, answer, started_s)

        def merge(
            messages: list[Message], verdicts: list[Any], passed: list[Message], answer: Any, started_s: float
        ) -> list[Any]:
            try:
                said = iter(spread(answer, len(passed)))
            except NoVerdict as error:
                said = iter([Failed(error)] * len(passed))
            for index, message in enumerate(messages):
                if verdicts[index] is None:
                    verdicts[index] = next(said)
                    self._after(message, verdicts[index], started_s)
            return verdicts

        return handle

    def _before(self, message: Message, started_s: float) -> Verdict | Failed:
        """None: to the handler with it."""
        for index, link in enumerate(self._links):
            if link.before is not None and (ended := link.judge(message)) is not None:
                self._notify(_observers(self._links[: index + 1]), message, ended, started_s)
                return ended
        return None

    def _after(self, message: Message, outcome: Verdict | Failed | BaseException, started_s: float) -> None:
        if self._afters:
            self._notify(self._afters, message, outcome, started_s)

    def _notify(
        self,
        links: list[_Link],
        message: Message,
        outcome: Verdict | Failed | BaseException,
        started_s: float,
    ) -> None:
        now_s = perf_counter()
        told = outcome.error if isinstance(outcome, Failed) else ACK if outcome is None else outcome
        for link in links:
            link.observe(message, told, now_s, started_s)


def _observers(links: list[_Link]) -> list[_Link]:
    """Those that want to know, the last one first."""
    return [link for link in reversed(links) if link.after is not None]
