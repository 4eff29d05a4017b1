"""gRPC's options for connections to receivers, whatever the contract."""

from __future__ import annotations

from typing import Any

CONNECTING: list[tuple[str, Any]] = [
    # The receiver is back: notice within a second, not within gRPC's two minutes.
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long connecting may take; it delays no other attempt
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_send_message_length", -1),
    # A peer that is silently gone is noticed by unacknowledged data within keepalive_timeout; what is idle
    # pings seldom enough for servers that forbid more than one ping in five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # A status whose words are a stack trace is read; within gRPC's 16 KiB it would be no status at all.
    ("grpc.max_metadata_size", 48 * 1024),
    ("grpc.absolute_max_metadata_size", 64 * 1024),
]
