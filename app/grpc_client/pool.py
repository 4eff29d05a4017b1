"""Several channels to one address, which may be a load balancer's: each leads to another server behind it.

A call goes to the less busy of two channels that are chosen at random. A load balancer of connections sends a
new server no call of a connection that it has. So a channel that is used gets a new connection from time to
time; calls under way end on the former one.

Source: Envoy's "least request", after Mitzenmacher, "The power of two choices" (1996), and its
`max_connection_duration`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from app.grpc_client.channel import Channel

AGE_JITTER = (0.8, 1.2)  # so that channels that were made together do not age together


class Pool:
    """`count` channels, each made by `open_channel`. `max_age_s`: of a connection in use; 0: it has none."""

    def __init__(self, open_channel: Callable[[], Channel], count: int, max_age_s: float = 0.0) -> None:
        self._channels = [open_channel() for _ in range(count)]
        self._used: set[Channel] = set()  # since their last renewal
        self._max_age_s = max_age_s
        self._timers: dict[Channel, asyncio.TimerHandle] = {}
        if max_age_s:
            for channel in self._channels:
                self._set_timer(channel)

    def pick(self) -> Channel:
        """The channel for the next call. Others begin to connect if they are not connected."""
        channel = self._pick()
        self._used.add(channel)
        return channel

    def _pick(self) -> Channel:
        channels = self._channels
        if len(channels) == 1:
            return channels[0]
        one, other = random.sample(channels, 2)
        if one.is_connected and other.is_connected:
            return one if one.load <= other.load else other
        one.connect()
        other.connect()
        if one.is_connected or other.is_connected:
            return one if one.is_connected else other
        return next((channel for channel in channels if channel.is_connected), one)

    def _set_timer(self, channel: Channel) -> None:
        age_s = self._max_age_s * random.uniform(*AGE_JITTER)  # noqa: S311 - nothing secret
        self._timers[channel] = asyncio.get_running_loop().call_later(age_s, self._renew, channel)

    def _renew(self, channel: Channel) -> None:
        if channel in self._used and channel.is_connected:
            self._used.discard(channel)
            channel.renew()
            channel.connect()
        self._set_timer(channel)

    async def close(self) -> None:
        """Closes the channels; calls under way end as CANCELLED."""
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(*(channel.close() for channel in self._channels))
