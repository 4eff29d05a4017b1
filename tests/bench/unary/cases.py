"""The cases of the bench `dispatch-unary`, and what a run of one gives.

All sides run equally long, because they differ manyfold in speed. Each warms up after its first message, and
is then measured for MEASURED_S, or until the topic ends.
"""

from __future__ import annotations

from dataclasses import dataclass

METHOD = "/switchyard.bench.Echo/Call"  # of the receiver, see tests.grpc_client.peers
MEASURED_S = 6.0
TAIL = 0.98  # no side is measured beyond this share of the topic, because its end is slower
# Records that a share group may have acquired at once: the default of 2,000 would bound its polls.
BROKER = {"group.share.partition.max.record.locks": "10000"}


@dataclass(frozen=True, slots=True)
class Case:
    """A measured case.

    Attributes:
        title: For people.
        delay_ms: How long a call lasts in the receiver; 0: it is answered at once.
        in_flight: Calls at once.
        value_bytes: The size of every value.
        messages: How many the topic has: enough for the quickest side.
        share_consumers: Consumers of a share group; the quickest of 1, 2, 4 and 8 here.
        share_records: Their `max.poll.records`; the quickest of 50 to 10,000 here.
        warm_up_s: From a run's first message to its measurement.
        is_secure: The receiver has TLS; its certificate is checked.
    """

    title: str
    delay_ms: int
    in_flight: int
    value_bytes: int
    messages: int
    share_consumers: int
    share_records: int
    warm_up_s: float = 3.0
    is_secure: bool = False

    @property
    def last(self) -> int:
        """The number of messages after which every measurement ends, if its time is not over before."""
        return int(self.messages * TAIL)


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a run.

    Attributes:
        per_second: Messages acknowledged a second.
        cpu_us: Processor time of the side's own process, in microseconds a message. Receiver and broker are
            left out.
        seconds: How long it was measured.
    """

    per_second: float
    cpu_us: float
    seconds: float


CREDENTIALS = "bench"  # of the worker, for receivers with TLS

CASES = {
    "instant": Case("instant receiver, 200 in flight, 200 bytes", 0, 200, 200, 600_000, 1, 5_000),
    "tls": Case("the same with TLS", 0, 200, 200, 600_000, 1, 5_000, is_secure=True),
    "50ms": Case("50 ms receiver, 1,000 in flight, 200 bytes", 50, 1_000, 200, 300_000, 2, 2_000),
    "2kb": Case("instant receiver, 200 in flight, 2 KB", 0, 200, 2_000, 500_000, 2, 2_000),
    # 5 GB, for the broker's page cache: the quickest side reads all of it in one run
    "100kb": Case("instant receiver, 200 in flight, 100 KB", 0, 200, 100_000, 50_000, 4, 200, 1.0),
}
