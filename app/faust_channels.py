"""Faust channels that keep what is in them.

`app.channel()` uses a flow-controlled queue that Faust *clears* whenever its consumer group has
rebalanced: batches already fetched would vanish and their offsets never finish. The data plane's
channels have a plain bounded queue instead, which no rebalance touches.
"""

from __future__ import annotations

from typing import Any

from faust.channels import Channel
from mode.utils.queues import FlowControlEvent, ThrowableQueue


class DataChannel(Channel):  # type: ignore[type-arg]
    """A bounded in-memory channel for batches on their way to a channel agent."""

    @property
    def queue(self) -> Any:
        """The queue behind this channel (made on first use, when the loop runs)."""
        if self._queue is None:
            # A flow control of its own, which Faust does not know and so never suspends or clears.
            flowing = FlowControlEvent(initially_suspended=False)
            self._queue = ThrowableQueue(maxsize=self.maxsize or 64, flow_control=flowing)
        return self._queue
