"""Faust channels that keep what is in them.

`app.channel()` uses a flow-controlled queue that Faust *clears* whenever its consumer group has
rebalanced: batches already fetched would vanish and their offsets never finish. The data plane's
channels have a plain bounded queue instead, which no rebalance touches.
"""

from __future__ import annotations

from typing import Any

from faust.channels import Channel
from mode.utils.queues import ThrowableQueue


class DataChannel(Channel):  # type: ignore[type-arg]
    """A bounded in-memory channel for batches on their way to a channel agent."""

    @property
    def queue(self) -> ThrowableQueue:
        """The queue behind this channel (made on first use, when the loop runs)."""
        if self._queue is None:
            self._queue = ThrowableQueue(maxsize=self.maxsize or 64)
        return self._queue


def data_channel(app: Any, maxsize: int) -> DataChannel:
    """A channel for `app`'s data plane that holds at most `maxsize` batches."""
    return DataChannel(app, maxsize=maxsize)
