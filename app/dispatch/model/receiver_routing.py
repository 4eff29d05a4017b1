"""Chooses the receiver of a message by its headers, so that zones and environments stay apart.

| the message's environment       | its zone has a target    | else                                          |
|---------------------------------|--------------------------|-----------------------------------------------|
| production, or no header        | that target of the zone  | the main target                               |
| another, with targets           | its target of the zone   | its target without a zone; none: unmatched    |
| another, without any            |                          | unmatched                                     |
| a header that is empty          |                          | unmatched                                     |

An unmatched message goes to the DLQ, is skipped, or (only if the definition says so) goes to the main target.
So neither a missing rule nor an empty header sends a test message to production. The case of header names
does not count. Headers are untrusted: bytes that are not text match nothing.

A zone's target may name another zone of its environment as fallback, which gets its messages once it has been
away for some time (`Fallbacks`).

Source: "Introducing uForwarder" (context-aware routing: zone isolation, tenancy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_SHOWN_CHARS = 60


class Unmatched(StrEnum):
    """The treatment of a message whose environment has no target."""

    DLQ = "dlq"
    SKIP = "skip"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class RoutingRefusal:
    """No target may have the message; `skip`: it is skipped instead of dead-lettered."""

    skip: bool
    reason: str


class ReceiverRouting:
    """The routes of one workload.

    Args:
        zone, environment: Names of the headers; None: the header does not count.
        targets: (environment, zone, address); None as in the module's table.
        production: Values of the environment header that mean production.
    """

    __slots__ = ("_environment", "_main", "_production", "_targets", "_unmatched", "_zone")

    def __init__(
        self,
        main: str,
        *,
        zone: str | None,
        environment: str | None,
        targets: Sequence[tuple[str | None, str | None, str]],
        unmatched: Unmatched,
        production: Sequence[str],
    ) -> None:
        self._main = main
        self._zone = None if zone is None else zone.casefold()
        self._environment = None if environment is None else environment.casefold()
        self._targets = {(env, zone): address for env, zone, address in targets}
        self._unmatched = unmatched
        self._production = {value.casefold() for value in production}

    @property
    def production(self) -> set[str]:
        """Targets of production, including the main one."""
        zones = {address for (environment, _), address in self._targets.items() if environment is None}
        return {self._main, *zones}

    @property
    def addresses(self) -> list[str]:
        """All targets, the main one first."""
        return list(dict.fromkeys([self._main, *self._targets.values()]))

    def choose(self, headers: Iterable[tuple[str, bytes | None]]) -> str | RoutingRefusal:
        """The address for a message with these headers. The last header of a name counts, as in Kafka."""
        zone = environment = None
        for name, value in headers:
            folded = name.casefold()
            if folded == self._environment:
                environment = _text(value)
            elif folded == self._zone:
                zone = _text(value)
        if environment is None or environment.casefold() in self._production:
            return self._targets.get((None, zone), self._main) if zone else self._main
        found = self._targets.get((environment, zone)) or self._targets.get((environment, None))
        if found is not None:
            return found
        if self._unmatched is Unmatched.DEFAULT:
            return self._main
        shown = environment[:MAX_SHOWN_CHARS]
        return RoutingRefusal(self._unmatched is Unmatched.SKIP, f"no target for environment {shown!r}")


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace").strip() if value else ""


class Fallbacks:
    """The targets that get the messages of a target that has been away for `after_s`, until it is back.

    Args:
        targets: Address -> the address of its fallback; its own address: it has none.
    """

    __slots__ = ("_away_since_s", "_targets", "after_s")

    def __init__(self, targets: Mapping[str, str], after_s: float) -> None:
        self.after_s = after_s
        self._targets = dict(targets)
        self._away_since_s: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._targets)

    def update(self, address: str, now_s: float, *, is_away: bool) -> None:
        if is_away:
            self._away_since_s.setdefault(address, now_s)
        else:
            self._away_since_s.pop(address, None)

    def choose(self, address: str, now_s: float, is_away: Callable[[str], bool]) -> str:
        """The target for a message of `address`: itself, or after `after_s` the first fallback that is
        there."""
        at, seen = address, {address}
        while (since_s := self._away_since_s.get(at)) is not None and now_s >= since_s + self.after_s:
            following = self._targets.get(at)
            if following is None or following in seen:
                return address
            at = following
            seen.add(at)
            if not is_away(at):
                return at
        return address

    def kept(self, former: Fallbacks) -> Fallbacks:
        """Takes over since when targets have been away; returns self."""
        self._away_since_s = dict(former._away_since_s)
        return self
