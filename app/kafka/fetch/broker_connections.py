"""The connections over which one broker is fetched.

A broker works on one request per connection at a time. So a partition that becomes ready during a long poll
is requested over another connection. A request costs as much for one partition as for many. So while the
first connection brings data quickly, partitions of the others join its next request.
"""

from __future__ import annotations

from collections.abc import Collection

from app.kafka.fetch.deliveries import PartitionFetch

CONNECTIONS = 3
FIRST, LAST = 0, CONNECTIONS - 1
JOIN_S = 0.005  # the longest that a partition waits for the first connection's next request

Name = tuple[str, int]  # of a partition


class BrokerConnections:
    """Which connections are free, and which partitions wait to join the first one.

    Attributes:
        is_crowded: Partitions were ready, and no connection was free.
    """

    def __init__(self) -> None:
        self.is_crowded = False
        self._free = set(range(CONNECTIONS))
        # While the first one's data flows: since when it requests what. And what joins it, until when.
        self._flowing: tuple[float, Collection[Name]] | None = None
        self._joining: list[tuple[PartitionFetch, float]] = []

    @property
    def last_is_busy(self) -> bool:
        return LAST not in self._free

    def take(self) -> int | None:
        """The first free connection, which is busy now; None: there is none."""
        if not self._free:
            self.is_crowded = True
            return None
        connection = min(self._free)
        self._free.remove(connection)
        return connection

    def give_back(self, connection: int) -> None:
        """The connection is free again."""
        self._free.add(connection)
        if connection == FIRST:
            self._flowing = None
            self._joining.clear()

    def joined(self) -> list[PartitionFetch]:
        """The partitions that join the first connection's next request; they count as polled from now on."""
        found = []
        for part, until_s in self._joining:
            if not part.polling and part.retry_at_s == until_s:  # nothing has happened to it since
                part.retry_at_s, part.polling = 0.0, True
                found.append(part)
        self._joining.clear()
        return found

    def first_goes_on(self, parts: dict[Name, PartitionFetch], now_s: float, began_s: float) -> None:
        """The first connection requests `parts` next; its last request began at `began_s`."""
        flows = now_s - began_s < JOIN_S and not all(part.idle for part in parts.values())
        self._flowing = (now_s, parts.keys()) if flows else None

    def join_first(self, parts: dict[Name, PartitionFetch], now_s: float) -> None:
        """Takes partitions that join the first connection out of `parts`; none, unless its data flows."""
        if self._flowing is None or now_s - self._flowing[0] >= JOIN_S:
            return
        for name in parts.keys() - self._flowing[1]:
            part = parts.pop(name)
            part.retry_at_s = now_s + JOIN_S
            self._joining.append((part, part.retry_at_s))
