"""Settings that topics of ours must have, whoever made or altered them: what is wrong, in words.

Nothing is altered here: a topic may be somebody's on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from app.kafka.client.cluster import ClusterSpec

POLICY, COMPACT, DELETE = "cleanup.policy", "compact", "delete"
MOST_BYTES, KEPT_MS, UNLIMITED = "max.message.bytes", "retention.ms", "-1"
LEAST = frozenset({KEPT_MS, MOST_BYTES, "min.compaction.lag.ms"})  # more is good, too
HARM = {
    COMPACT: "else records are deleted by their age",
    DELETE: "else a record replaces those of its key",
    KEPT_MS: "else what waits there is deleted",
    MOST_BYTES: "else larger records do not fit",
}


class SettingsProblem(NamedTuple):
    """What is wrong with a topic, and what to do."""

    topic: str
    message: str
    remedy: str


def wrong_settings(config: Mapping[str, str], needed: Mapping[str, str]) -> dict[str, str]:
    """Those of the `needed` settings, with their values, that a topic's `config` does not have. What the
    broker did not tell is not wrong."""
    return {
        name: value
        for name, value in needed.items()
        if name in config and not _has(name, config[name], value)
    }


def problem_of(
    spec: ClusterSpec, topic: str, config: Mapping[str, str], wrong: Mapping[str, str], why: str = ""
) -> SettingsProblem:
    """In words; `why`: why the cluster does not let us alter it."""
    told = [
        f"{name} is {config[name]}, and must be {value}{' or more' if name in LEAST else ''}"
        f"{_harm(name, value)}"
        for name, value in sorted(wrong.items())
    ]
    said = f"topic {topic} in {spec.name}: {', '.join(told)}"
    values = ",".join(f"{name}={value}" for name, value in sorted(wrong.items()))
    command = f"kafka-configs.sh --bootstrap-server {spec.bootstrap[0]} --alter --topic {topic}"
    message, remedy = f"{said}: {why}" if why else said, f"alter it: {command} --add-config {values}"
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
