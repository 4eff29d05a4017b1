"""Fingerprints of sets of records: equal for the same records in any order, and additive.

    fingerprint(A + B) = fingerprint(A) + fingerprint(B)      a record that is there twice counts twice

Two kinds, which are never compared with each other
1. A fingerprint of message ids (128 bits) is the sum of a 128-bit mix of each. Two different multisets have
   the same one with a probability of 2^-128, unless an attacker constructs them: it finds faults, not
   attacks.
2. A fingerprint of source offsets (cluster, topic, partition, offset) is the sum of a polynomial of the
   offset, modulo 2^64, twice. Its coefficients are drawn from the source's name. Sums over ranges have a
   closed form, so a million replicated records cost as much as one. Such polynomials are (DEGREE + 1)-wise
   independent. A fault with at most DEGREE offsets lost and as many doubled is found with all but a
   probability near 2^-100. A larger fault is missed only if it makes DEGREE + 1 power sums equal (the problem
   of Prouhet, Tarry and Escott).

Sources: Wegman and Carter, "New hash functions and their use in authentication and set equality", 1981;
Steele, Lea and Flood's SplitMix64 (the mix), 2014.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]

MASK = (1 << 64) - 1
DEGREE = 5
ID_BYTES = 16
_UUID_TEXT_BYTES = 36
_KEYS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # one for each lane: any two odd numbers


class Fingerprint(msgspec.Struct, frozen=True, array_like=True):
    """Two lanes of 64 bits. The default is the fingerprint of the empty set."""

    low: int = 0
    high: int = 0

    def plus(self, other: Fingerprint) -> Fingerprint:
        """The fingerprint of both sets together."""
        return Fingerprint((self.low + other.low) & MASK, (self.high + other.high) & MASK)

    def minus(self, other: Fingerprint) -> Fingerprint:
        """The fingerprint of this set without `other`."""
        return Fingerprint((self.low - other.low) & MASK, (self.high - other.high) & MASK)

    def __str__(self) -> str:
        return f"{self.high:016x}{self.low:016x}"


NOTHING = Fingerprint()


class FingerprintSource(NamedTuple):
    """A partition, by ids, because a new topic or cluster may get an old name."""

    cluster_id: str
    topic_id: str
    partition: int


def mix(words: Words) -> Words:
    """A bijection of 64-bit words that makes neighbours unrelated."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def mixed_ids(ids: Words, key: int) -> Words:
    """A 64-bit hash of each id. Ids are rows of two words."""
    return mix(mix(ids[:, 0] + np.uint64(key)) ^ ids[:, 1])


def lanes_of(ids: Words) -> tuple[Words, Words]:
    """The addends of each id, a row of two words, to the two lanes of a fingerprint."""
    low, high = (mixed_ids(ids, key) for key in _KEYS)
    return low, high


def of_ids(ids: Words) -> Fingerprint:
    """The fingerprint of message ids, rows of two words (`ids_of`)."""
    return Fingerprint(*(int(mixed_ids(ids, key).sum(dtype=np.uint64)) for key in _KEYS))


def ids_of(names: Iterable[bytes]) -> Words:
    """128-bit ids of the ids that clients give their messages, as rows of two words.

    16 bytes are used as they are, a UUID's text becomes the UUID, and anything else is hashed (BLAKE2b).
    """
    found = b"".join([name if len(name) == ID_BYTES else _id_of(name) for name in names])
    return np.frombuffer(found, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def _id_of(name: bytes) -> bytes:
    if len(name) == _UUID_TEXT_BYTES:
        try:
            return uuid.UUID(name.decode("ascii")).bytes
        except ValueError:
            pass
    return blake2b(name, digest_size=ID_BYTES).digest()


def ids_of_offsets(source: FingerprintSource, offsets: Offsets) -> Words:
    """The offsets of a source as ids, for reconciliation. `offset_of` is the inverse."""
    words = np.empty((len(offsets), 2), dtype=np.uint64)
    words[:, 0] = _source_key(source)
    words[:, 1] = offsets
    return words


def offset_of(sources: Iterable[FingerprintSource], name: bytes) -> tuple[FingerprintSource, int] | None:
    """The source, among `sources`, and the offset of an id; None: it is of no such source."""
    key, offset = int.from_bytes(name[:8], "big"), int.from_bytes(name[8:], "big")
    return next(((source, offset) for source in sources if _source_key(source) == key), None)


def _source_key(source: FingerprintSource) -> int:
    return _coefficients(source)[0][0]


def id_bytes(row: Words | Sequence[int]) -> bytes:
    """The id of a row."""
    return int(row[0]).to_bytes(8, "big") + int(row[1]).to_bytes(8, "big")


def with_content(ids: Words, checksums: npt.NDArray[np.uint32]) -> Words:
    """Ids that also depend on the messages' values, so that a changed value is found.

    Args:
        checksums: One for each message's value, in the order of the ids (such as CRC-32C).
    """
    changed = ids.copy()
    changed[:, 1] ^= mix(checksums.astype(np.uint64) + np.uint64(_KEYS[1]))
    return changed


def of_offsets(source: FingerprintSource, offsets: Offsets) -> Fingerprint:
    """The fingerprint of single offsets of a source; an offset that is there twice counts twice."""
    words = offsets.astype(np.uint64)
    return Fingerprint(*(_sum(coefficients, words) for coefficients in _coefficients(source)))


def of_range(source: FingerprintSource, start: int, end: int) -> Fingerprint:
    """The fingerprint of the offsets [start, end), as `of_offsets`, in constant time."""
    if start >= end:
        return NOTHING
    below, upto = _falling_sums(start), _falling_sums(end)
    sums = [high - low for low, high in zip(below, upto, strict=True)]
    return Fingerprint(
        *(
            sum(c * s for c, s in zip(coefficients, sums, strict=True)) & MASK
            for coefficients in _coefficients(source)
        )
    )


@lru_cache(maxsize=65_536)
def _coefficients(source: FingerprintSource) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The coefficients of c0 + c1 x + c2 x (x - 1) + …, one polynomial a lane."""
    name = f"{source.cluster_id}/{source.topic_id}/{source.partition}".encode()

    def lane(number: int) -> tuple[int, ...]:
        many = [
            blake2b(name, digest_size=8, salt=bytes([number, power])).digest() for power in range(DEGREE + 1)
        ]
        return tuple(int.from_bytes(digest, "big") for digest in many)

    return lane(0), lane(1)


def _sum(coefficients: tuple[int, ...], words: Words) -> int:
    """The sum of the polynomial over all words, modulo 2^64."""
    value = np.full(words.shape, coefficients[DEGREE], dtype=np.uint64)
    for power in range(DEGREE - 1, -1, -1):
        value *= words - np.uint64(power)
        value += np.uint64(coefficients[power])
    return int(value.sum(dtype=np.uint64))


def _falling_sums(end: int) -> list[int]:
    """For each power j the sum of x (x - 1) … (x - j + 1) over 0 <= x < end, which is
    end (end - 1) … (end - j) / (j + 1)."""
    sums, product = [], 1
    for power in range(DEGREE + 1):
        product *= end - power
        sums.append(product // (power + 1))
    return sums
