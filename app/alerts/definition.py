"""`Alert`: the audit findings that an alert watches, and the receivers of its notices.

    kind: Alert
    metadata: {name: orders-lost, owner: data-platform}
    spec:
      on: [loss, corruption]                  # or duplication, late, absent-audit; or lag, alone
      topics: [orders, 'payments\\..*']        # as in a Route
      tiers: [regional, aggregate]            # without it, every pair of tiers that the audit compares
      above: 10                               # records of a window, or 0.1%; for lag a duration
      for: 5m
      within: 24h
      severity: critical
      channels: [...]                         # app.alerts.channel_definition

`app.alerts.rules` decides when an alert fires and when it ends.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Len
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from app.alerts.channel_definition import AChannel
from app.alerts.rules import AlertThreshold, Rule
from app.config.definition_base import OfTopics
from app.config.fields import DAY_S, MAX_LISTED, Model, Name
from app.config.quantities import Duration, duration_within
from app.kernel.durations import format_duration, parse_duration
from app.replicate.definition import Entry

PREFIX = "alert:"  # no other definition's key begins with it
MAX_NAME_CHARS = 100
MAX_CHANNELS = 20
MAX_RECORDS = 10**15
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")
_ABOVE_HINT = "write a number of records, a share like 0.1%, or, of lag, a duration like 30s"


def _name(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_NAME_CHARS:
        raise ValueError(f"not a name for it; use at most {MAX_NAME_CHARS} characters")
    return value


def _above(value: object) -> object:
    """As it is written, in one way: 10, "0.1%", "30s"."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_RECORDS:
        return value
    if not isinstance(value, str):
        raise ValueError(f"not a threshold; {_ABOVE_HINT}")
    if value.isascii() and value.isdigit() and int(value) <= MAX_RECORDS:
        return int(value)
    if (share := _SHARE.fullmatch(value.strip())) is not None:
        if Decimal(share[1]) > 100:
            raise ValueError("more than all of them; write a share from 0% to 100%")
        return f"{Decimal(share[1]).normalize():f}%"
    try:
        return format_duration(parse_duration(value))
    except ValueError as error:
        raise ValueError(f"not a threshold; {_ABOVE_HINT}") from error


def _listed(value: object) -> object:
    """One kind, or several, each once."""
    found = (value,) if isinstance(value, str) else value
    if isinstance(found, list | tuple) and len(set(map(str, found))) < len(found):
        raise ValueError("names one twice; name each once")
    return found


def _pair(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 2 or value[0] == value[1]:
        raise ValueError("not two tiers; write the earlier and the later, such as [regional, aggregate]")
    return value


AlertKind = Literal["loss", "duplication", "corruption", "lag", "late", "absent-audit"]
_KINDS_SCHEMA = {"type": "string", "enum": list(AlertKind.__args__)}  # type: ignore[attr-defined]
On = Annotated[
    tuple[AlertKind, ...], BeforeValidator(_listed), Len(1, 6),
    WithJsonSchema({"anyOf": [_KINDS_SCHEMA, {"type": "array", "items": _KINDS_SCHEMA, "minItems": 1}]}),
]  # fmt: skip


class AlertMetadata(Model):
    """The alert's identity (its name) and its owner."""

    name: Annotated[Name, BeforeValidator(_name)]
    owner: str = Field("", max_length=200)


class AlertSpec(Model):
    """When the alert fires, and which channels get its notices.

    `above` is a limit for a window. `for`: how long it must be exceeded before the alert fires, and how long
    it must not be before the alert is resolved. `within`: windows that ended longer ago do not count.
    """

    on: On
    topics: Annotated[tuple[Entry, ...], Len(1, MAX_LISTED)]
    exclude: Annotated[tuple[Entry, ...], Len(0, MAX_LISTED)] = ()
    tiers: Annotated[tuple[Name, Name], BeforeValidator(_pair)] | None = None
    above: Annotated[
        int | str, BeforeValidator(_above),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}],
                        "examples": [10, "0.1%", "30s"]}),
    ] = 0  # fmt: skip
    for_: Annotated[Duration, duration_within(0, 7 * DAY_S)] = Field(0.0, alias="for")
    within: Annotated[Duration, duration_within(60, 90 * DAY_S)] = DAY_S
    severity: Literal["critical", "warning", "info"] = "warning"
    repeat: SkipJsonSchema[Any] = Field(None, exclude=True)  # an earlier version's; it has no effect
    channels: Annotated[tuple[AChannel, ...], Len(0, MAX_CHANNELS)] = ()


class AlertDefinition(OfTopics):
    """An alert: the audit findings that it watches, and the channels that get its notices."""

    api_version: Literal["switchyard/v1"] = Field(alias="apiVersion")
    prefix: ClassVar[str] = PREFIX
    kind: Literal["Alert"]
    metadata: AlertMetadata
    spec: AlertSpec

    @property
    def above(self) -> AlertThreshold:
        """The threshold as a number."""
        above = self.spec.above
        if isinstance(above, int):
            return AlertThreshold("records", above)
        if above.endswith("%"):
            return AlertThreshold("share", float(above[:-1]) / 100)
        return AlertThreshold("ms", parse_duration(above) * 1000)

    @cached_property
    def rule(self) -> Rule:
        """The conditions under which the alert fires."""
        spec = self.spec
        return Rule(
            name=self.name,
            on=frozenset(spec.on),
            means=self.means,
            tiers=spec.tiers,
            above=self.above,
            for_ms=round(spec.for_ * 1000),
            within_ms=round(spec.within * 1000),
            channels=tuple(channel.key for channel in spec.channels if channel.target),
        )
