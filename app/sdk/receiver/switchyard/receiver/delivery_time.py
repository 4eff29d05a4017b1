"""How long a delivery may take, and how a handler asks for more, by either contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import Any

from switchyard.receiver.outcomes import milliseconds


class DeliveryTime:
    """The time of a message without a sender, as in a test; the base of the others.

    A copy of a message, in this process or another, has none: it belongs to the delivery.
    """

    __slots__ = ()

    def left_s(self, _number: int) -> float:
        """Seconds until the delivery of this number times out."""
        return math.inf

    def renew(self, _number: int, _seconds: float) -> bool:
        """Asks for this much time from now on; returns whether the sender gives any."""
        return False

    def __deepcopy__(self, _: object) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class UnaryTime(DeliveryTime):
    """The time of a call, whose deadline nothing moves."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def left_s(self, _number: int) -> float:
        left_s: float | None = self._context.time_remaining()
        return math.inf if left_s is None else left_s


class StreamTime(DeliveryTime):
    """The time of the deliveries of a batch.

    Args:
        left_s: Seconds that they have from now on; 0: not known.
        longest_s: Seconds that they can have in all, by renewals; 0: not known.
        ask: Asks the sender, from any thread, for this many milliseconds for a delivery; False: it has ended.
    """

    __slots__ = ("_ask", "_later_s", "_latest_s", "_until_s")

    def __init__(self, left_s: float, longest_s: float, ask: Callable[[int, int], bool]) -> None:
        now_s = monotonic()
        self._until_s = now_s + left_s if left_s else math.inf
        self._latest_s = now_s + longest_s if longest_s else math.inf
        self._later_s: dict[int, float] = {}
        self._ask = ask

    def left_s(self, number: int) -> float:
        return self._later_s.get(number, self._until_s) - monotonic()

    def renew(self, number: int, seconds: float) -> bool:
        wanted_ms = milliseconds(seconds)
        until_s, wanted_s = self._later_s.get(number, self._until_s), monotonic() + wanted_ms / 1000
        later_s = max(until_s, min(wanted_s, self._latest_s))
        if until_s == later_s < wanted_s or not self._ask(number, wanted_ms):
            return False
        self._later_s[number] = later_s
        return True
