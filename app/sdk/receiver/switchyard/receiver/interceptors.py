"""Interceptors: code of the receiver that sees every message before its handler, and every outcome after it.

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

An object has `before`, `after`, or both. A function is a `before` (`@receiver.intercept`). The sending side's
interceptors have the same shape (`app.payload.interceptors`). Both contracts and the test client call them
alike.

Rules
1. Each `before` sees the message as the previous one changed it. None continues with the next one. The first
   verdict ends the chain, and the handler does not see the message; a batch handler still gets the other
   messages. The reason of a Stash begins with the interceptor's name.
2. `after` runs once for each message that reached the interceptor's place in the chain, refused or handled,
   in reverse order. Its outcome is the verdict (`Ack()` for None) or the exception. A cancelled delivery has
   CancelledError, or no `after` at all if its handler had not begun.
3. Interceptors run in the event loop, so they must not wait. Coroutine functions are refused.
4. A `before` that raises fails only its message, as a handler that raises. Unlike on the sending side, it is
   delivered again a few times, because a key server may be away. For a message that no key can decrypt,
   return a Stash.
5. An `after` that raises changes nothing. The error is logged, once in `LOG_INTERVAL_S`.
6. Without interceptors handlers are not wrapped, and cost nothing more.
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
    Renew,
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

Outcome = Ack | Retry | Renew | Stash | Skip | BaseException


class Before(Protocol):
    """An interceptor that sees messages before their handler (rule 1)."""

    def before(self, message: Message) -> Verdict:
        """None: continue with the message as it is now. A verdict ends the chain."""
        ...


class After(Protocol):
    """An interceptor that sees the outcomes of messages (rule 2)."""

    def after(self, message: Message, outcome: Outcome, took_s: float) -> None:
        """`took_s`: the seconds since the chain of the message, or of its batch, began."""
        ...


Interceptor = Before | After | Callable[[Message], Verdict]


class _Link:
    __slots__ = ("after", "before", "logged_s", "name")

    def __init__(self, interceptor: object) -> None:
        self.name = getattr(interceptor, "__name__", type(interceptor).__name__)
        self.before: Any = getattr(interceptor, "before", None)
        self.after: Any = getattr(interceptor, "after", None)
        self.logged_s = float("-inf")
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
                raise TypeError(f"interceptor {self.name} is asynchronous, but must not wait; use `def`")
            try:
                inspect.signature(method).bind(*arguments.split())
            except TypeError as error:
                raise TypeError(f"interceptor {self.name} must take ({arguments}): {error}") from error

    def judge(self, message: Message) -> Verdict | Failed:
        try:
            verdict: Any = self.before(message)
        except Exception as error:  # noqa: BLE001 - the interceptor's
            return Failed(error)
        if verdict is None or isinstance(verdict, Ack | Retry | Renew | Skip):
            return verdict
        if isinstance(verdict, Stash):
            return Stash(f"interceptor {self.name}: {verdict.reason or 'no reason given'}")
        if inspect.iscoroutine(verdict):
            verdict.close()
        return Failed(
            NoVerdict(f"interceptor {self.name} returned {type(verdict).__name__}, which is no verdict")
        )

    def observe(self, message: Message, outcome: Outcome, now_s: float, started_s: float) -> None:
        try:
            self.after(message, outcome, now_s - started_s)
        except Exception:  # rule 5
            if now_s >= self.logged_s + LOG_INTERVAL_S:
                self.logged_s = now_s
                log.exception("interceptor %s failed after a message; its verdict stands", self.name)


class HandlerChain:
    """A chain of interceptors that wraps handlers."""

    __slots__ = ("_afters", "_links")

    def __init__(self, interceptors: Iterable[Interceptor] = ()) -> None:
        self._links: list[_Link] = []
        self._afters: list[_Link] = []
        for interceptor in interceptors:
            self.add(interceptor)

    def add(self, interceptor: Interceptor) -> None:
        """Adds an interceptor at the end.

        Raises:
            TypeError: It is no interceptor (see the module), or asynchronous.
        """
        self._links.append(_Link(interceptor))
        self._afters = _observers(self._links)

    def around(self, handler: Any, *, batch: bool) -> Any:
        """The handler, of a message or of a list, wrapped in the chain; unchanged without interceptors."""
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
        """None: the handler gets the message."""
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
        observed = outcome.error if isinstance(outcome, Failed) else ACK if outcome is None else outcome
        for link in links:
            link.observe(message, observed, now_s, started_s)


def _observers(links: list[_Link]) -> list[_Link]:
    """The interceptors with an `after`, in reverse order."""
    return [link for link in reversed(links) if link.after is not None]
