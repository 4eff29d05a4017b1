"""Faust's RocksDB store, which keeps in memory what its disk does not take, and writes it later.

RocksDB takes no write after a failed one until it is opened again, even with space. Faust would lose the
row, and later read a former value and write that one on.

    a failed write ─▶ rows in memory, which reads see ─▶ space again: opened again, written in one batch

Rules
1. While a partition has rows in memory, all its writes go there, its changelog's position included. So a
   worker that dies reads these rows from the changelog again.
2. A partition that moves to another worker takes nothing further until it is recovered. Otherwise a late
   answer of the changelog would write a position behind rows that are not here.
3. A worker that would keep more than `MAX_KEPT_BYTES` of a table ends, and so does one that cannot read a
   table. Its jobs and partitions move.

Iteration over a whole table, which nothing uses, does not see rows in memory; `items_of` does.

`PatientStore` overrides these methods of Faust's store: `_get`, `_contains`, `_set`, `_del`,
`persisted_offset`, `set_persisted_offset`, `apply_changelog_batch`, `_open_for_partition`,
`revoke_partitions`, `on_recovery_completed` and `stop`. No upstream issue is known that asks for this.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import structlog
from faust.stores import STORES, rocksdb
from faust.streams import current_event
from faust.types import TP, CollectionT, EventT
from rocksdict import Rdict, WriteBatch

from app.kernel.free_space import NEEDED_BYTES, in_mib, shortage, takes_no_more

STORE = "patient-rocksdb"  # in a store's URL
STORES.aliases[STORE] = "app.faust_store:PatientStore"

log = structlog.get_logger(__name__)

RETRY_INTERVAL_S = 1.0
NEXT_S = 0.02  # between two partitions: each is opened in the event loop
MAX_KEPT_BYTES = 32 << 20  # of one table
LOCK_HELD = "lock hold by current process"  # RocksDB's words

Rows = dict[bytes, bytes | None]  # None: the key is deleted


class StoreUnusable(RuntimeError):
    """A table of this worker can be neither opened nor kept in memory."""


class PatientStore(rocksdb.Store):
    """`refusal`: why the first of the rows in memory was not written."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.refusal = ""
        self._kept: dict[int, Rows] = {}
        self._kept_bytes = 0
        self._moved: set[int] = set()  # partitions of rule 2
        self._writing: asyncio.Task[None] | None = None  # while rows are in memory

    @property
    def kept_rows(self) -> int:
        """The number of rows that are only in memory."""
        return sum(len(rows) - (self.offset_key in rows) for rows in self._kept.values())

    def items_of(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values of a partition."""
        kept = self._kept.get(partition, {})
        for key, value in self._visible_items(self._db_for_partition(partition)):
            if key not in kept:
                yield key, value
        for key, row in list(kept.items()):
            if row is not None and key != self.offset_key:
                yield key, row

    # -- reading -----------------------------------------------------------------------------------

    def _get(self, key: bytes) -> bytes | None:
        for rows in self._kept_here():
            if key in rows:
                return rows[key]
        return super()._get(key)

    def _contains(self, key: bytes) -> bool:
        for rows in self._kept_here():
            if key in rows:
                return rows[key] is not None
        return super()._contains(key)

    def persisted_offset(self, tp: TP) -> int | None:
        kept = self._kept.get(tp.partition, {}).get(self.offset_key)
        return super().persisted_offset(tp) if kept is None else int(kept)

    def _kept_here(self) -> Iterable[Rows]:
        """The kept rows of the present event's partition; outside an event of all partitions."""
        if not self._kept:
            return ()
        event = current_event()
        return self._kept.values() if event is None else [self._kept.get(event.message.partition, {})]

    # -- writing -----------------------------------------------------------------------------------

    def _set(self, key: bytes, value: bytes | None) -> None:
        self._write(self._partition(), {key: value})

    def _del(self, key: bytes) -> None:
        self._write(self._partition(), {key: None})

    def set_persisted_offset(self, tp: TP, offset: int) -> None:
        if tp.partition not in self._moved:
            self._write(tp.partition, {self.offset_key: str(offset).encode()})

    def apply_changelog_batch(self, batch: Iterable[EventT[Any]], to_key: object, to_value: object) -> None:
        found: dict[int, Rows] = {}
        for event in batch:
            message = event.message
            rows = found.setdefault(message.partition, {})
            rows[cast("bytes", message.key)] = message.value
            rows[self.offset_key] = str(message.offset).encode()
        for partition, rows in found.items():
            self._write(partition, rows)

    def _partition(self) -> int:
        event = current_event()
        assert event is not None, "tables are written by agents only"
        return event.message.partition

    def _write(self, partition: int, rows: Mapping[bytes, bytes | None]) -> None:
        if partition not in self._kept:
            try:
                _put(self._db_for_partition(partition), rows)
            except Exception as error:
                if type(error) is not Exception:  # rocksdict's have no class of their own
                    raise
                self._refused(error)
            else:
                return
        kept = self._kept.setdefault(partition, {})
        for key, value in rows.items():
            self._kept_bytes += _size(key, value) - (_size(key, kept[key]) if key in kept else 0)
            kept[key] = value
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise self._ended(
                f"more than {in_mib(MAX_KEPT_BYTES)} of its rows are not written: {self.refusal}"
            )
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_later())

    def _refused(self, error: Exception) -> None:
        self.refusal = str(error)
        log.error(
            "a table's row cannot be written; this worker keeps it in memory and writes it later",
            table=self.table_name,
            error=self.refusal,
        )

    def _ended(self, why: str) -> StoreUnusable:
        error = StoreUnusable(f"table {self.table_name} in {self.path}: {why}; free space, or check the disk")
        asyncio.get_running_loop().create_task(self.app.crash(error))
        return error

    # -- writing later -----------------------------------------------------------------------------

    async def _write_later(self) -> None:
        pause_s = RETRY_INTERVAL_S
        try:
            while self._kept:
                await asyncio.sleep(pause_s)
                pause_s = NEXT_S if await self._write_next() else RETRY_INTERVAL_S
        finally:
            self._writing = None

    async def _write_next(self) -> bool:
        """Writes the rows of one partition, if the disk takes them; returns whether it did."""
        # Before the old handle goes: it can still be read, and a full disk would not let it open again.
        if await asyncio.to_thread(shortage, self.path, NEEDED_BYTES + 2 * self._kept_bytes):
            return False
        return bool(self._kept) and self._write_kept(next(iter(self._kept)))

    def _write_kept(self, partition: int) -> bool:
        rows = self._kept[partition]
        try:
            if (former := self._dbs.pop(partition, None)) is not None:
                with contextlib.suppress(Exception):  # it repeats its former error
                    former.close()
            _put(self._db_for_partition(partition), rows)
        except Exception as error:  # noqa: BLE001 - rocksdict has no class for its errors
            self._kept[partition] = self._kept.pop(partition)  # the others come first
            if LOCK_HELD in str(error):  # somebody iterates over the old handle
                log.info("a table cannot be opened again yet", table=self.table_name, error=str(error))
            else:
                self._ended(f"it cannot be opened again, so it cannot be read: {error}")
            return False
        self._drop(partition)
        log.warning(
            "a table takes rows again; those in memory were written", table=self.table_name, rows=len(rows)
        )
        return True

    def _drop(self, partition: int) -> None:
        rows = self._kept.pop(partition, {})
        self._kept_bytes -= sum(_size(key, value) for key, value in rows.items())

    # -- partitions come and go --------------------------------------------------------------------

    def _open_for_partition(self, partition: int) -> Rdict:
        try:
            return cast("Rdict", super()._open_for_partition(partition))
        except Exception as error:
            if not takes_no_more(error):
                raise
            path = self.partition_path(partition)
            raise Exception(f"{error}; a table cannot be opened: free space in {path.parent}") from error

    def revoke_partitions(self, table: CollectionT, tps: set[TP]) -> None:
        for tp in tps:
            if tp.topic in table.changelog_topic.topics:
                self._drop(tp.partition)
                self._moved.add(tp.partition)
        super().revoke_partitions(table, tps)

    async def on_recovery_completed(self, active_tps: set[TP], standby_tps: set[TP]) -> None:
        self._moved -= {tp.partition for tp in active_tps | standby_tps}
        await super().on_recovery_completed(active_tps, standby_tps)

    async def stop(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        while self._kept and await self._write_next():
            pass
        await super().stop()


def _put(db: Rdict, rows: Mapping[bytes, bytes | None]) -> None:
    if len(rows) == 1:
        ((key, value),) = rows.items()
        db.delete(key) if value is None else db.put(key, value)
        return
    batch = WriteBatch(raw_mode=True)
    for key, value in rows.items():
        batch.delete(key) if value is None else batch.put(key, value)
    db.write(batch)


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + 100  # with what the dict takes
