"""Where the servers of a target are: its names are asked by time, and again when a connection fails.

| target                           | its servers                                                       |
|----------------------------------|-------------------------------------------------------------------|
| `host:port`, `dns:///host:port`  | all A and AAAA records, as those of a headless Kubernetes service |
| `ipv4:1.2.3.4:port,5.6.7.8:port` | the addresses; a list may also have names, each with its port     |
| `unix:path`                      | the socket                                                        |

The system looks names up, so `/etc/hosts` counts. It does not tell for how long an answer holds; the interval
is that of Envoy (`dns_refresh_rate`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from app.grpc_client.address import SCHEMES, Address, plain_text

INTERVAL_S = 5.0
MIN_INTERVAL_S = 1.0  # also when many connections fail at once
TIMEOUT_S = 5.0
MAX_ADDRESSES = 1_000


@dataclass(frozen=True, slots=True)
class Target:
    """Where the servers are, as people write it. `places`: names, IP addresses, or one Unix socket."""

    places: tuple[Address, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError: with the value, unless it may contain a password, and the remedy."""
        scheme, _, rest = text.partition(":")
        if scheme.lower() in {"unix", "unix-abstract"}:
            return cls((Address.parse(text),))
        if scheme.lower() not in SCHEMES:
            scheme, rest = "dns", text
        listed = rest.removeprefix("///").split(",")
        if len(listed) > MAX_ADDRESSES:
            raise ValueError(f"address: it lists {len(listed)} servers; write at most {MAX_ADDRESSES}")
        return cls(tuple(Address.parse(f"{scheme}:{place}") for place in listed))

    @property
    def is_fixed(self) -> bool:
        """Whether its servers never change."""
        return all(_needs_no_look_up(place) for place in self.places)

    @property
    def authority(self) -> str:
        """The value of `:authority` for calls to any of its servers: the first name that it has."""
        return self.places[0].authority


class Resolver:
    """Looks a target's servers up, until it is closed.

    Attributes:
        addresses: The last answer's, in a fixed order. They stay when a later look-up fails.
        error: Why the last look-up failed; empty: it did not.
    """

    def __init__(
        self,
        target: Target,
        on_change: Callable[[tuple[Address, ...]], None],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`on_change` gets the addresses, from the event loop, each time that they have changed."""
        self.addresses: tuple[Address, ...] = ()
        self.error = ""
        self._target = target
        self._on_change = on_change
        self._interval_s = interval_s
        self._asked = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def ask(self) -> None:
        """Looks up soon: a server may have gone."""
        self._asked.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._look_up()
            await asyncio.sleep(MIN_INTERVAL_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._interval_s - MIN_INTERVAL_S)):
                    await self._asked.wait()
            self._asked.clear()

    async def _look_up(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await resolve(self._target)
        except TimeoutError:
            self.error = f"the name was not resolved within {TIMEOUT_S:g} s"
        except OSError as error:
            self.error = f"the name was not resolved: {plain_text(str(error))}"
        else:
            self.error = ""
            if found != self.addresses:
                self.addresses = found
                self._on_change(found)


async def resolve(target: Target) -> tuple[Address, ...]:
    """The target's servers, without repetition, in a fixed order.

    Raises:
        OSError: A name has no answer.
    """
    found = await asyncio.gather(*(_addresses_of(place) for place in target.places))
    return tuple(sorted({address for addresses in found for address in addresses}, key=str))[:MAX_ADDRESSES]


async def _addresses_of(place: Address) -> Iterable[Address]:
    if _needs_no_look_up(place):
        return [place]
    found = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    return [Address(_host_of(address), place.port) for *_, address in found]


def _host_of(address: Sequence[object]) -> str:
    """The host of a socket's address; a link-local one has its zone."""
    host = str(address[0])
    return f"{host}%{address[3]}" if len(address) == 4 and address[3] and "%" not in host else host


def _needs_no_look_up(place: Address) -> bool:
    if place.path:
        return True
    try:
        ipaddress.ip_address(place.host.partition("%")[0])
    except ValueError:
        return False
    return True
