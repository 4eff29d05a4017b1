"""Channels to all servers of a target. A call goes to the less busy of two that are chosen at random.

Source: Envoy's "least request", after Mitzenmacher, "The power of two choices" (1996).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from math import ceil

from app.grpc_client.address import Address
from app.grpc_client.channel import Channel
from app.grpc_client.resolver import Resolver, Target

IDLE_POLL_S = 1.0


class Servers:
    """The channels. `target` is looked up from time to time; a server that comes is connected to at once.

    Args:
        open_channel: Makes the channel to one server.
        at_least: Channels. With fewer servers each has several: a single address may be a virtual one, behind
            which each connection leads to another server.
        connects_ahead: Whether each channel gets a connection before a call wants one.
        looks_up: False: a proxy looks names up.
    """

    def __init__(
        self,
        target: Target,
        open_channel: Callable[[Address], Channel],
        *,
        at_least: int = 1,
        connects_ahead: bool,
        looks_up: bool = True,
    ) -> None:
        self._target = target
        self._open_channel = open_channel
        self._at_least = at_least
        self._connects_ahead = connects_ahead
        self._channels: dict[tuple[Address, int], Channel] = {}  # by server, and a number
        self._listed: list[Channel] = []
        self._leaving: dict[Channel, asyncio.Task[None]] = {}
        self._apply(target.places)  # until names are resolved, and while there is one address
        self._resolver = Resolver(target, self.follow) if looks_up and not target.is_fixed else None

    def pick(self) -> Channel:
        """The channel for the next call."""
        channels = self._listed
        if len(channels) < 2:
            return channels[0]
        one, other = random.sample(channels, 2)
        if one.is_connected and other.is_connected:
            return one if one.load <= other.load else other
        if self._resolver is not None:
            self._resolver.ask()
        if self._connects_ahead:
            one.connect()
            other.connect()
        if one.is_connected or other.is_connected:
            return one if one.is_connected else other
        return next((channel for channel in channels if channel.is_connected), one)

    async def close(self) -> None:
        """Closes the channels; calls under way end as CANCELLED."""
        if self._resolver is not None:
            await self._resolver.close()
        for leaving in self._leaving.values():
            leaving.cancel()
        await asyncio.gather(*(channel.close() for channel in [*self._listed, *self._leaving]))

    def follow(self, addresses: tuple[Address, ...]) -> None:
        """These are the servers from now on. Calls that others have go on."""
        places = self._target.places
        self._apply(places if len(places) == len(addresses) == 1 else addresses)

    def _apply(self, addresses: tuple[Address, ...]) -> None:
        each = ceil(self._at_least / len(addresses))
        wanted = [(address, number) for address in addresses for number in range(each)]
        for name in self._channels.keys() - wanted:
            channel = self._channels.pop(name)
            self._leaving[channel] = asyncio.get_running_loop().create_task(self._leave(channel))
        for name in wanted:
            if name not in self._channels:
                channel = self._channels[name] = self._open_channel(name[0])
                if self._connects_ahead and len(addresses) > 1:
                    channel.connect()
        self._listed = list(self._channels.values())

    async def _leave(self, channel: Channel) -> None:
        """Closes a channel that gets no more calls, once those that it has are over."""
        while channel.load:  # noqa: ASYNC110 - only the connections know
            await asyncio.sleep(IDLE_POLL_S)
        await channel.close()
        del self._leaving[channel]
