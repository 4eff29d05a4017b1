"""Channels to all servers of a target. A call goes to the less busy of two that are chosen at random.

Source: Envoy's "least request", after Mitzenmacher, "The power of two choices" (1996).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from app.grpc_client.address import Address
from app.grpc_client.channel import Channel
from app.grpc_client.resolver import Resolver, Target

IDLE_POLL_S = 1.0


class Servers:
    """The channels. `target` is looked up from time to time; a server that comes is connected to at once.

    Args:
        open_channel: Makes the channel to one server.
        connects_ahead: Whether each server gets a connection before a call wants one.
        looks_up: False: a proxy looks names up.
    """

    def __init__(
        self,
        target: Target,
        open_channel: Callable[[Address], Channel],
        *,
        connects_ahead: bool,
        looks_up: bool = True,
    ) -> None:
        self._target = target
        self._open_channel = open_channel
        self._connects_ahead = connects_ahead
        self._channels: dict[Address, Channel] = {}
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
        for address in [address for address in self._channels if address not in addresses]:
            channel = self._channels.pop(address)
            self._leaving[channel] = asyncio.get_running_loop().create_task(self._leave(channel))
        for address in addresses:
            if address not in self._channels:
                channel = self._channels[address] = self._open_channel(address)
                if self._connects_ahead and len(addresses) > 1:
                    channel.connect()
        self._listed = list(self._channels.values())

    async def _leave(self, channel: Channel) -> None:
        """Closes a channel that gets no more calls, once those that it has are over."""
        while channel.load:  # noqa: ASYNC110 - only the connections know
            await asyncio.sleep(IDLE_POLL_S)
        await channel.close()
        del self._leaving[channel]
