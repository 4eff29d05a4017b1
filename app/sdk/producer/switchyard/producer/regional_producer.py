"""`RegionalProducer`: chooses the region, and keeps every message until it is acknowledged.

    send ──▶ pending (in order) ──▶ the active region's link ──▶ acknowledged
                 └── the rest, when the producer leaves it ──▶ the next region's link

Only the supervisor changes the link. The gate is open only while the link works and has all accepted
messages, so new messages wait until earlier ones were sent again. The package's docstring has the rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from switchyard.producer.messages import (
    MESSAGE_ID,
    Delivered,
    Header,
    Hooks,
    NotDelivered,
    PendingMessage,
    ProducerClosed,
    ProducerError,
    Refused,
)
from switchyard.producer.region_link import (
    DRAIN_TIMEOUT_S,
    NOT_THERE,
    OF_ONE_IN_THE_BATCH,
    REFUSALS,
    REGION_ERRORS,
    Region,
    RegionLink,
    answers,
)
from switchyard.producer.room import Room

log = logging.getLogger("switchyard.producer")

REGIONS_RETRY_INTERVAL_S = 0.2  # while no region answers
CANCEL_INTERVAL_S = 1.0
MESSAGES_A_TURN = 64  # then other tasks of the event loop run
MAX_RETURN_BACKOFF_FACTOR = 16  # times `return_after_s`


class RegionalProducer:
    """Writes to the nearest region that is healthy; the package has the rules.

    Args:
        regions: The nearest first.
        unhealthy_after_s: How long a region may answer nothing, or acknowledge nothing that waits.
        return_after_s: How long home has to be healthy before the producer returns.
        delivery_timeout_s: When a message without an acknowledgement fails.
        max_pending: Messages that wait for acknowledgements; `send` waits while there are more.
        max_pending_bytes: Bytes of their keys, values and headers.
        message_ids: Adds the header of rule 3 to messages that do not have it.
        hooks: Callbacks for metrics and logs.

    Raises:
        ValueError: No region, two regions of one name, an invalid address, or a number that is not above 0.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        *,
        unhealthy_after_s: float = 3.0,
        return_after_s: float = 60.0,
        delivery_timeout_s: float = 120.0,
        max_pending: int = 10_000,
        max_pending_bytes: int = 32 << 20,
        message_ids: bool = False,
        hooks: Hooks | None = None,
    ) -> None:
        self._regions = list(regions)
        if not self._regions or len({region.name for region in self._regions}) < len(self._regions):
            raise ValueError("name at least one region, and give each region a different name")
        for region in self._regions:
            region.addresses  # noqa: B018 - raises for an invalid address
        limits = (unhealthy_after_s, return_after_s, delivery_timeout_s, max_pending, max_pending_bytes)
        if min(limits) <= 0:
            raise ValueError("times, max_pending and max_pending_bytes must be above 0")
        self._unhealthy_after_s = unhealthy_after_s
        self._return_after_s = return_after_s
        self._delivery_timeout_s = delivery_timeout_s
        self._message_ids = message_ids
        self._hooks = hooks or Hooks()
        self._room = Room(max_pending, max_pending_bytes)
        self._turn = asyncio.Lock()
        self._gate = asyncio.Event()
        self._wake = asyncio.Event()
        self._pending: dict[int, PendingMessage] = {}
        self._link: RegionLink | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._closed = False
        self._answered_s = 0.0
        self._home_since_s: float | None = None
        self._returned_s = float("-inf")
        self._count, self._patience = 0, 1
        self._failing_hooks: set[str] = set()

    # -- life ------------------------------------------------------------------------------------

    async def start(self, timeout_s: float = 30.0) -> None:
        """Connects to the nearest region that answers.

        Raises:
            NotDelivered: None answered in time.
            ProducerClosed: The producer was closed.
        """
        if self._closed:
            raise ProducerClosed("a closed producer cannot be started again; make a new one")
        try:
            await asyncio.wait_for(self._connect(self._regions), timeout_s)
        except asyncio.TimeoutError:
            names = ", ".join(region.name for region in self._regions)
            raise NotDelivered(f"none of the regions {names} answered within {timeout_s:g} s") from None
        self._gate.set()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self, timeout_s: float = 30.0) -> None:
        """Accepts no more messages, and waits at most `timeout_s` until all are acknowledged.

        Messages that are not then fail with `NotDelivered`.
        """
        self._closed = True
        deadline_s = time.monotonic() + timeout_s
        while self._pending and self._link is not None and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while self._supervisor is not None and not self._supervisor.done():
            self._supervisor.cancel()  # repeatedly: before Python 3.12 `wait_for` may swallow it
            await asyncio.wait({self._supervisor}, timeout=CANCEL_INTERVAL_S)
        link, self._link = self._link, None
        for message in list(self._pending.values()):
            self._fail(
                message,
                NotDelivered(f"the producer was closed before a region acknowledged it ({message.topic})"),
            )
        self._gate.set()  # calls of `send` that wait for it then raise
        if link is not None:
            await link.end()

    async def __aenter__(self) -> RegionalProducer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def region(self) -> str:
        """The region that gets messages now; "" before the start and after the end."""
        return "" if self._link is None else self._link.region.name

    @property
    def pending(self) -> int:
        """Messages that wait for acknowledgements."""
        return len(self._pending)

    # -- messages --------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[Delivered]:
        """Accepts a message. Waits while `max_pending` wait for acknowledgements, or no region answers.

        Returns:
            A future with the message's position. It fails with `Refused` or `NotDelivered`.

        Raises:
            ProducerClosed: The producer is closed, or was never started.
            ValueError: Neither key nor value.
        """
        if key is None and value is None:
            raise ValueError("a message needs a key or a value")
        headers = list(headers)
        if self._message_ids and all(name != MESSAGE_ID for name, _ in headers):
            headers.append((MESSAGE_ID, uuid.uuid4().hex.encode()))
        future = asyncio.get_running_loop().create_future()
        message = PendingMessage(topic, value, key, headers, partition, timestamp_ms, future)
        nbytes = message.nbytes
        await self._room.enter(nbytes)
        try:
            async with self._turn:  # a call that comes as the gate opens queues behind the waiting ones
                while not self._gate.is_set():
                    self._check_open()
                    await self._gate.wait()
            self._check_open()
        except BaseException:
            self._room.leave(nbytes)
            raise
        message.taken_s = time.monotonic()
        self._count += 1
        self._pending[self._count] = message
        future.add_done_callback(partial(self._forget, self._count, nbytes))
        try:
            await self._hand(message)
            if not self._count % MESSAGES_A_TURN:
                await asyncio.sleep(0)
        except BaseException:
            future.cancel()  # the caller never gets it
            raise
        return future

    async def send_and_wait(self, topic: str, value: bytes | None = None, **options: Any) -> Delivered:
        """Sends a message and returns its position. Raises ProducerError."""
        return await (await self.send(topic, value, **options))

    def _check_open(self) -> None:
        if self._closed or not self._supervisor:
            raise ProducerClosed("the producer is closed, or was not started")

    def _forget(self, number: int, nbytes: int, _: object) -> None:
        if self._pending.pop(number, None) is not None:
            self._room.leave(nbytes)

    async def _hand(self, message: PendingMessage) -> None:
        """Gives the message to the active link.

        A fault of the link is the supervisor's to handle; a fault of the message fails this message only.
        """
        link = message.link = self._link
        assert link is not None, "the gate is open only while there is a link"
        try:
            await link.send(message)
        except Exception as error:  # noqa: BLE001 - the message's future reports it
            if isinstance(error, REGION_ERRORS) and not isinstance(error, REFUSALS):
                self._breaks(link, f"{error!r}")
            elif message.link is link:
                self._refuse(message, link, error)

    def _answered(self, link: RegionLink, message: PendingMessage, found: Delivered | BaseException) -> None:
        if isinstance(found, NOT_THERE):
            message.given_to.discard(link)
        is_its = message.link is link and not message.future.done()
        if isinstance(found, Delivered):
            now_s = time.monotonic()
            if link is self._link:
                self._answered_s = now_s
            if is_its:
                message.future.set_result(found)
                self._call_hook(self._hooks.delivered, found, now_s - message.taken_s)
        elif isinstance(found, REFUSALS):
            self._breaks(link, "a message was refused", has_hole=True)
            if is_its and isinstance(found, OF_ONE_IN_THE_BATCH) and not message.goes_alone:
                message.goes_alone = True
            elif is_its:
                self._refuse(message, link, found)
        else:  # after a refusal every later batch fails too, which changes nothing
            self._breaks(link, f"{found!r}")

    def _breaks(self, link: RegionLink, why: str, *, has_hole: bool = False) -> None:
        """Stops the link, and lets the supervisor replace it. The first reason counts."""
        if link is self._link and not link.broken:
            link.has_hole = has_hole
            link.stop(why)
            self._gate.clear()
            self._wake.set()

    def _refuse(self, message: PendingMessage, link: RegionLink, error: BaseException) -> None:
        why = ": ".join([type(error).__name__, *map(str, error.args)])
        detail = f"region {link.region.name}, topic {message.topic}: {why}"
        holders = ", ".join(sorted({one.region.name for one in message.given_to}))
        failure = (
            NotDelivered(f"{detail}; these regions may have it: {holders}") if holders else Refused(detail)
        )
        failure.__cause__ = error
        self._fail(message, failure)

    def _fail(self, message: PendingMessage, error: ProducerError) -> None:
        if not message.future.done():
            message.future.set_exception(error)
            message.future.exception()  # marks it as retrieved: callers may ignore it
            self._call_hook(self._hooks.failed, message.topic, error)

    def _call_hook(self, hook: Callable[..., None], *arguments: object) -> None:
        try:
            hook(*arguments)
        except Exception:
            if hook.__name__ not in self._failing_hooks:
                self._failing_hooks.add(hook.__name__)
                log.exception("the hook %s failed; its later errors are not logged", hook.__name__)

    # -- the supervisor --------------------------------------------------------------------------

    async def _supervise(self) -> None:
        interval_s = min(1.0, self._unhealthy_after_s / 4)
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), interval_s)
            self._wake.clear()
            try:
                self._expire()
                await self._check_link(interval_s)
            except Exception:
                log.exception("checking the regions failed, retrying")

    async def _check_link(self, patience_s: float) -> None:
        link = self._link
        assert link is not None, "the supervisor runs after `start`"
        stalled = link.broken or link.stalled(self._unhealthy_after_s)
        if why := stalled or await self._silent(link, patience_s):
            self._breaks(link, why)
        if link.broken:
            await self._replace(link)
        elif link.region is not self._regions[0]:
            await self._maybe_return(link, patience_s)

    async def _silent(self, link: RegionLink, patience_s: float) -> str:
        if await answers(link.region, patience_s):
            self._answered_s = time.monotonic()
            return ""
        silent_s = time.monotonic() - self._answered_s
        return (
            f"the region has not answered for {silent_s:.1f} s" if silent_s > self._unhealthy_after_s else ""
        )

    def _expire(self) -> None:
        now_s = time.monotonic()
        for message in list(self._pending.values()):
            if now_s - message.taken_s <= self._delivery_timeout_s:
                break
            self._fail(
                message, NotDelivered(f"no region acknowledged it for {now_s - message.taken_s:.0f} s")
            )

    async def _connect(self, regions: Sequence[Region]) -> RegionLink:
        """Connects to the first region that answers, however long it takes."""
        while True:
            for region in regions:
                self._expire()
                address = await answers(region, self._unhealthy_after_s)
                if not address:
                    continue
                with contextlib.suppress(*REGION_ERRORS):
                    self._link = await RegionLink.open(region, address, self._answered)
                    self._answered_s = time.monotonic()
                    return self._link
            await asyncio.sleep(REGIONS_RETRY_INTERVAL_S)

    async def _replace(self, link: RegionLink) -> None:
        """Continues with another producer, and sends all unacknowledged messages again.

        After a refused message it stays in the region, else it goes to the next region that answers.
        """
        left, why = link.region, link.broken
        while link.broken:
            at = self._regions.index(link.region)
            if link.has_hole:
                await link.settled()
            else:
                self._note_left(link)
                at += 1
            await link.end()
            link = await self._connect([*self._regions[at:], *self._regions[:at]])
            again = len(self._pending)
            await self._send_again(link)
        if link.region is not left:
            self._home_since_s = None
        self._call_hook(self._hooks.moved, left.name, link.region.name, why, again)
        self._gate.set()

    def _note_left(self, link: RegionLink) -> None:
        log.warning(
            "leaving region %s, %d messages wait: %s", link.region.name, len(self._pending), link.broken
        )
        if link.region is self._regions[0]:
            soon = time.monotonic() - self._returned_s < self._return_after_s * self._patience
            self._patience = min(MAX_RETURN_BACKOFF_FACTOR, 2 * self._patience) if soon else 1

    async def _send_again(self, link: RegionLink) -> None:
        by_topic = defaultdict[str, list[PendingMessage]](list)
        for message in self._pending.values():
            by_topic[message.topic].append(message)
        await asyncio.gather(*(self._hand_in_order(link, some) for some in by_topic.values()))

    async def _hand_in_order(self, link: RegionLink, messages: Iterable[PendingMessage]) -> None:
        """Sends one topic's messages. A topic that takes long to find delays no other topic."""
        for number, message in enumerate(messages):
            if not number % MESSAGES_A_TURN:
                await asyncio.sleep(0)
            if link.broken:
                return
            if not message.future.done():
                await self._hand(message)

    async def _maybe_return(self, away: RegionLink, patience_s: float) -> None:
        home, now_s = self._regions[0], time.monotonic()
        address = await answers(home, patience_s)
        if not address:
            self._home_since_s = None
            return
        self._home_since_s = self._home_since_s or now_s
        if now_s - self._home_since_s < self._return_after_s * self._patience:
            return
        self._home_since_s = None
        try:
            link = await RegionLink.open(home, address, self._answered)
        except REGION_ERRORS:
            return
        self._gate.clear()
        try:
            deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
            while away.flying and not away.broken and time.monotonic() < deadline_s:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if not away.broken and all(message.future.done() for message in self._pending.values()):
                self._link, self._returned_s = link, time.monotonic()
                self._answered_s = self._returned_s
                self._call_hook(
                    self._hooks.moved, away.region.name, home.name, "home has been healthy again", 0
                )
        finally:
            if self._link is link or not away.broken:
                self._gate.set()
            await (away if self._link is link else link).end()
