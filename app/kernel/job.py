"""The job: one partition of one topic, which one worker delivers, copies or audits.

    job = (kind, name, topic, partition)        "dispatch:billing/orders:orders:3"

The text form is the identity in table keys, logs and pages. `parse` and `str` are inverse to each other, so a
job has exactly one text form. Neither a name nor a topic may contain ':', which separates the parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

MAX_NAME_CHARS = 512  # a consumer group (255 in most clients), '/' and a topic
MAX_TOPIC_CHARS = 249  # Kafka's limit: its folders are named topic-partition
MAX_PARTITION = 2**31 - 1  # int32 on the wire

_NAME = re.compile(r"[A-Za-z0-9._/-]+", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
PATTERN = (  # all rules but the partition's bound in one match: a control log has 100,000 jobs
    rf"(?:dispatch|replicate|audit):[A-Za-z0-9._/-]{{1,{MAX_NAME_CHARS}}}"
    rf":[A-Za-z0-9._-]{{1,{MAX_TOPIC_CHARS}}}:(0|[1-9][0-9]{{0,9}})"
)
_JOB = re.compile(PATTERN, re.ASCII)


class Kind(StrEnum):
    """The kinds of jobs."""

    DISPATCH = "dispatch"  # delivered to a receiver
    REPLICATE = "replicate"  # copied to another cluster
    AUDIT = "audit"  # counted


class JobFault(NamedTuple):
    """Handling the batch at base offset `at` raised `error`, and the job had to stop."""

    at: int
    error: Exception


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """A job's identity; ordered by kind, name, topic, partition.

    Attributes:
        kind: The kind of job.
        name: The workload ("group/topic"), route or audit plan.
        topic: The topic to read; for a workload also one of its retry topics.
        partition: The partition to read, from 0.

    Raises:
        ValueError: A part is empty, too long or has a forbidden character, or the partition is no int32.
    """

    kind: Kind
    name: str
    topic: str
    partition: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", Kind(self.kind))  # JSON gives plain text
        _check("name", self.name, _NAME, MAX_NAME_CHARS, "letters, digits, '.', '_', '/' and '-'")
        _check("topic", self.topic, _TOPIC, MAX_TOPIC_CHARS, "letters, digits, '.', '_' and '-'")
        if not 0 <= self.partition <= MAX_PARTITION:
            raise ValueError(f"job partition {self.partition} is outside 0..{MAX_PARTITION}")

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}:{self.topic}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> JobId:
        """The job with this text form.

        Raises:
            ValueError: No job has exactly this text as `str(job)`.
        """
        parts = text.split(":")
        if len(parts) != 4:
            raise ValueError(
                f"job {text!r} has {len(parts)} parts; write it as kind:name:topic:partition, "
                "for example dispatch:billing/orders:orders:3"
            )
        kind, name, topic, partition = parts
        if kind not in Kind.__members__.values():
            raise ValueError(f"job {text!r} has the unknown kind {kind!r}; known: {', '.join(Kind)}")
        if not _PARTITION.fullmatch(partition):
            raise ValueError(f"job {text!r} has the partition {partition!r}; write a number, as in ':3'")
        return cls(Kind(kind), name, topic, int(partition))


def kind_of(job: str) -> Kind:
    """The kind of a job by its text form. Raises ValueError: there is no such kind."""
    return Kind(job.partition(":")[0])


def names_a_job(text: str) -> bool:
    """Whether `JobId.parse` accepts the text."""
    found = _JOB.fullmatch(text)
    return found is not None and int(found[1]) <= MAX_PARTITION


def _check(field: str, value: str, allowed: re.Pattern[str], limit: int, characters: str) -> None:
    if not allowed.fullmatch(value):
        raise ValueError(f"job {field} {value!r} must consist of {characters}, and not be empty")
    if len(value) > limit:
        raise ValueError(f"job {field} {value[:40]!r}... has {len(value)} characters; at most {limit}")
