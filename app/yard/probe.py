"""Asks a broker whether it serves clients: one Metadata request over a plain socket.

A KRaft broker opens its port before it serves; it answers requests only once the controller has unfenced
it. So an answer that names at least one broker means ready, and an open port means nothing.
"""

from __future__ import annotations

import socket
import struct

METADATA = 3
METADATA_VERSION = 1  # the oldest that lists no topics when asked for none; Kafka 4 still serves it
MAX_ANSWER_BYTES = 1 << 20  # a yard's broker answers in some fifty bytes


def answers(bootstrap: str, timeout_s: float = 1.0) -> bool:
    """True when the broker at `host:port` answers a Metadata request that names a live broker."""
    host, _, port = bootstrap.rpartition(":")
    client_id = b"yard"
    request = struct.pack(">hhih", METADATA, METADATA_VERSION, 1, len(client_id)) + client_id
    request += struct.pack(">i", 0)  # no topics
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _read(connection, 4))
            if not 8 <= size <= MAX_ANSWER_BYTES:
                return False
            answer = _read(connection, size)
    except OSError:
        return False
    correlation_id, brokers = struct.unpack_from(">ii", answer)
    return bool(correlation_id == 1 and brokers >= 1)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError(f"closed after {len(data)} of {size} bytes")
        data += part
    return data
