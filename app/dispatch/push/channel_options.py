"""gRPC channel options for connections to receivers, for both contracts."""

from __future__ import annotations

CONNECTION_OPTIONS: list[tuple[str, object]] = [
    # A receiver that is back is noticed within a second, not within gRPC's two minutes.
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long connecting may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_send_message_length", -1),
    # Unacknowledged data shows within keepalive_timeout that a peer is gone. Idle connections ping seldom
    # enough for servers that forbid more than one ping in five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # A status may contain a stack trace; beyond gRPC's default of 16 KiB it would not be read at all.
    ("grpc.max_metadata_size", 48 * 1024),
    ("grpc.absolute_max_metadata_size", 64 * 1024),
]
