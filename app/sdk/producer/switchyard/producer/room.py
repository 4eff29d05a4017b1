"""Limits the messages and bytes that wait for acknowledgements."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """First come, first served. A message above the whole limit enters when no other is inside."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages = self._bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, nbytes: int) -> None:
        """Waits for room, and takes it."""
        if not self._waiting and self._has(nbytes):
            self._messages += 1
            self._bytes += nbytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, nbytes))
        try:
            await turn
        except BaseException:
            if turn.cancelled():
                self._let_in()  # the next one may fit
            else:
                self.leave(nbytes)
            raise

    def leave(self, nbytes: int) -> None:
        """Returns the room of a message."""
        self._messages -= 1
        self._bytes -= nbytes
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            turn, nbytes = self._waiting[0]
            if not turn.done():
                if not self._has(nbytes):
                    return
                self._messages += 1
                self._bytes += nbytes
                turn.set_result(None)
            self._waiting.popleft()

    def _has(self, nbytes: int) -> bool:
        return not self._messages or (
            self._messages < self._max_messages and self._bytes + nbytes <= self._max_bytes
        )
