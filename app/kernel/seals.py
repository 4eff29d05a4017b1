"""Seals: proof that a worker of this region wrote a record of a control topic.

A seal is a MAC. Each worker computes its key from the ids of the control cluster and of the control log's
topic. A topic's id is random, and Kafka gives it only to clients that may describe the topic. So seals keep
out clients that may only write. Where every client may describe every topic they protect nothing:
docs/permissions.md lists the rights that Switchyard needs and that no other client should have.
"""

from __future__ import annotations

import hashlib
import hmac

HEADER = "switchyard-seal"  # 32 bytes, in the records of sealed control topics


def key_of(purpose: bytes, cluster_id: str, topic_id: str) -> bytes:
    """The workers' key: 32 bytes. `topic_id` is that of the control log's topic."""
    return hashlib.sha256(b"\0".join((purpose, cluster_id.encode(), topic_id.encode()))).digest()


def record_seal(secret: bytes, topic: str, key: bytes | None, value: bytes | None) -> bytes:
    """A record's seal: 32 bytes. A key or value of None gives another seal than an empty one."""
    lengths = ("" if part is None else len(part) for part in (key, value))
    head = "\0".join((topic, *map(str, lengths), "")).encode()
    return hmac.digest(secret, head + (key or b"") + (value or b""), "sha256")


def is_same(seal: bytes, other: bytes) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(seal, other)
