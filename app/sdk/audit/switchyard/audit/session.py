"""What a client makes: an audit, with or without asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from switchyard.audit.background_thread import Auditing
from switchyard.audit.python310 import TIMEOUTS

if TYPE_CHECKING:
    from typing_extensions import Self


class Audit(Auditing):
    """An audit of asyncio clients; its counting functions may be called from any thread. See `Auditing` for
    the arguments, `Counting` for the counting functions."""

    async def start(self) -> None:
        """Takes over what an earlier process has left, and begins to send. Raises AuditError."""
        await asyncio.to_thread(self._start)

    async def logged(self, timeout_s: float = 5.0) -> bool:
        """Waits until all that was counted before is in the log; False: it is not, for now or in time."""
        waiter = asyncio.wrap_future(self._logged_soon())
        done, _ = await asyncio.wait([waiter], timeout=timeout_s)
        return bool(done) and waiter.result()

    async def close(self, timeout_s: float = 10.0) -> bool:
        """Sends what was counted. False: not all was acknowledged in time, and the log keeps it for the next;
        or the receiver refused some, which stay in the log's folder."""
        self._close_soon(timeout_s)
        return await asyncio.to_thread(self._joined, timeout_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncAudit(Auditing):
    """`Audit` for clients without asyncio, in as many threads as they like."""

    def start(self) -> None:
        """As `Audit.start`."""
        self._start()

    def logged(self, timeout_s: float = 5.0) -> bool:
        """As `Audit.logged`."""
        try:
            return self._logged_soon().result(timeout_s)
        except TIMEOUTS:
            return False

    def close(self, timeout_s: float = 10.0) -> bool:
        """As `Audit.close`."""
        self._close_soon(timeout_s)
        return self._joined(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
