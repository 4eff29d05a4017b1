"""What all tables share: bytes in, bytes out, and RocksDB sized for many small tables.

Bytes, because typed keys send Faust's table routes to the wrong worker, and because decoding inside the
agent is the only place where bad data can be told instead of killing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MIB = 1024 * 1024

# Faust's defaults are 2 GiB of block cache and three memtables of 64 MiB for every partition.
ROCKSDB_OPTIONS: dict[str, Any] = {
    "max_open_files": 256,
    "write_buffer_size": 4 * MIB,
    "max_write_buffer_number": 2,
    "target_file_size_base": 4 * MIB,
    "block_cache_size": 8 * MIB,
    "block_cache_compressed_size": 2 * MIB,
}


def raw_table(app: Any, name: str, *, partitions: int) -> Any:
    """A table of bytes by bytes, whose changelog has the partitions of its agent's topic."""
    return app.Table(
        name,
        partitions=partitions,
        key_type=bytes,  # with the value's, this also makes the stores raw
        value_type=bytes,
        options=ROCKSDB_OPTIONS,
    )


def items_of(table: Any, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """All of a partition of a table, as its agent finds it on this worker's disk."""
    store = table.data  # Faust's own iteration mixes all partitions
    yield from store._visible_items(store._db_for_partition(partition))
