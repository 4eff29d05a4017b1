"""Replaces the streams of one endpoint in turn, so that each receiver behind a load balancer gets its part.

A load balancer of connections gives a new receiver no stream that another receiver has.

Rules (tests/dispatch/push/stream/test_replacement.py)
1. Each stream that carries messages is replaced after about `max_age_s`, in turn.
2. The successor is opened first, over a connection of its own. If it fails, the former stream stays.
3. A former stream ends when its messages have their results. There are at most as many as there are streams.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine

from app.dispatch.push.stream.link import StreamLink

JITTER = (0.8, 1.2)  # so that workers that started together do not replace their streams together


class Replacement:
    """Replaces each of `links`, in the list, by one of `make`, while `may_replace` is true.

    Attributes:
        successor: A stream that is not up yet; it is not in the list.
        beside: The successor, and former streams: all that are not in the list.
    """

    def __init__(
        self,
        links: list[StreamLink],
        make: Callable[[], StreamLink],
        may_replace: Callable[[], bool],
        max_age_s: float,
    ) -> None:
        self.successor: StreamLink | None = None
        self.beside: list[StreamLink] = []
        self._links = links
        self._make = make
        self._may_replace = may_replace
        self._turn = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._interval_s = max_age_s / len(links)
        if max_age_s:
            self._set_timer()

    def _set_timer(self) -> None:
        wait_s = self._interval_s * random.uniform(*JITTER)  # noqa: S311 - nothing secret
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._next)

    def _next(self) -> None:
        self._set_timer()
        if self.successor is not None or len(self.beside) >= len(self._links) or not self._may_replace():
            return
        self._turn = (self._turn + 1) % len(self._links)
        if self._links[self._turn].is_used:
            self.successor = self._make()
            self.beside.append(self.successor)
            self.successor.connect()

    def succeed(self) -> None:
        """The successor is up: from now on it gets the messages."""
        assert self.successor is not None
        former, self._links[self._turn] = self._links[self._turn], self.successor
        self.beside.remove(self.successor)
        self.beside.append(former)
        self.successor = None
        self._end(former, former.retire)

    def fail(self) -> None:
        """The successor was lost before it was up."""
        assert self.successor is not None
        failed, self.successor = self.successor, None
        self._end(failed, failed.close)

    def _end(self, link: StreamLink, end: Callable[[], Coroutine[object, object, None]]) -> None:
        async def run() -> None:
            try:
                await end()
            finally:
                self.beside.remove(link)

        task = asyncio.get_running_loop().create_task(run())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Replaces no more; the streams beside the others are closed."""
        if self._timer is not None:
            self._timer.cancel()
        beside = [*self.beside]
        for task in self._ending:
            task.cancel()
        if self._ending:
            await asyncio.wait([*self._ending])
        await asyncio.gather(*(link.close() for link in beside))
