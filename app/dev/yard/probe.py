"""Checks whether a broker serves clients: one Metadata request over a plain socket.

A KRaft broker opens its port before it serves, and answers requests only once the controller has unfenced
it. So an answer that names a broker means ready, and an open port means nothing. A secured broker answers
only after a login: the probe uses SASL PLAIN.
"""

from __future__ import annotations

import socket
import struct

METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE = 3, 17, 36
METADATA_VERSION = 1  # the oldest version that can request no topics; Kafka 4 still serves it
MAX_ANSWER_BYTES = 1 << 20  # a yard's broker answers in some fifty bytes


def answers(bootstrap: str, timeout_s: float = 1.0, login: tuple[str, str] | None = None) -> bool:
    """Whether the broker at `host:port` answers a Metadata request with a live broker.

    `login`: name and password for a listener that needs them.
    """
    host, _, port = bootstrap.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            if login is not None and not _logged_in(connection, *login):
                return False
            answer = _ask(connection, METADATA, METADATA_VERSION, struct.pack(">i", 0))  # no topics
    except OSError:
        return False
    return len(answer) >= 4 and bool(struct.unpack_from(">i", answer)[0] >= 1)


def _logged_in(connection: socket.socket, name: str, password: str) -> bool:
    mechanism, token = b"PLAIN", f"\0{name}\0{password}".encode()
    for kind, version, body in (
        (SASL_HANDSHAKE, 1, struct.pack(">h", len(mechanism)) + mechanism),
        (SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token),
    ):
        answer = _ask(connection, kind, version, body)
        if len(answer) < 2 or struct.unpack_from(">h", answer)[0]:
            return False
    return True


def _ask(connection: socket.socket, kind: int, version: int, body: bytes) -> bytes:
    """The answer without its correlation id; b"" for an invalid answer. Raises OSError."""
    client_id = b"yard"
    request = struct.pack(">hhih", kind, version, 1, len(client_id)) + client_id + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not 4 <= size <= MAX_ANSWER_BYTES:
        return b""
    answer = _read(connection, size)
    return answer[4:] if struct.unpack_from(">i", answer)[0] == 1 else b""


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError(f"closed after {len(data)} of {size} bytes")
        data += part
    return data
