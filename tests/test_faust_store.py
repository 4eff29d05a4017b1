"""Tables on a disk that takes no more: no row is lost, and no dead worker's store is ahead of its rows."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from faust.stores import rocksdb
from faust.types import TP
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import faust_store
from app.faust_store import STORE, PatientStore, StoreUnusable
from tables.options import raw_table
from tests.full_disk import on_small_disk

FULL = "IO error: No space left on device: While appending to file"
CHANGELOG = "changelog"
KEYS = st.sampled_from([b"a", b"b", b"c"])


class Rig:
    """A store whose disk can be full, its changelog, and what the table should hold."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.is_full = folder, False
        self.changelog: list[tuple[bytes, bytes | None]] = []
        self.rows: dict[bytes, bytes] = {}
        put = faust_store._put

        def guarded(db: Any, rows: Any) -> None:
            if self.is_full:
                raise Exception(FULL)
            put(db, rows)

        event = SimpleNamespace(message=SimpleNamespace(partition=0))
        monkeypatch.setattr(faust_store, "_put", guarded)
        monkeypatch.setattr(faust_store, "shortage", lambda *_: "0 MiB are free" if self.is_full else "")
        for module in (faust_store, rocksdb):
            monkeypatch.setattr(module, "current_event", lambda: event)
        self.store = self.open()

    def open(self) -> PatientStore:
        app = faust.App("t", store=f"{STORE}://", datadir=str(self.folder), broker="aiokafka://127.0.0.1:1")
        table = raw_table(app, "rows", partitions=1)
        assert isinstance(table.data, PatientStore)
        return table.data

    def change(self, key: bytes, value: bytes | None) -> None:
        """As an agent does: the changelog first, then the store, then the changelog's answer."""
        self.changelog.append((key, value))
        if value is None:
            self.rows.pop(key, None)
            self.store._del(key)
        else:
            self.rows[key] = value
            self.store._set(key, value)

    def answered(self) -> None:
        self.store.set_persisted_offset(TP(CHANGELOG, 0), len(self.changelog) - 1)

    def die(self) -> None:
        """The process is gone; the next one reads the changelog from where the store says."""
        if self.store._writing is not None:
            self.store._writing.cancel()
        self.store._dbs.pop(0).close()
        self.is_full = False
        self.store = self.open()
        start = self.store.persisted_offset(TP(CHANGELOG, 0))
        events = [
            SimpleNamespace(message=SimpleNamespace(partition=0, key=key, value=value, offset=offset))
            for offset, (key, value) in enumerate(self.changelog)
            if offset > (-1 if start is None else start)
        ]
        self.store.apply_changelog_batch(events, None, None)

    async def written(self) -> None:
        """Returns once no row is in memory only."""
        async with asyncio.timeout(60):
            while self.store.kept_rows:  # noqa: ASYNC110 - as people see it
                await asyncio.sleep(0.05)

    def check(self) -> None:
        assert dict(self.store.items_of(0)) == self.rows
        for key in (b"a", b"b", b"c"):
            assert (self.store._get(key), self.store._contains(key)) == (self.rows.get(key), key in self.rows)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path, monkeypatch)
    yield made
    if made.store._writing is not None:
        made.store._writing.cancel()


@pytest.fixture
def crashed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Why the worker ended."""
    found: list[BaseException] = []

    async def crash(reason: BaseException) -> None:
        found.append(reason)

    monkeypatch.setattr(rig.store.app, "crash", crash)
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), KEYS, st.one_of(st.none(), st.binary(max_size=3))),
        st.sampled_from([("full",), ("room",), ("answered",), ("retry",), ("die",)]),
    ),
    max_size=30,
)  # fmt: skip


@pytest.mark.property
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS)
def test_reads_see_every_row_whatever_the_disk_takes_and_whenever_the_worker_dies(
    steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def play() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            rig = Rig(tmp_path_factory.mktemp("store"), monkeypatch)
            rig.store._db_for_partition(0)
            for step in steps:
                match step:
                    case ("change", key, value):
                        rig.change(key, value)
                    case ("full",):
                        rig.is_full = True
                    case ("room",):
                        rig.is_full = False
                    case ("answered",):
                        rig.answered()
                    case ("retry",):
                        await rig.store._write_next()
                    case ("die",):
                        rig.die()
                rig.check()
            rig.die()
            rig.check()

    asyncio.run(play())


async def test_a_store_writes_what_it_kept_once_there_is_room(rig: Rig) -> None:
    rig.change(b"a", b"1")
    rig.is_full = True
    rig.change(b"a", b"2")
    rig.answered()
    assert (rig.store.kept_rows, rig.store.refusal) == (1, FULL)
    assert rig.store._db_for_partition(0).get(b"a") == b"1"
    rig.is_full = False
    await rig.written()
    assert rig.store._db_for_partition(0).get(b"a") == b"2"
    assert rig.store.persisted_offset(TP(CHANGELOG, 0)) == 1


async def test_a_partition_that_moves_takes_no_later_position_with_it(rig: Rig) -> None:
    """Such a position is behind a row that is not in the store, which would then never come again."""
    rig.change(b"a", b"1")
    rig.answered()
    rig.is_full = True
    rig.change(b"a", b"2")
    table = SimpleNamespace(changelog_topic=SimpleNamespace(topics=[CHANGELOG]))
    rig.store.revoke_partitions(table, {TP(CHANGELOG, 0)})
    rig.is_full = False
    rig.answered()  # the changelog's answer comes late
    assert (rig.store.kept_rows, rig.store.persisted_offset(TP(CHANGELOG, 0))) == (0, 0)
    await rig.store.on_recovery_completed({TP(CHANGELOG, 1)}, set())  # of the partitions that stayed
    rig.answered()
    assert rig.store.persisted_offset(TP(CHANGELOG, 0)) == 0
    await rig.store.on_recovery_completed({TP(CHANGELOG, 0)}, set())
    rig.answered()
    assert rig.store.persisted_offset(TP(CHANGELOG, 0)) == 1


async def test_a_worker_whose_memory_holds_no_more_rows_ends(rig: Rig, crashed: list[BaseException]) -> None:
    rig.is_full = True
    rig.change(b"a", bytes(faust_store.MAX_KEPT_BYTES // 2))
    with pytest.raises(StoreUnusable, match=r"table rows in .*: more than 32 MiB of its rows"):
        rig.change(b"b", bytes(faust_store.MAX_KEPT_BYTES // 2))
    await asyncio.sleep(0)
    assert [type(one) for one in crashed] == [StoreUnusable]
    with contextlib.suppress(StoreUnusable):
        rig.change(b"b", None)


async def test_a_worker_whose_table_can_be_neither_written_nor_read_ends(
    rig: Rig, crashed: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agents would fold events upon rows that are not there."""
    rig.change(b"a", b"1")
    rig.is_full = True
    rig.change(b"a", b"2")
    monkeypatch.setattr(faust_store, "shortage", lambda *_: "")  # somebody fills the disk again
    await rig.store._write_next()
    await asyncio.sleep(0)
    assert "it cannot be opened again, so it cannot be read" in str(crashed[0])
    assert rig.store.kept_rows == 1


def test_other_errors_are_not_kept(rig: Rig) -> None:
    with pytest.raises(ValueError, match="only support bytes"):
        rig.store._write(0, {b"a": 3})  # type: ignore[dict-item]


REAL_DISK = """
    import asyncio, os, sys
    from pathlib import Path
    import faust
    from faust.types import TP
    from app import faust_store
    from tables.options import raw_table
    from tests.full_disk import fill

    async def main(folder: Path) -> None:
        app = faust.App("t", store=f"{faust_store.STORE}://", datadir=str(folder), broker="aiokafka://x:1")
        store = raw_table(app, "rows", partitions=1).data
        store.path.mkdir(parents=True, exist_ok=True)
        offset = 0
        def change(value: bytes) -> None:
            nonlocal offset
            store._write(0, {b"k%d" % offset: value})
            store.set_persisted_offset(TP("c", 0), offset)
            offset += 1
        change(b"first")
        ballast = folder / "ballast"
        fill(ballast)
        for _ in range(100):
            change(bytes(1000))
        print("kept", store.kept_rows > 50, "No space left" in store.refusal, store._get(b"k0"))
        ballast.unlink()
        while store.kept_rows:
            await asyncio.sleep(0.05)
        change(b"last")
        store._dbs.pop(0).close()
        again = raw_table(faust.App("t", store=app.conf.store, datadir=str(folder), broker="aiokafka://x:1"),
                          "rows", partitions=1).data
        print(len(list(again.items_of(0))), again.persisted_offset(TP("c", 0)), again._get(b"k101"))

    asyncio.run(main(Path(sys.argv[1])))
"""


def test_rows_of_a_really_full_disk_are_written_when_it_has_space(tmp_path: Path) -> None:
    out = on_small_disk(tmp_path, 24, [sys.executable, "-c", textwrap.dedent(REAL_DISK), str(tmp_path)])
    printed = [line for line in out.splitlines() if "[warning" not in line and "[error" not in line]
    assert printed == ["kept True True b'first'", "102 101 b'last'"]
