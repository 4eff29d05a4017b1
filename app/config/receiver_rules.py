"""What definitions may use of workers to reach receivers: `receivers` in switchyard.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

METADATA_REMEDY = "take another name, or ask for it in receivers.metadata of each switchyard.yaml"

Groups = tuple[str, ...]


class ReceiverRules(NamedTuple):
    """What definitions may name. None: not known, so it is not checked.

    Attributes:
        credentials: The groups whose workloads may name each; empty: all.
        tokens: The groups whose workloads may name each.
        allow, deny: The names of metadata that definitions may set, each a name, or a prefix and a *.
    """

    credentials: Mapping[str, Groups] | None = None
    tokens: Mapping[str, Groups] | None = None
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


NO_RULES = ReceiverRules()
