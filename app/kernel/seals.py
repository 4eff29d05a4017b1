"""Seals: who may write into a topic, and who wrote a record of it.

A seal is a MAC under a key that each worker of a region makes for itself, of the ids of the control cluster
and of the topic of the control log. A topic's id is random, and Kafka tells it to those who may describe that
topic. So a seal keeps out clients that may only write. It keeps out nobody where every client may describe
every topic: docs/permissions.md has the rights that Switchyard needs, and that nobody else needs.
"""

from __future__ import annotations

import hashlib
import hmac

HEADER = "switchyard-seal"  # 32 bytes, of a record in a sealed control topic


def key_of(purpose: bytes, cluster_id: str, topic_id: str) -> bytes:
    """The workers' key: 32 bytes. `topic_id`: of the control log's topic."""
    return hashlib.sha256(b"\0".join((purpose, cluster_id.encode(), topic_id.encode()))).digest()


def record_seal(secret: bytes, topic: str, key: bytes | None, value: bytes | None) -> bytes:
    """The seal of a record: 32 bytes. A key or value of None has another than an empty one."""
    lengths = ("" if part is None else len(part) for part in (key, value))
    head = "\0".join((topic, *map(str, lengths), "")).encode()
    return hmac.digest(secret, head + (key or b"") + (value or b""), "sha256")


def is_same(seal: bytes, other: bytes) -> bool:
    """Compares in a time that tells nothing."""
    return hmac.compare_digest(seal, other)
