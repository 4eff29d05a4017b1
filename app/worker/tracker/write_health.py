"""Since when each partition of the tracker topic has accepted no event from this worker. Pure.

Any success ends a partition's trouble, so a slow topic is no trouble. So does silence: a sender tries
again within a second, or has given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from aiokafka.errors import KafkaError

from app.kafka.client.startup_retry import heals

FORGET_AFTER_S = 5.0


@dataclass(slots=True)
class WriteTrouble:
    """`since_s`: monotonic. `why`: the last error; "" while none came."""

    partition: int
    since_s: float
    why: str = ""


@dataclass(slots=True)
class _Partition:
    trouble: WriteTrouble
    waiting: int = 0
    failed_s: float = float("-inf")


class WriteHealth:
    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def began(self, partition: int, now_s: float) -> None:
        """A write begins; `ended` or `abandoned` follows."""
        state = self._partitions.setdefault(partition, _Partition(WriteTrouble(partition, now_s)))
        state.waiting += 1

    def ended(self, partition: int, now_s: float, error: BaseException | None = None) -> None:
        """The write was accepted, or failed with `error`."""
        state = self._partitions[partition]
        state.waiting -= 1
        if error is not None:
            state.failed_s = now_s
            state.trouble.why = str(error) or repr(error)
        elif state.waiting:
            state.trouble = WriteTrouble(partition, now_s)
        else:
            del self._partitions[partition]

    def abandoned(self, partition: int) -> None:
        """The sender was cancelled; the outcome is not known."""
        self._partitions[partition].waiting -= 1

    def begin_again(self, now_s: float) -> None:
        """Forgets the past: the whole cluster was unreachable."""
        for partition, state in list(self._partitions.items()):
            if state.waiting:
                state.trouble = WriteTrouble(partition, now_s)
            else:
                del self._partitions[partition]

    def trouble(self, now_s: float) -> WriteTrouble | None:
        for partition, state in list(self._partitions.items()):
            if not state.waiting and now_s - state.failed_s > FORGET_AFTER_S:
                del self._partitions[partition]
        found = [state.trouble for state in self._partitions.values()]
        return min(found, key=lambda trouble: trouble.since_s, default=None)


class ProbeFailure(NamedTuple):
    """The failure of a new connection. `is_refusal`: every repetition gets the same answer."""

    partition: int
    why: str
    is_refusal: bool

    @classmethod
    def of(cls, partition: int, error: BaseException) -> ProbeFailure:
        is_refusal = isinstance(error, KafkaError) and not heals(error)
        return cls(partition, str(error) or repr(error), is_refusal)
