"""Valid settings and definitions that tests start from."""

from __future__ import annotations

import copy
from typing import Any

import orjson

from app.dispatch.definition import Workload
from app.failover.topology import Layout, Site

REGIONS = Layout(
    "west",
    {
        f"{region}-{tier}": Site(region, tier)
        for region in ("east", "west")
        for tier in ("regional", "aggregate")
    },
    "west-regional",
)

SETTINGS = """\
region: east
clusters:
  - name: east-regional
    region: east
    tier: regional
    bootstrap: localhost:9092
  - name: east-aggregate
    region: east
    tier: aggregate
    bootstrap: localhost:9093
"""

SMALL: dict[str, Any] = {
    "apiVersion": "switchyard/v1",
    "kind": "Workload",
    "metadata": {"group": "billing", "topic": "orders", "cluster": "east-aggregate"},
    "spec": {"target": {"address": "billing:443"}},
}

# Every field that can be deployed today.
FULL: dict[str, Any] = {
    "apiVersion": "switchyard/v1",
    "kind": "Workload",
    "metadata": {"group": "billing", "topic": "orders", "cluster": "east-aggregate", "owner": "billing-team"},
    "spec": {
        "mode": "active-active",
        "primary": "east",
        "target": {
            "address": "dns:///billing:443", "contract": "unary",
            "method": "/acme.Billing/Take", "timeout": "10s", "keepalive": {"time": "5m", "timeout": "5s"},
        },
        "ordering": "none",
        "flow": {"max_inflight": 500, "messages_per_second": 1000, "bytes_per_second": "4MiB"},
        "tracker": {"capacity": 20000},
        "headOfLine": {
            "after": "5m", "stash": "dlq", "perMinute": 5, "patience": "2s", "full": 0.8, "unfinished": 0.05,
        },
        "redelivery": {
            "maxAttempts": 4, "initialBackoff": "200ms", "maxBackoff": "5s", "backoffMultiplier": 3,
            "jitter": 0.2,
        },
        "breaker": {
            "unavailable": 5, "failures": 20, "overloadShare": 0.8, "overloadCalls": 50, "window": "30s",
            "firstProbe": "200ms", "longestProbe": "5s",
        },
        "retry": [{"delay": "1m", "attempts": 3}, {"delay": "10m", "attempts": 3}],
        "dlq": {"enabled": True, "maxMerges": 5, "share": 0.2, "perMinute": 30, "burst": 50},
        "delay": "0s",
        "notBefore": "ignore",
        "headers": {"allow": ["traceparent", "x-*"], "deny": ["x-internal"]},
        "payload": {
            "protobuf": {
                "descriptor": "orders.desc", "message": "acme.Order", "framing": "confluent",
                "deliver": "bytes", "invalid": "deliver",
            },
        },
        "catchUp": {"lag": 1000000, "rate": 2000},
        "start": "latest",
        "placement": {"group": "critical"},
        "hibernate": {"after": "1h"},
    },
}  # fmt: skip

ISOLATION: dict[str, Any] = {
    "zone": "x-zone",
    "environment": "x-environment",
    "targets": [
        {"environment": "staging", "zone": "b", "address": "billing-staging-b:443"},
        {"environment": "staging", "address": "billing-staging:443"},
        {"zone": "b", "address": "billing-b:443"},
    ],
    "unmatched": "skip",
    "production": ["live"],
}


def changed(path: str, value: Any, *, base: dict[str, Any] = SMALL) -> dict[str, Any]:
    """A copy of `base` in which the field at "a/b/c" is `value`."""
    document = copy.deepcopy(base)
    *above, name = path.split("/")
    at: Any = document
    for part in above:
        at = at.setdefault(part, {})
    at[name] = value
    return document


def with_bytes(workload: dict[str, Any], size: int) -> dict[str, Any]:
    """The workload in canonical form, with 1,000 isolation targets that make it `size` bytes of JSON."""
    made = copy.deepcopy(workload)
    targets = [{"environment": f"env-{number}", "address": "h:1"} for number in range(1000)]
    made["spec"]["isolation"] = {"environment": "environment", "targets": targets}
    each, rest = divmod(size - len(orjson.dumps(Workload.model_validate(made).to_wire())), len(targets))
    for number, target in enumerate(targets):
        target["address"] = _address(len("h:1") + each + (number < rest))
    return Workload.model_validate(made).to_wire()


def _address(length: int) -> str:
    """A list of servers with this many letters."""
    count = -(-(length + 1) // 200)
    size, rest = divmod(length + 1, count)  # of each with its comma
    return ",".join(_host(size + (number < rest) - len(":1,")) + ":1" for number in range(count))


def _host(length: int) -> str:
    return (("h" * 59 + ".") * 4)[: length - 1] + "h"
