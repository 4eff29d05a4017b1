"""Header blocks of requests (HPACK, RFC 7541). What calls share is sent once, and is a byte each afterwards.

A block has two parts. `Fields` are the fields that many calls have in common. The encoder puts them into
the peer's dynamic table and keeps the block that names them, until an insertion moves their indices. The
changing fields come after them as literals, which the peer does not index.

Nothing is Huffman coded: the bytes saved cost more time than they take on a link within a data centre.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from hpack.table import HeaderTable

Field = tuple[bytes, bytes]

STATIC_ENTRIES: dict[Field, int] = {}
STATIC_NAMES: dict[bytes, int] = {}
for _at, (_name, _value) in enumerate(HeaderTable.STATIC_TABLE, 1):
    STATIC_ENTRIES.setdefault((_name, _value), _at)
    STATIC_NAMES.setdefault(_name, _at)

STATIC_COUNT = len(HeaderTable.STATIC_TABLE)
ENTRY_BYTES = 32  # what HPACK adds to the length of name and value
MAX_TABLE_BYTES = 4_096  # more than this is never used, whatever the peer offers
REUSES = 16  # uses as literals before fields are worth the place of others in a full table
MAX_KNOWN_NAMES = 1_000  # a record's headers are named by others
MAX_KNOWN_FIELDS = 1_000  # of calls that will not come again, nobody tells
_INDEXED, _INSERTED, _NEVER_INDEXED, _LITERAL, _TABLE_SIZE = 0x80, 0x40, 0x10, 0x00, 0x20
_INDEX_BITS, _INSERTED_BITS, _LITERAL_BITS, _LENGTH_BITS, _TABLE_SIZE_BITS = 7, 6, 4, 7, 5


class Fields:
    """Header fields that many calls share, in order. Names are lower case, pseudo headers first.

    Args:
        fields: Names and values.
        secret: Names whose values no table keeps, here or at a proxy (RFC 7541, 7.1.3).
    """

    __slots__ = ("fields", "secret", "size")

    def __init__(self, fields: Iterable[Field], secret: Iterable[bytes] = ()) -> None:
        self.fields = tuple(fields)
        self.secret = frozenset(secret)
        self.size = header_list_size(self.fields)


class _Block:
    """How an encoder sends some `Fields`."""

    __slots__ = ("insertions", "uses", "wire")

    def __init__(self) -> None:
        self.wire = b""
        self.insertions = -1  # of the table when `wire` was made; -1: not yet
        self.uses = 0


class HeaderEncoder:
    """The sending side of one connection. Its table is what the peer's decoder holds."""

    def __init__(self) -> None:
        self._capacity = MAX_TABLE_BYTES
        self._told_capacity = MAX_TABLE_BYTES
        self._smallest = MAX_TABLE_BYTES
        self._size = 0
        self._entries: deque[Field] = deque()  # the newest first
        self._numbers: dict[Field, int] = {}  # entry -> the number of its insertion
        self._insertions = 0
        self._blocks: dict[Fields, _Block] = {}
        self._name_literals: dict[bytes, bytes] = {}

    def limit_table(self, size: int) -> None:
        """The peer's decoder keeps at most `size` bytes. The next block says that it is obeyed."""
        self._capacity = min(size, MAX_TABLE_BYTES)
        self._smallest = min(self._smallest, self._capacity)
        self._evict(self._capacity)
        self._blocks.clear()  # they may name what is gone, or be literals that fit now

    def encode(self, fields: Fields, changing: Sequence[Field] = ()) -> bytes:
        """The block of one request."""
        # First, as it raises an error where a field is no bytes: then the table is as it was.
        own = self._encode_changing(changing, fields.secret) if changing else b""
        block = self._blocks.get(fields)
        if block is None:
            if len(self._blocks) >= MAX_KNOWN_FIELDS:
                self._blocks.clear()
            block = self._blocks[fields] = _Block()
        if self._told_capacity != self._capacity or self._smallest < self._capacity:
            shared = self._resize() + self._encode_shared(fields, block)
        elif block.insertions == self._insertions:
            shared = block.wire
        else:
            shared = self._encode_shared(fields, block)
        return shared + own

    def _encode_changing(self, changing: Sequence[Field], secret: frozenset[bytes]) -> bytes:
        known, parts = self._name_literals, list[bytes]()
        for name, value in changing:
            if name in secret:
                start = _name_part(_NEVER_INDEXED, _LITERAL_BITS, name)
            else:
                start = known.get(name) or self._name_literal(name)
            parts.append(start)
            size = len(value)
            parts.append(_LENGTHS[size] if size < 127 else _integer(0, _LENGTH_BITS, size))
            parts.append(value)
        return b"".join(parts)

    def _name_literal(self, name: bytes) -> bytes:
        start = _name_part(_LITERAL, _LITERAL_BITS, name)
        if len(self._name_literals) < MAX_KNOWN_NAMES:
            self._name_literals[name] = start
        return start

    def _encode_shared(self, fields: Fields, block: _Block) -> bytes:
        """Makes the block anew. What is kept for later calls names the table as it is after this block."""
        block.uses += 1
        missing = {field for field in fields.fields if self._is_missing(field, fields.secret)}
        needs = sum(map(_entry_size, missing))
        fits = self._size + needs <= self._capacity
        is_worth_room = block.uses % REUSES == 0 and needs <= self._capacity
        inserts = bool(missing) and (fits or is_worth_room)
        secret = fields.secret
        parts = [self._encode_field(field, secret, inserts=inserts) for field in fields.fields]
        if inserts:
            # These insertions were the block's own: the next call's names them by their indices.
            block.wire = b"".join(self._encode_field(field, secret, inserts=False) for field in fields.fields)
        else:
            block.wire = b"".join(parts)
        # Literals are sent again and again, so a use must be counted each time.
        block.insertions = -1 if missing and not inserts and needs <= self._capacity else self._insertions
        return b"".join(parts)

    def _is_missing(self, field: Field, secret: frozenset[bytes]) -> bool:
        return field[0] not in secret and field not in STATIC_ENTRIES and field not in self._numbers

    def _encode_field(self, field: Field, secret: frozenset[bytes], *, inserts: bool) -> bytes:
        name, value = field
        if name in secret:
            return _name_part(_NEVER_INDEXED, _LITERAL_BITS, name) + _string(value)
        index = STATIC_ENTRIES.get(field)
        if index is None and field in self._numbers:
            index = STATIC_COUNT + self._insertions - self._numbers[field]
        if index is not None:
            return _integer(_INDEXED, _INDEX_BITS, index)
        if inserts:
            self._insert(field)
            return _name_part(_INSERTED, _INSERTED_BITS, name) + _string(value)
        return _name_part(_LITERAL, _LITERAL_BITS, name) + _string(value)

    def _insert(self, field: Field) -> None:
        self._evict(self._capacity - _entry_size(field))
        self._entries.appendleft(field)
        self._numbers[field] = self._insertions
        self._insertions += 1
        self._size += _entry_size(field)

    def _evict(self, size: int) -> None:
        while self._size > size:
            field = self._entries.pop()
            del self._numbers[field]
            self._size -= _entry_size(field)

    def _resize(self) -> bytes:
        """Says the smallest capacity since the last block, then the present one (RFC 7541, 4.2)."""
        sizes = [self._capacity] if self._smallest >= self._capacity else [self._smallest, self._capacity]
        self._told_capacity = self._smallest = self._capacity
        return b"".join(_integer(_TABLE_SIZE, _TABLE_SIZE_BITS, size) for size in sizes)


def header_list_size(fields: Iterable[Field]) -> int:
    """The size that SETTINGS_MAX_HEADER_LIST_SIZE limits, in bytes (RFC 9113, 6.5.2)."""
    return sum(len(name) + len(value) + ENTRY_BYTES for name, value in fields)


def _entry_size(field: Field) -> int:
    return len(field[0]) + len(field[1]) + ENTRY_BYTES


def _integer(pattern: int, bits: int, number: int) -> bytes:
    """HPACK's integer of `bits` bits in the first byte, whose other bits are `pattern`'s (RFC 7541, 5.1)."""
    most = (1 << bits) - 1
    if number < most:
        return bytes((pattern | number,))
    out = bytearray((pattern | most,))
    number -= most
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _string(text: bytes) -> bytes:
    return _integer(0, _LENGTH_BITS, len(text)) + text


def _name_part(pattern: int, bits: int, name: bytes) -> bytes:
    index = STATIC_NAMES.get(name)
    if index is not None:
        return _integer(pattern, bits, index)
    return bytes((pattern,)) + _string(name)


_LENGTHS = [bytes((size,)) for size in range(127)]
