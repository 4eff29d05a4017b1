"""The deadlines of many calls, on one timer of the event loop.

Almost each call ends long before its deadline. A timer a call would cost more than the call's own
bookkeeping; here a deadline is an entry of a dict, in the slot of its tick (a timer wheel).
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from typing import Generic, TypeVar

TICK_S = 0.01
CLOCK_ERROR = 1e-3  # in ticks: a timer may fire a little early

T = TypeVar("T")


class Deadlines(Generic[T]):
    """`expire` gets each item whose time is over, up to one tick late, unless it was removed before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[T], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._slots: dict[int, dict[T, None]] = {}
        self._order: list[int] = []  # a heap of the slots' numbers
        self._timer: asyncio.TimerHandle | None = None
        self._past = 0  # the last tick that is over

    def add(self, item: T, at_s: float) -> int:
        """Time is the loop's. The slot that comes back removes the item."""
        slot = max(math.ceil(at_s / TICK_S), self._past + 1)
        items = self._slots.get(slot)
        if items is None:
            items = self._slots[slot] = {}
            heapq.heappush(self._order, slot)
            if self._order[0] == slot:
                self._set_timer()
        items[item] = None
        return slot

    def remove(self, item: T, slot: int) -> None:
        items = self._slots.get(slot)
        if items is not None:
            items.pop(item, None)
            if not items:
                items.clear()  # an emptied dict keeps its memory, and a slot lives until its tick

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._slots.clear()
        self._order.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._order[0] * TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._past = math.floor(self._loop.time() / TICK_S + CLOCK_ERROR)
        while self._order and self._order[0] <= self._past:
            slot = heapq.heappop(self._order)
            items = self._slots[slot]
            while items:  # an item that expires may remove others of its slot
                self._expire(items.popitem()[0])
            self._slots.pop(slot, None)
        if self._order and self._timer is None:
            self._set_timer()
