"""Faust channels that keep what is in them.

`app.channel()` uses a flow-controlled queue that Faust *clears* whenever its consumer group has
rebalanced: batches already fetched would vanish and their offsets never finish. The data plane's
channels have a plain bounded queue instead, which no rebalance touches.

Faust takes 30 us or more for an event, and a fetch response has an item for each partition, often of a single
message. So those that come before the agent runs are one event (`FetchedItems`).
"""

from __future__ import annotations

from typing import Any

from faust.channels import Channel
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from app.kafka.fetch.deliveries import FetchItem
from app.worker.jobs.deliveries import FetchedItems


class DataChannel(Channel):  # type: ignore[type-arg]
    """A bounded in-memory channel for fetched items on their way to a channel agent."""

    _last: FetchedItems | None = None

    async def put_item(self, item: FetchItem) -> None:
        """Gives the agent an item, behind the caller's earlier ones; waits while the channel is full."""
        last = self._last
        if last is not None and last.is_open:
            last.add(item)
            return
        items = FetchedItems(item)
        await self.put(items)  # type: ignore[arg-type]  # as Faust does with events of agents
        self._last = items

    @property
    def queue(self) -> Any:
        """The queue behind this channel (made on first use, when the loop runs)."""
        if self._queue is None:
            # A flow control of its own, which Faust does not know and so never suspends or clears.
            flowing = FlowControlEvent(initially_suspended=False)
            self._queue = ThrowableQueue(maxsize=self.maxsize or 64, flow_control=flowing)
        return self._queue
