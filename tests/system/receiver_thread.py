"""A receiver in the test's process: the test sees each message and decides the answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from switchyard.receiver import Message, Receiver

READY_TIMEOUT_S = 120.0


class ReceiverThread:
    """Receives a topic's messages for a group at `address` while it is `serving`; `handle` answers each."""

    def __init__(self, topic: str, group: str) -> None:
        self.address = ""
        self._topic, self._group = topic, group
        self._ready, self._ended = threading.Event(), threading.Event()

    def handle(self, message: Message) -> None:
        """Answers one delivery."""
        raise NotImplementedError

    async def _serve(self) -> None:
        receiver = Receiver(port=0)
        receiver.on(topic=self._topic, group=self._group)(self.handle)
        self.address = f"127.0.0.1:{await receiver.start()}"
        self._ready.set()
        await asyncio.to_thread(self._ended.wait)
        await receiver.stop(0)

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Serves while the block lasts."""
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        try:
            assert self._ready.wait(READY_TIMEOUT_S)
            yield self
        finally:
            self._ended.set()
            thread.join()
