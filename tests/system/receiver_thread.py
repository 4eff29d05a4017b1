"""A receiver in the test's process: the test sees each message and decides the answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from switchyard.receiver import Message, Receiver

READY_TIMEOUT_S = 120.0


class ReceiverThread:
    """Receives a topic's messages for a group at `address` while it is `serving`; `handle` answers each.
    `options` are those of `Receiver`."""

    def __init__(self, topic: str, group: str, **options: Any) -> None:
        self.address = ""
        self._topic, self._group, self._options = topic, group, options
        self._ready, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None

    def handle(self, message: Message) -> None:
        """Answers one delivery."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        receiver = Receiver(**self._options)
        receiver.on(topic=self._topic, group=self._group)(self.handle)
        self.address = f"127.0.0.1:{await receiver.start()}"
        self._ready.set()
        await asyncio.to_thread(self._ended.wait)
        await receiver.stop(0)

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Serves while the block lasts."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            assert self._ready.wait(READY_TIMEOUT_S)
            if self._error is not None:
                raise self._error
            yield self
        finally:
            self._ended.set()
            thread.join()
