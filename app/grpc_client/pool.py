"""Several channels to one address, which may be a load balancer's: each leads to another server behind it.

A call goes to the less busy of two channels that are chosen at random. A load balancer of connections sends a
new server no call of a connection that it has. So a channel that is used gets a new connection from time to
time; calls under way end on the former one.

A write costs as much as the rest of a call. So up to `MAX_TOGETHER` calls that begin in the same turn of the
loop share a channel, and are one write.

Source: Envoy's "least request", after Mitzenmacher, "The power of two choices" (1996), and its
`max_connection_duration`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from app.grpc_client.channel import Channel

MAX_TOGETHER = 4  # few: behind a load balancer, they go to the same server
AGE_JITTER = (0.8, 1.2)  # so that channels that were made together do not age together


class Pool:
    """`count` channels, each made by `open_channel`. `max_age_s`: of a connection in use; 0: it has none."""

    def __init__(self, open_channel: Callable[[], Channel], count: int, max_age_s: float = 0.0) -> None:
        self._channels = [open_channel() for _ in range(count)]
        self._used: set[Channel] = set()  # since their last renewal
        self._loop = asyncio.get_running_loop()
        self._chosen: Channel | None = None  # for calls of this turn of the loop
        self._left = 0  # how many more calls it gets
        self._max_age_s = max_age_s
        self._timers: dict[Channel, asyncio.TimerHandle] = {}
        if max_age_s:
            for channel in self._channels:
                self._set_timer(channel)

    def pick(self) -> Channel:
        """The channel for the next call. Others begin to connect if they are not connected."""
        if len(self._channels) == 1:
            channel = self._channels[0]
        elif self._left and self._chosen is not None and self._chosen.is_connected:
            self._left -= 1
            channel = self._chosen
        else:
            channel = self._choose()
            if self._chosen is None:
                self._loop.call_soon(self._end_turn)
            self._chosen, self._left = channel, MAX_TOGETHER - 1
        self._used.add(channel)
        return channel

    def _end_turn(self) -> None:
        self._chosen = None

    def _choose(self) -> Channel:
        one, other = random.sample(self._channels, 2)
        if one.is_connected and other.is_connected:
            return one if one.load <= other.load else other
        one.connect()
        other.connect()
        if one.is_connected or other.is_connected:
            return one if one.is_connected else other
        return next((channel for channel in self._channels if channel.is_connected), one)

    def _set_timer(self, channel: Channel) -> None:
        age_s = self._max_age_s * random.uniform(*AGE_JITTER)  # noqa: S311 - nothing secret
        self._timers[channel] = asyncio.get_running_loop().call_later(age_s, self._renew, channel)

    def _renew(self, channel: Channel) -> None:
        if channel in self._used and channel.is_connected:
            self._used.discard(channel)
            channel.renew()
        self._set_timer(channel)

    async def close(self) -> None:
        """Closes the channels; calls under way end as CANCELLED."""
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(*(channel.close() for channel in self._channels))
