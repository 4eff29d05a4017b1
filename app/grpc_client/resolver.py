"""Looks up the servers of a target (`app.grpc_client.target`): by time, and again when a connection fails.

Rules
1. A look-up that fails takes no address away: a name keeps those of its last answer. So a fault of DNS, or of
   one name in a list, stops nothing. If no name has an address, all former ones stay.
2. The lowest priority of a service's SRV records decides. Others are for failover: they are used while no
   server of a lower priority has an address. Weights are not used: all servers get calls.
3. The event loop opens no file and waits for nothing: look-ups run in threads of their own. The system cannot
   give one up, so a name without an answer keeps its thread for some time. A resolver has `SLOTS` at most, so
   that the others have theirs.
4. Names are looked up in another order each time, so that the last ones of a list have their turn.

The system looks names up, so `/etc/hosts` counts. dnspython looks SRV records up, for which the system has
no function. The answers' times to live are not used; the interval is that of Envoy (`dns_refresh_rate`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import dns.name
import dns.resolver
from dns.exception import DNSException
from dns.rdtypes.IN.SRV import SRV

from app.grpc_client.address import Address, plain_text
from app.grpc_client.target import MAX_ADDRESSES, Target, needs_look_up

INTERVAL_S = 5.0
MIN_INTERVAL_S = 1.0  # also when many connections fail at once
TIMEOUT_S = 5.0
THREADS = 32
SLOTS = 2  # threads of one resolver
SERVICE_TIMEOUT_S = 4.0  # shorter, so that dnspython can say which DNS server did not answer

T = TypeVar("T")

_look_ups = ThreadPoolExecutor(THREADS, thread_name_prefix="look-up")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a look-up found.

    Attributes:
        by_place: The addresses of each place that is used; none, if no look-up of it has ever succeeded.
        error: Which names have no answer, and why; empty: all have one.
    """

    by_place: Mapping[Address, frozenset[Address]] = field(default_factory=dict)
    error: str = ""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Without repetition, in a fixed order."""
        return tuple(sorted(frozenset().union(*self.by_place.values()), key=str))[:MAX_ADDRESSES]


class Resolver:
    """Looks a target's servers up, until it is closed.

    Attributes:
        addresses: The last answer's, in a fixed order.
        error: Why the last look-up failed, or failed in part; empty: it did not.
    """

    def __init__(
        self,
        target: Target,
        on_change: Callable[[tuple[Address, ...]], None],
        *,
        on_fault: Callable[[], None] = lambda: None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`on_change` gets the addresses, from the event loop, each time that they have changed. `on_fault`
        is called when look-ups begin to fail, and when they succeed again."""
        self.addresses: tuple[Address, ...] = ()
        self.error = ""
        self._target = target
        self._on_change = on_change
        self._on_fault = on_fault
        self._interval_s = interval_s
        self._answer = Answer()
        self._slots = asyncio.Semaphore(SLOTS)
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
        self._answer = await resolve(self._target, self._answer, self._slots)
        was_failing = bool(self.error)
        self.error = self._answer.error
        found = self._answer.addresses
        if found != self.addresses:
            self.addresses = found
            self._on_change(found)
        elif bool(self.error) != was_failing:
            self._on_fault()


async def resolve(
    target: Target, former: Answer | None = None, slots: asyncio.Semaphore | None = None
) -> Answer:
    """Looks the target's servers up. A name without an answer keeps its addresses of the former one.

    Args:
        slots: How many look-ups may run at once.
    """
    known = {} if former is None else former.by_place
    slots = slots or asyncio.Semaphore(SLOTS)
    servers = _Servers([list(target.places)])
    if target.service:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                servers = await _in_thread(slots, _servers_of, target.service)
        except (OSError, ValueError, DNSException) as error:
            return Answer(known, _words(target.service, error))
    places = [place for rank in servers.ranks for place in rank]
    random.shuffle(places)
    answers = await asyncio.gather(*(_addresses_of(place, slots) for place in places))
    found = dict(zip(places, answers, strict=True))
    by_place: dict[Address, frozenset[Address]] = {}
    errors = servers.errors
    for rank in servers.ranks:
        for place in rank:
            addresses, error_words = found[place]
            if error_words:
                errors.append(error_words)
                addresses = known.get(place, addresses)
            by_place[place] = addresses
        if any(by_place.values()):
            return Answer(by_place, _summary(errors))
    return Answer(known, _summary(errors))


@dataclass(frozen=True, slots=True)
class _Servers:
    """The servers that a target names, in groups of the same priority, the lowest first."""

    ranks: list[list[Address]]
    errors: list[str] = field(default_factory=list)


def _servers_of(service: str) -> _Servers:
    """Waits for the SRV records. The system's settings may change, so it reads them each time.

    Raises:
        OSError, ValueError, DNSException: There is no answer, or it has no server.
    """
    resolver = dns.resolver.Resolver()
    records = list(resolver.resolve(service, "SRV", search=True, lifetime=SERVICE_TIMEOUT_S))
    by_priority: dict[int, list[Address]] = {}
    errors: list[str] = []
    for record in sorted(records, key=lambda record: record.priority)[:MAX_ADDRESSES]:
        assert isinstance(record, SRV)
        if record.target == dns.name.root:  # RFC 2782: the service is "decidedly not available"
            continue
        try:
            # The dot at the end stays: the name is complete, so that no search domain is appended.
            server = Address(str(record.target), record.port)
        except ValueError as error:
            errors.append(f"an SRV record of {service} cannot be used: {plain_text(str(error))}")
        else:
            by_priority.setdefault(record.priority, []).append(server)
    if not by_priority:
        raise ValueError(errors[0] if errors else "its SRV record is '.', which means that it has no servers")
    return _Servers(list(by_priority.values()), errors)


async def _in_thread(slots: asyncio.Semaphore, look_up: Callable[..., T], *args: object) -> T:
    """Has a slot until the thread is free again, also when nobody waits for it any more."""
    loop = asyncio.get_running_loop()
    await slots.acquire()
    future = _look_ups.submit(look_up, *args)

    def release(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(slots.release)

    future.add_done_callback(release)
    return await asyncio.wrap_future(future)


def _look_up(place: Address) -> frozenset[Address]:
    """Waits for the addresses. Of both families, those without a route from this host are left out."""
    found = {
        (family, address)
        for family, *_, address in socket.getaddrinfo(place.host, place.port, 0, socket.SOCK_STREAM)
    }
    if len({family for family, _ in found}) > 1:
        found = {one for one in found if _has_route(*one)} or found
    return frozenset(Address(_host_of(address), place.port) for _, address in found)


def _has_route(family: int, address: tuple[object, ...]) -> bool:
    """Sends nothing. Source: RFC 6724 as gRPC's C core has it (`address_sorting`)."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
    except OSError:
        return False
    return True


async def _addresses_of(place: Address, slots: asyncio.Semaphore) -> tuple[frozenset[Address], str]:
    """The addresses, or why there are none."""
    if not needs_look_up(place):
        return frozenset([place]), ""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _in_thread(slots, _look_up, place), ""
    except (OSError, ValueError) as error:
        return frozenset(), _words(str(place), error)


def _words(name: str, error: Exception) -> str:
    why = f"no answer within {TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else plain_text(str(error))
    return f"{name} was not resolved: {why}"


def _summary(errors: Sequence[str]) -> str:
    """The first error, and how many more there are: a list may have a thousand names."""
    rest = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0]}{rest}" if errors else ""


def _host_of(address: Sequence[object]) -> str:
    """The host of a socket's address; a link-local one has its zone."""
    host = str(address[0])
    return f"{host}%{address[3]}" if len(address) == 4 and address[3] and "%" not in host else host
