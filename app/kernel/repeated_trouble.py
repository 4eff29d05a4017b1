"""Trouble that may come by the thousand: people hear of it at once, then seldom, with how often it came."""

from __future__ import annotations

TELL_AGAIN_S = 600.0


class RepeatedTrouble:
    """See the module: once every `TELL_AGAIN_S` at most.

    Attributes:
        count: so many since the worker began.
    """

    __slots__ = ("_last", "_told", "_told_s", "count")

    def __init__(self) -> None:
        self.count = self._told = 0
        self._last = ""
        self._told_s = float("-inf")

    def record(self, details: str, times: int = 1) -> None:
        """It came so many times more; `details` are of the last."""
        self.count += times
        self._last = details

    def due(self, now_s: float) -> tuple[int, str] | None:
        """How often it came since it was last told, and the last details; None: there is nothing to tell now.

        What is returned counts as told.
        """
        if self.count == self._told or now_s < self._told_s + TELL_AGAIN_S:
            return None
        count, self._told, self._told_s = self.count - self._told, self.count, now_s
        return count, self._last
