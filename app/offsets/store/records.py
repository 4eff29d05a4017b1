"""Records of regions' tables on this worker's disk, and the offset map's lines by what they lead from and to.

    o table region                            -> where they were read, and how far: `ChangelogOrigin`
    c name                                    -> the id of the cluster that is called so here
    v table region key                        -> the record, as it stands in the changelog
    v barriers region key                     -> barriers of a line that its record may not hold yet
    i region key                              -> what a line leads from and to, without its barriers
    s source-cluster topic partition region key,  t target-cluster topic region key      -> of a line: nothing

Rules
1. It is a copy: what is damaged, or was read of a topic that was made anew, is thrown away and read again.
2. Records and the offset behind them are written together, and thrown away so: nothing is left out after a
   kill.
3. Nothing is kept in memory but what is asked for: a line may have 30 kB, and there may be ten thousand.

All of it is blocking, and belongs into a thread.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
from rocksdict import Options, Rdict, WriteBatch

from app.controllog import codec
from app.controllog.events import RoutePut, WorkloadPut
from app.kernel.fencing import LogId
from app.offsets.model.line_preview import gathered, with_barriers
from app.offsets.model.offset_map import BarrierItem, OffsetMapLine
from app.offsets.model.translation import CopiedLine, CopiedPartition

log = structlog.get_logger(__name__)

CHECKPOINTS, ROUTES, TRACKERS = "checkpoints", "definitions", "trackers"
ENDS = "trackers-end"  # folded of events (`app.offsets.store.tracker_tail`)
BARRIERS = "barriers"  # of the end of the checkpoint topic (`app.offsets.store.checkpoint_tail`)
MEMTABLE_BYTES = 4 * 1024 * 1024
MAX_LINES = 20_000  # of one topic, into or from it: more cannot be held to answer a question

_SEP = b"\0"  # in no name

P = TypeVar("P", RoutePut, WorkloadPut)


class ChangelogOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The changelog that a region's records were read from, and the next offset of each of its partitions.

    `complete`: it was once read to an end, at `read_ms`. By partition (`app.offsets.store.tracker_tail`):
    `newest_ms`, of a table that an end goes with, when its newest record was written; `since_ms`, of an end,
    since when it was read.
    """

    cluster: str
    topic_id: str
    next_offsets: dict[int, int] = {}
    complete: bool = False
    read_ms: int = 0
    newest_ms: dict[int, int] = {}
    since_ms: dict[int, int] = {}


class _Ends(msgspec.Struct, frozen=True, array_like=True):
    """What a line leads from and to."""

    source: CopiedPartition
    target_cluster: str
    target_topic: str
    target_partition: int
    source_topic_id: str = ""
    target_topic_id: str = ""


class _Head(msgspec.Struct, frozen=True):
    """A line without its barriers, which are passed over unread."""

    target_topic: str
    target_partition: int
    source: LogId
    target: LogId


class StoreDamaged(RuntimeError):
    """The database cannot be used any more; it has to be made anew."""


_head = msgspec.json.Decoder(_Head)
_items = msgspec.json.Decoder(list[BarrierItem])
_origin = msgspec.json.Decoder(ChangelogOrigin)
_ends = msgspec.json.Decoder(_Ends)


class RegionStore:
    """See the module.

    Raises:
        StoreDamaged: (every method) `rebuild` it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: Any = None

    def open(self) -> None:
        """Opens the database, or makes one; one that cannot be opened is made anew."""
        try:
            self._db = self._opened()
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exceptions, and all mean the same here
            log.warning("the store of regions cannot be opened and is made anew", error=str(error))
            self.rebuild()

    def rebuild(self) -> None:
        """Throws everything away."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        self._db = self._opened()

    def close(self) -> None:
        """Closes the database."""
        if self._db is not None:
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
        """Where the records are from; None: there are none."""
        with _damage():
            found = self._db.get(_key(b"o", table, region))
            return None if found is None else _origin.decode(found)

    def reset(self, table: str, region: str, origin: ChangelogOrigin) -> None:
        """Throws the region's records of a table away: they are read anew. Barriers of an end stay true, and
        go with their table."""
        with _damage():
            batch = WriteBatch(raw_mode=True)
            prefixes = [] if table == BARRIERS else [_key(b"v", table, region, "")]
            if table == CHECKPOINTS:
                prefixes += [_key(b"i", region, ""), _key(b"v", BARRIERS, region, "")]
                for row, value in self._rows(prefixes[1]):
                    for index in _rows_of(_ends.decode(value), region, row.removeprefix(prefixes[1])):
                        batch.delete(index)
                batch.delete(_key(b"o", BARRIERS, region))  # its end is read anew, too
            for prefix in prefixes:
                batch.delete_range(prefix, prefix[:-1] + b"\x01")  # a prefix ends with the separator, 0
            batch.put(_key(b"o", table, region), msgspec.json.encode(origin))
            self._db.write(batch)

    def write(
        self, table: str, region: str, records: Mapping[bytes, bytes | None], origin: ChangelogOrigin
    ) -> None:
        """The newest record of each key, and how far was read (rule 2)."""
        with _damage():
            batch = WriteBatch(raw_mode=True)
            for key, value in records.items():
                if _SEP in key:
                    continue  # nobody's: no name has it
                if value is None:
                    self._delete(batch, table, region, key)
                    continue
                if table == CHECKPOINTS:
                    self._index(batch, region, key, value)
                batch.put(_key(b"v", table, region, key), value)
            batch.put(_key(b"o", table, region), msgspec.json.encode(origin))
            self._db.write(batch)

    def add(self, region: str, items: Iterable[BarrierItem], origin: ChangelogOrigin) -> None:
        """Barriers that the region's table may not hold yet, in order, and how far was read (rule 2)."""
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
            for row in _rows_of(_ends.decode(former), region, key):
                batch.delete(row)

    def _index(self, batch: Any, region: str, key: bytes, value: bytes) -> None:
        try:
            _, topic, partition = key.decode().split("/")
            head = _head.decode(value)
            source = CopiedPartition(head.source.cluster_id, topic, int(partition))
            if "\0" in f"{head.source.cluster_id}{head.target.cluster_id}{head.target_topic}":
                raise ValueError("it has a name that nothing has")
        except (ValueError, msgspec.MsgspecError) as error:
            # What it led to before still counts: as a line that tells nothing (`_copying`).
            log.error("a line of the offset map cannot be read", region=region, key=key, error=str(error))
            return
        ends = _Ends(
            source, head.target.cluster_id, head.target_topic, head.target_partition, head.source.topic_id,
            head.target.topic_id,
        )  # fmt: skip
        at, new = _key(b"i", region, key), msgspec.json.encode(ends)
        former = self._db.get(at)
        if former == new:
            return
        if former is not None:
            for row in _rows_of(_ends.decode(former), region, key):
                batch.delete(row)
        batch.put(at, new)
        for row in _rows_of(ends, region, key):
            batch.put(row, b"")

    # -- reading -----------------------------------------------------------------------------------

    def into(self, cluster_id: str, topic: str) -> list[CopiedLine]:
        """All lines into a topic. Raises ValueError: there are too many."""
        return self._lines(_key(b"t", cluster_id, topic, ""), skip=3)

    def of(self, cluster_id: str, topic: str) -> list[CopiedLine]:
        """All lines from a topic. Raises ValueError: there are too many."""
        return self._lines(_key(b"s", cluster_id, topic, ""), skip=4)

    def _lines(self, prefix: bytes, skip: int) -> list[CopiedLine]:
        found: list[CopiedLine] = []
        with _damage():
            for row, _ in self._rows(prefix):
                if len(found) == MAX_LINES:
                    raise ValueError(f"more than {MAX_LINES} lines of the offset map are of one topic")
                region, key = row.split(_SEP)[skip:]
                found.append(self._copying(region.decode(), key))
        return found

    def _copying(self, region: str, key: bytes) -> CopiedLine:
        ends = _ends.decode(self._db.get(_key(b"i", region, key)))
        route = key.decode().split("/")[0]
        line, stored = None, self._db.get(_key(b"v", CHECKPOINTS, region, key))
        with contextlib.suppress(codec.BadEvent):
            line = None if stored is None else codec.checkpoint_line(stored)
        if line is not None or stored is None:
            further = with_barriers(line, self._gathered(region, key))
            if further is not None and _leads_there(further, ends):
                line = further
        if line is None:
            line = OffsetMapLine(
                target_topic=ends.target_topic, target_partition=ends.target_partition, epoch=0, lineage=0,
                source=LogId(ends.source.cluster_id, ends.source_topic_id),
                target=LogId(ends.target_cluster, ends.target_topic_id), barriers=[],
            )  # fmt: skip
        return CopiedLine(region, route, ends.source, line)

    def record(self, table: str, region: str, key: str) -> bytes | None:
        """One record."""
        with _damage():
            found: bytes | None = self._db.get(_key(b"v", table, region, key))
            return found

    def records(self, table: str, region: str, beginning: str = "") -> Iterable[tuple[str, bytes]]:
        """Records of a region's table whose keys begin so, one after the other."""
        with _damage():
            skip = len(_key(b"v", table, region, ""))
            for row, value in self._rows(_key(b"v", table, region, beginning)):
                yield row[skip:].decode("utf-8", "replace"), value

    def definitions(self, region: str, kind: type[P], beginning: str) -> Iterator[tuple[str, P]]:
        """A region's definitions of a kind with their keys, which begin so. Unreadable ones are left out."""
        for key, value in self.records(ROUTES, region, beginning):
            try:
                put = codec.control_event(value)
            except codec.BadEvent:
                continue
            if isinstance(put, kind):
                yield key, put

    def cluster_of(self, region: str, route: str, *, target: bool) -> str:
        """The id of the cluster that a route leads to, or from, as its lines tell it; "" when none does."""
        with _damage():
            for _, value in self._rows(_key(b"i", region, f"{route}/")):
                ends = _ends.decode(value)
                return ends.target_cluster if target else ends.source.cluster_id
        return ""

    def named(self, cluster: str) -> str:
        """The id of a cluster when it was last heard; "" when it never was."""
        with _damage():
            return (self._db.get(_key(b"c", cluster)) or b"").decode()

    def name(self, cluster: str, cluster_id: str) -> None:
        """A cluster was heard, and has this id."""
        with _damage():
            self._db.put(_key(b"c", cluster), cluster_id.encode())

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Those whose keys begin with `prefix`."""
        for row, value in self._db.items(from_key=prefix):
            if not row.startswith(prefix):
                return
            yield row, value


def _head_of(item: BarrierItem) -> _Head:
    return _Head(item.target_topic, item.target_partition, item.source, item.target)


def _leads_there(line: OffsetMapLine, ends: _Ends) -> bool:
    """Of one that leads elsewhere by now the table is going to say so."""
    leads = line.source.cluster_id, line.target.cluster_id, line.target_topic, line.target_partition
    return leads == (ends.source.cluster_id, ends.target_cluster, ends.target_topic, ends.target_partition)


def _key(*parts: bytes | str) -> bytes:
    return _SEP.join(part.encode() if isinstance(part, str) else part for part in parts)


def _rows_of(ends: _Ends, region: str, key: bytes) -> list[bytes]:
    source = ends.source
    return [
        _key(b"s", source.cluster_id, source.topic, str(source.partition), region, key),
        _key(b"t", ends.target_cluster, ends.target_topic, region, key),
    ]


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """Whatever the database raises is damage; what we raise ourselves is not."""
    try:
        yield
    except msgspec.MsgspecError as error:  # a ValueError, too
        raise StoreDamaged(f"the store of regions cannot be read: {error}") from error
    except (ValueError, StoreDamaged):
        raise
    except Exception as error:
        raise StoreDamaged(f"the store of regions cannot be used: {error}") from error
