"""`Audit` and `SyncAudit`: an audit with and without asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from switchyard.audit.background_thread import Auditing
from switchyard.audit.python310 import TIMEOUTS

if TYPE_CHECKING:
    from typing_extensions import Self


class Audit(Auditing):
    """The audit of an asyncio client. Its counting functions may be called from any thread.

    `Auditing` has the arguments, `Counting` the counting functions.
    """

    async def start(self) -> None:
        """Takes over the unsent counts of an earlier process, and begins to send. Raises AuditError."""
        await asyncio.to_thread(self._start)

    async def logged(self, timeout_s: float = 5.0) -> bool:
        """Waits until all earlier counts are in the log; False: they are not, or not in time."""
        waiter = asyncio.wrap_future(self._request_logging())
        done, _ = await asyncio.wait([waiter], timeout=timeout_s)
        return bool(done) and waiter.result()

    async def close(self, timeout_s: float = 10.0) -> bool:
        """Sends the remaining counts.

        False: some were not acknowledged in time, and the log keeps them for the next start. Or the receiver
        refused some, and they stay in the log's folder.
        """
        self._request_close(timeout_s)
        return await asyncio.to_thread(self._wait_for_thread, timeout_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncAudit(Auditing):
    """`Audit` for clients without asyncio, with any number of threads."""

    def start(self) -> None:
        """As `Audit.start`."""
        self._start()

    def logged(self, timeout_s: float = 5.0) -> bool:
        """As `Audit.logged`."""
        try:
            return self._request_logging().result(timeout_s)
        except TIMEOUTS:
            return False

    def close(self, timeout_s: float = 10.0) -> bool:
        """As `Audit.close`."""
        self._request_close(timeout_s)
        return self._wait_for_thread(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
