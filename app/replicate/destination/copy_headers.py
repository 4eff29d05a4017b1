"""The headers of copies: those that are kept, and the provenance that a route may ask for.

With `provenance` each copy gets one more `switchyard-origin` header: "cluster id/topic/partition/offset". The
last one names the record that was copied, the first one where the record was written. A record that has
already been at the route's target would circulate, so it is not copied but counted and reported. Accepted
routes cannot form a loop (`app.replicate.model.copy_graph`). But routes of other regions, other tools, and
producers that forward headers can.
"""

from __future__ import annotations

from collections.abc import Callable

from app.kafka.append.encoder import Headers
from app.kafka.records.record import Record

ROUTE = "switchyard-route"  # the route that made the copy
ORIGIN = "switchyard-origin"  # "cluster id/topic/partition/offset"; one more with each copy


class HeaderEdit:
    """An `Edit` of one partition's headers. Returns None for a record that would circulate.

    Args:
        source, target: "cluster id/topic", because other installations may use other names for clusters.
        keeps: Whether a header, given by its name, is copied; None: all are.

    Attributes:
        rounds: The number of records that were at `target` before; each counts once.
        last_round: The offset of the last of them; -1: there was none.
    """

    __slots__ = ("_been", "_keeps", "_origin", "_provenance", "_route", "last_round", "rounds")

    def __init__(
        self,
        route: str,
        source: str,
        partition: int,
        target: str,
        keeps: Callable[[str], bool] | None,
        *,
        provenance: bool,
    ) -> None:
        self.rounds = 0
        self.last_round = -1
        self._route = route.encode()
        self._origin = f"{source}/{partition}/"
        self._been = f"{target}/".encode()
        self._keeps = keeps
        self._provenance = provenance

    def __call__(self, record: Record) -> Headers | None:
        offset, headers, keeps = record.offset, record.headers, self._keeps
        if not self._provenance:
            return headers if keeps is None else [header for header in headers if keeps(header[0])]
        kept: list[tuple[str, bytes | None]] = []
        for header in headers:
            name, value = header
            if name == ORIGIN:
                if value is not None and value.startswith(self._been):
                    self.rounds += offset > self.last_round
                    self.last_round = max(self.last_round, offset)
                    return None
                kept.append(header)
            elif name != ROUTE and (keeps is None or keeps(name)):
                kept.append(header)
        kept.append((ROUTE, self._route))
        kept.append((ORIGIN, f"{self._origin}{offset}".encode()))
        return kept
