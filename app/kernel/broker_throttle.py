"""The delays that brokers' client quotas put on a worker's requests (KIP-219). Pure.

A broker answers at once with the delay, and takes nothing more from that connection until it is over.
"""

from __future__ import annotations

import msgspec

HELD_S = (
    10.0  # shown for so long after a delay is over: a client at its quota is not delayed at every request
)

FETCH, PRODUCE, OTHER = "fetch", "produce", "other"
REQUESTS = (FETCH, PRODUCE, OTHER)
_KINDS = {0: PRODUCE, 1: FETCH}  # by API key
_QUOTAS = {FETCH: "consumer_byte_rate", PRODUCE: "producer_byte_rate", OTHER: "request_percentage"}


class BrokerThrottle(msgspec.Struct, frozen=True, array_like=True):
    """A delay of requests to a cluster; `request` is one of `REQUESTS`."""

    cluster: str
    request: str
    delay_ms: int

    def __str__(self) -> str:
        return (
            f"the broker's quota delays {self.request} requests to cluster {self.cluster} by"
            f" {self.delay_ms:,} ms; raise {_QUOTAS.get(self.request, 'the quota')} of Switchyard's user or"
            " client id with kafka-configs.sh"
        )


class ThrottleMeter:
    """The newest delays of one cluster's requests."""

    __slots__ = ("_cluster", "_newest")

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._newest: dict[
            str, tuple[int, float]
        ] = {}  # by request: the delay, and the time to show it until

    def note(self, api_key: int, delay_ms: int, now_s: float) -> None:
        """Takes the delay of an answer; 0 ends none that is shown."""
        if delay_ms > 0:
            request = _KINDS.get(api_key, OTHER)
            self._newest[request] = delay_ms, now_s + delay_ms / 1000 + HELD_S

    def throttles(self, now_s: float) -> list[BrokerThrottle]:
        """The delays that hold now, or did in the last `HELD_S`."""
        return [
            BrokerThrottle(self._cluster, request, delay_ms)
            for request, (delay_ms, until_s) in sorted(self._newest.items())
            if now_s < until_s
        ]
