"""Which receiver a message is for, by its headers: zones and environments kept apart.

| the message's environment       | its zone has a target    | else                                          |
|---------------------------------|--------------------------|-----------------------------------------------|
| production, or no header        | that target of the zone  | the main target                               |
| another, with targets           | its target of the zone   | its target without a zone; none: as unmatched |
| another, without any            |                          | as unmatched                                  |
| a header that is empty          |                          | as unmatched                                  |

Unmatched: to the DLQ, skipped, or (only when it is asked for) to the main target. So a test message never
reaches production by a missing rule, nor by a header without a value. Names of headers count without their
case, as people and proxies write them. Headers are untrusted: what is no text matches nothing.

Source: "Introducing uForwarder" (context-aware routing: zone isolation, tenancy).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_SHOWN_CHARS = 60


class Unmatched(StrEnum):
    """What becomes of a message of an environment that has no target."""

    DLQ = "dlq"
    SKIP = "skip"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Refusal:
    """No target may have the message."""

    skip: bool
    reason: str


class Routing:
    """See the module.

    Args:
        zone, environment: names of the headers; None: not told apart by it.
        targets: (environment, zone, address); None for either: see the table.
        production: values of the environment header that mean the main target.
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
    def addresses(self) -> list[str]:
        """All targets, the main one first."""
        return list(dict.fromkeys([self._main, *self._targets.values()]))

    def choose(self, headers: Iterable[tuple[str, bytes | None]]) -> str | Refusal:
        """The address for a message with these headers; the last header of a name counts, as in Kafka."""
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
        return Refusal(self._unmatched is Unmatched.SKIP, f"no target for environment {shown!r}")


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace").strip() if value else ""
