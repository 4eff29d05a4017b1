"""Checks the settings that Switchyard's own topics need, and describes what is wrong.

Nothing is altered here, because the topic may have its settings on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from app.kafka.client.cluster import ClusterSpec

POLICY, COMPACT, DELETE = "cleanup.policy", "compact", "delete"
MOST_BYTES, KEPT_MS, UNLIMITED = "max.message.bytes", "retention.ms", "-1"
LEAST = frozenset({KEPT_MS, MOST_BYTES, "min.compaction.lag.ms"})  # minimums
HARM = {
    COMPACT: "otherwise records expire",
    DELETE: "otherwise a record replaces earlier records of its key",
    KEPT_MS: "otherwise waiting records expire",
    MOST_BYTES: "otherwise larger records do not fit",
}


class SettingsProblem(NamedTuple):
    """A topic's wrong settings in words, and the remedy."""

    topic: str
    message: str
    remedy: str


def wrong_settings(config: Mapping[str, str], needed: Mapping[str, str]) -> dict[str, str]:
    """The `needed` settings that a topic's `config` violates. Unknown settings count as right."""
    return {
        name: value
        for name, value in needed.items()
        if name in config and not _has(name, config[name], value)
    }


def problem_of(
    spec: ClusterSpec, topic: str, config: Mapping[str, str], wrong: Mapping[str, str], why: str = ""
) -> SettingsProblem:
    """The problem in words; `why`: why the cluster does not let Switchyard alter the topic."""
    violations = [
        f"{name} is {config[name]}, but must be {value}{' or more' if name in LEAST else ''}"
        f"{_harm(name, value)}"
        for name, value in sorted(wrong.items())
    ]
    problem = f"topic {topic} in {spec.name}: {', '.join(violations)}"
    values = ",".join(f"{name}={value}" for name, value in sorted(wrong.items()))
    command = f"kafka-configs.sh --bootstrap-server {spec.bootstrap[0]} --alter --topic {topic}"
    message, remedy = f"{problem}: {why}" if why else problem, f"alter it: {command} --add-config {values}"
    return SettingsProblem(topic, message, remedy)


def _has(name: str, value: str, needed: str) -> bool:
    if name == POLICY:
        return (COMPACT in value) == (needed == COMPACT) and (DELETE not in value or needed == DELETE)
    if name not in LEAST:
        return value == needed
    try:
        return (name == KEPT_MS and value == UNLIMITED) or int(value) >= int(needed)
    except ValueError:
        return False


def _harm(name: str, needed: str) -> str:
    harm = HARM.get(needed if name == POLICY else name)
    return f" ({harm})" if harm else ""
