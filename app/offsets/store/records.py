"""Records of regions' tables on this worker's disk, with the offset map by source and by destination.

    o table region                            -> `ChangelogOrigin`: the changelog and the next offsets
    c name                                    -> the cluster's id when it last answered
    v table region key                        -> the record, as in the changelog
    v barriers region key                     -> a line's offset syncs from the tail
    i region key                              -> `_Endpoints` of a line
    s source-cluster topic partition region key -> nothing; finds lines by source
    t target-cluster topic region key         -> nothing; finds lines by destination

Rules
1. The store is a copy. Damaged records, and those of a recreated topic, are deleted and read again.
2. Records and the offsets behind them are written and deleted in one batch, so a kill leaves no gap.
3. Memory holds only the results of a query: a line may have 30 kB, and there may be ten thousand.

All methods block, so they run in a thread.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
from aiokafka.structs import TopicPartition
from rocksdict import Options, Rdict, WriteBatch

from app.controllog import codec
from app.controllog.events import RoutePut, WorkloadPut
from app.kafka.records.record import Record
from app.kernel.fencing import LogId
from app.kernel.free_space import takes_no_more
from app.offsets.model.line_preview import gathered, with_barriers
from app.offsets.model.offset_map import BarrierItem, OffsetMapLine
from app.offsets.model.translation import CopiedLine, CopiedPartition

log = structlog.get_logger(__name__)

CHECKPOINTS, ROUTES, TRACKERS = "checkpoints", "definitions", "trackers"
ENDS = "trackers-end"  # the folded tail of the tracker topic (`app.offsets.store.tracker_tail`)
BARRIERS = "barriers"  # offset syncs in the checkpoint topic's tail (`app.offsets.store.checkpoint_tail`)
MEMTABLE_BYTES = 4 * 1024 * 1024
MAX_LINES = 20_000  # into or from one topic: the most that a query holds in memory

_SEP = b"\0"  # no name contains it

P = TypeVar("P", RoutePut, WorkloadPut)


class ChangelogOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The changelog of a region's records, and the next offset of each partition. `complete`: it was once
    read to its end, last at `read_ms`. By partition: `newest_ms` is the timestamp of a table's newest record,
    `since_ms` the time from which a tail has all events (`app.offsets.store.tracker_tail`)."""

    cluster: str
    topic_id: str
    next_offsets: dict[int, int] = {}
    complete: bool = False
    read_ms: int = 0
    newest_ms: dict[int, int] = {}
    since_ms: dict[int, int] = {}


class _Endpoints(msgspec.Struct, frozen=True, array_like=True):
    """A line's source and destination."""

    source: CopiedPartition
    target_cluster: str
    target_topic: str
    target_partition: int
    source_topic_id: str = ""
    target_topic_id: str = ""


class _Head(msgspec.Struct, frozen=True):
    """A line without its offset syncs; the decoder skips those."""

    target_topic: str
    target_partition: int
    source: LogId
    target: LogId


ReadRecords = Mapping[TopicPartition, Sequence[Record]]  # as a consumer gives them


class StoreDamaged(RuntimeError):
    """The database cannot be used and has to be rebuilt."""


class StoreFull(RuntimeError):
    """The disk takes no more. What is stored can be read; nothing is written until the database reopens."""


_head = msgspec.json.Decoder(_Head)
_items = msgspec.json.Decoder(list[BarrierItem])
_origin = msgspec.json.Decoder(ChangelogOrigin)
_endpoints = msgspec.json.Decoder(_Endpoints)


class RegionStore:
    """The database. Every method raises StoreDamaged when it has to be rebuilt (`rebuild`), or StoreFull."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: Any = None

    def open(self) -> None:
        """Opens or creates the database; one that cannot be opened is rebuilt. Raises StoreFull."""
        try:
            self._db = self._opened()
        except Exception as error:  # rocksdict raises plain Exceptions
            if takes_no_more(error):
                raise StoreFull(str(error)) from error
            log.warning("the regions store cannot be opened and is rebuilt", error=str(error))
            self.rebuild()

    def rebuild(self) -> None:
        """Deletes all records."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        self._db = self._opened()

    def close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(Exception):  # a refused write; its records are read again
                self._db.close()
            self._db = None

    def _opened(self) -> Any:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(MEMTABLE_BYTES)
        options.set_max_write_buffer_number(2)
        options.set_max_open_files(256)
        return Rdict(str(self.path), options=options)

    # -- writing -----------------------------------------------------------------------------------

    def origin(self, table: str, region: str) -> ChangelogOrigin | None:
        """Where the records come from; None: there are none."""
        with _damage():
            found = self._db.get(_key(b"o", table, region))
            return None if found is None else _origin.decode(found)

    def reset(self, table: str, region: str, origin: ChangelogOrigin) -> None:
        """Deletes a table's records, to read them again; of `CHECKPOINTS` also the tail. A reset of
        `BARRIERS` keeps its offset syncs, because they are true."""
        with _damage():
            batch = WriteBatch(raw_mode=True)
            prefixes = [] if table == BARRIERS else [_key(b"v", table, region, "")]
            if table == CHECKPOINTS:
                prefixes += [_key(b"i", region, ""), _key(b"v", BARRIERS, region, "")]
                for row, value in self._rows(prefixes[1]):
                    for index in _index_rows(_endpoints.decode(value), region, row.removeprefix(prefixes[1])):
                        batch.delete(index)
                batch.delete(_key(b"o", BARRIERS, region))  # its tail is read again, too
            for prefix in prefixes:
                batch.delete_range(prefix, prefix[:-1] + b"\x01")  # a prefix ends with the separator, 0
            batch.put(_key(b"o", table, region), msgspec.json.encode(origin))
            self._db.write(batch)

    def write(
        self, table: str, region: str, records: Mapping[bytes, bytes | None], origin: ChangelogOrigin
    ) -> None:
        """Writes the newest record of each key, and the next offsets (rule 2)."""
        with _damage():
            batch = WriteBatch(raw_mode=True)
            for key, value in records.items():
                if _SEP in key:
                    continue  # no key of Switchyard contains it
                if value is None:
                    self._delete(batch, table, region, key)
                    continue
                if table == CHECKPOINTS:
                    self._index(batch, region, key, value)
                batch.put(_key(b"v", table, region, key), value)
            batch.put(_key(b"o", table, region), msgspec.json.encode(origin))
            self._db.write(batch)

    def add(self, region: str, items: Iterable[BarrierItem], origin: ChangelogOrigin) -> None:
        """Adds offset syncs from the tail, in order, and the next offsets (rule 2)."""
        with _damage():
            batch = WriteBatch(raw_mode=True)
            found: dict[bytes, list[BarrierItem]] = {}
            for item in items:
                key = item.key.encode()
                if _SEP in key:
                    continue
                if key not in found:
                    found[key] = self._gathered(region, key)
                found[key] = gathered(found[key], item)
            for key, known in found.items():
                value = msgspec.json.encode(known)
                if self._db.get(_key(b"i", region, key)) is None:
                    self._index(batch, region, key, msgspec.json.encode(_head_of(known[-1])))
                batch.put(_key(b"v", BARRIERS, region, key), value)
            batch.put(_key(b"o", BARRIERS, region), msgspec.json.encode(origin))
            self._db.write(batch)

    def _gathered(self, region: str, key: bytes) -> list[BarrierItem]:
        stored = self._db.get(_key(b"v", BARRIERS, region, key))
        return [] if stored is None else _items.decode(stored)

    def _delete(self, batch: Any, table: str, region: str, key: bytes) -> None:
        batch.delete(_key(b"v", table, region, key))
        if table != CHECKPOINTS:
            return
        batch.delete(_key(b"v", BARRIERS, region, key))
        if (former := self._db.get(_key(b"i", region, key))) is not None:
            batch.delete(_key(b"i", region, key))
            for row in _index_rows(_endpoints.decode(former), region, key):
                batch.delete(row)

    def _index(self, batch: Any, region: str, key: bytes, value: bytes) -> None:
        try:
            _, topic, partition = key.decode().split("/")
            head = _head.decode(value)
            source = CopiedPartition(head.source.cluster_id, topic, int(partition))
            if "\0" in f"{head.source.cluster_id}{head.target.cluster_id}{head.target_topic}":
                raise ValueError("a name contains a null character")
        except (ValueError, msgspec.MsgspecError) as error:
            # Its former endpoints stay, as a line without offset syncs (`_copied_line`).
            log.error("a line of the offset map cannot be read", region=region, key=key, error=str(error))
            return
        ends = _Endpoints(
            source, head.target.cluster_id, head.target_topic, head.target_partition, head.source.topic_id,
            head.target.topic_id,
        )  # fmt: skip
        at, new = _key(b"i", region, key), msgspec.json.encode(ends)
        former = self._db.get(at)
        if former == new:
            return
        if former is not None:
            for row in _index_rows(_endpoints.decode(former), region, key):
                batch.delete(row)
        batch.put(at, new)
        for row in _index_rows(ends, region, key):
            batch.put(row, b"")

    # -- reading -----------------------------------------------------------------------------------

    def lines_into(self, cluster_id: str, topic: str) -> list[CopiedLine]:
        """All lines into a topic. Raises ValueError: there are too many."""
        return self._lines(_key(b"t", cluster_id, topic, ""), skip=3)

    def lines_from(self, cluster_id: str, topic: str) -> list[CopiedLine]:
        """All lines from a topic. Raises ValueError: there are too many."""
        return self._lines(_key(b"s", cluster_id, topic, ""), skip=4)

    def _lines(self, prefix: bytes, skip: int) -> list[CopiedLine]:
        found: list[CopiedLine] = []
        with _damage():
            for row, _ in self._rows(prefix):
                if len(found) == MAX_LINES:
                    raise ValueError(f"a topic has more than {MAX_LINES} lines in the offset map")
                region, key = row.split(_SEP)[skip:]
                found.append(self._copied_line(region.decode(), key))
        return found

    def _copied_line(self, region: str, key: bytes) -> CopiedLine:
        ends = _endpoints.decode(self._db.get(_key(b"i", region, key)))
        route = key.decode().split("/")[0]
        line, stored = None, self._db.get(_key(b"v", CHECKPOINTS, region, key))
        with contextlib.suppress(codec.BadEvent):
            line = None if stored is None else codec.checkpoint_line(stored)
        if line is not None or stored is None:
            further = with_barriers(line, self._gathered(region, key))
            if further is not None and _has_endpoints(further, ends):
                line = further
        if line is None:
            line = OffsetMapLine(
                target_topic=ends.target_topic, target_partition=ends.target_partition, epoch=0, lineage=0,
                source=LogId(ends.source.cluster_id, ends.source_topic_id),
                target=LogId(ends.target_cluster, ends.target_topic_id), barriers=[],
            )  # fmt: skip
        return CopiedLine(region, route, ends.source, line)

    def record(self, table: str, region: str, key: str) -> bytes | None:
        """One record; None: there is none."""
        with _damage():
            found: bytes | None = self._db.get(_key(b"v", table, region, key))
            return found

    def records(self, table: str, region: str, beginning: str = "") -> Iterable[tuple[str, bytes]]:
        """The keys and records of a region's table with this key prefix, in order."""
        with _damage():
            skip = len(_key(b"v", table, region, ""))
            for row, value in self._rows(_key(b"v", table, region, beginning)):
                yield row[skip:].decode("utf-8", "replace"), value

    def definitions(self, region: str, kind: type[P], beginning: str) -> Iterator[tuple[str, P]]:
        """A region's definitions of one kind with this key prefix; unreadable ones are left out."""
        for key, value in self.records(ROUTES, region, beginning):
            try:
                put = codec.control_event(value)
            except codec.BadEvent:
                continue
            if isinstance(put, kind):
                yield key, put

    def cluster_of(self, region: str, route: str, *, target: bool) -> str:
        """The id of the cluster at the target or source of a route, from its lines; "": it has none."""
        with _damage():
            for _, value in self._rows(_key(b"i", region, f"{route}/")):
                ends = _endpoints.decode(value)
                return ends.target_cluster if target else ends.source.cluster_id
        return ""

    def cluster_id(self, cluster: str) -> str:
        """The id of a cluster when it last answered; "": it never did."""
        with _damage():
            return (self._db.get(_key(b"c", cluster)) or b"").decode()

    def put_cluster_id(self, cluster: str, cluster_id: str) -> None:
        """Keeps the id of a cluster that answered."""
        with _damage():
            self._db.put(_key(b"c", cluster), cluster_id.encode())

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row, value in self._db.items(from_key=prefix):
            if not row.startswith(prefix):
                return
            yield row, value


def _head_of(item: BarrierItem) -> _Head:
    return _Head(item.target_topic, item.target_partition, item.source, item.target)


def _has_endpoints(line: OffsetMapLine, ends: _Endpoints) -> bool:
    """Whether the line still has these endpoints; otherwise the table will soon have the new ones."""
    of_line = line.source.cluster_id, line.target.cluster_id, line.target_topic, line.target_partition
    return of_line == (ends.source.cluster_id, ends.target_cluster, ends.target_topic, ends.target_partition)


def _key(*parts: bytes | str) -> bytes:
    return _SEP.join(part.encode() if isinstance(part, str) else part for part in parts)


def _index_rows(ends: _Endpoints, region: str, key: bytes) -> list[bytes]:
    source = ends.source
    return [
        _key(b"s", source.cluster_id, source.topic, str(source.partition), region, key),
        _key(b"t", ends.target_cluster, ends.target_topic, region, key),
    ]


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """Turns errors of the database into StoreDamaged; errors of this module pass."""
    try:
        yield
    except msgspec.MsgspecError as error:  # a ValueError, too
        raise StoreDamaged(f"the regions store cannot be read: {error}") from error
    except (ValueError, StoreDamaged, StoreFull):
        raise
    except Exception as error:
        if takes_no_more(error):
            raise StoreFull(str(error)) from error
        raise StoreDamaged(f"the regions store cannot be used: {error}") from error
