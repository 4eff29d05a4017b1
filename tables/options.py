"""Options of all tables: keys and values are bytes, and RocksDB is sized for many small tables.

Faust's typed keys would send a table's web route to the wrong worker. Bad data can be reported only where
the agent decodes it; typed values would end the agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MIB = 1024 * 1024

# Faust's defaults are 2 GiB of block cache and three memtables of 64 MiB for every partition.
ROCKSDB_OPTIONS: dict[str, int] = {
    "max_open_files": 256,
    "write_buffer_size": 4 * MIB,
    "max_write_buffer_number": 2,
    "target_file_size_base": 4 * MIB,
    "block_cache_size": 8 * MIB,
    "block_cache_compressed_size": 2 * MIB,
}


def raw_table(app: Any, name: str, *, partitions: int) -> Any:
    """A table of bytes, whose changelog has as many partitions as its agent's topic."""
    return app.Table(
        name,
        partitions=partitions,
        key_type=bytes,  # with the value's, this also makes the stores raw
        value_type=bytes,
        options=ROCKSDB_OPTIONS,
    )


def items_of(table: Any, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """All items of a partition, from this worker's disk."""
    items: Iterator[tuple[bytes, bytes]] = table.data.items_of(partition)  # `app.faust_store`
    return items
