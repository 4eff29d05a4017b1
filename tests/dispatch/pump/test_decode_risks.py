"""A batch that kills every worker which decodes it goes to the DLQ; no other message does."""

from __future__ import annotations

import pytest

from app.dispatch.model.retry_headers import CODE, RAW_BATCH, REASON
from app.dispatch.pump.partition import DispatchPump
from app.kafka.fetch import decoder
from app.kafka.records.decode_risks import MOST_OWNERS
from app.offsets.model.producer_progress import risks_of
from tests.dispatch.pump.rig import DispatchRig, dispatch_rig, numbers
from tests.kafka.records.batches import CODECS, make_batch

LARGE = make_batch(10, [(None, b"%d" % n + bytes(10_000)) for n in range(10, 15)], codec=CODECS["zstd"])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "RISKY_BYTES", 20_000)


def fed(rig: DispatchRig, note: bytes = b"") -> DispatchPump:
    """A pump that inherits the note and gets the batch between others."""
    pump = rig.pump()
    pump.inherit_risks(note)
    rig.feed(pump, numbers(10))
    rig.feed_bytes(pump, LARGE, 5)
    rig.feed(pump, numbers(10, 15))
    return pump


def save(pump: DispatchPump) -> bytes:
    """Saves the snapshot like a checkpoint; returns its note."""
    version, note = pump.version, pump.note
    pump.snapshot_version = version
    return note


async def test_a_batch_that_becomes_large_is_decoded_once_its_note_is_saved_and_then_forgotten() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = fed(rig)
        await rig.until(lambda: pump.tracker.base == 10)
        assert risks_of(pump.note) == ((10, 1),)
        assert pump.version != pump.snapshot_version, "there is something to save"

        save(pump)
        await rig.idle()

        assert pump.delivered == 25
        assert risks_of(pump.note) == ()
        assert pump.version != pump.snapshot_version
        assert not rig.copied.records


async def test_the_third_owner_dead_letters_a_batch_that_killed_two_owners_without_decoding_it() -> None:
    note = b""
    for _ in range(MOST_OWNERS):
        async with dispatch_rig(lambda _: None) as rig:
            pump = fed(rig, note)
            await rig.until(lambda pump=pump: pump.tracker.base == 10)  # type: ignore[misc]
            note = pump.note  # and it was killed
    async with dispatch_rig(lambda _: None) as rig:
        pump = fed(rig, note)
        await rig.idle()

        ((_, _, value, headers),) = rig.copied.records
        assert (value, headers[CODE], headers[RAW_BATCH]) == (LARGE, b"UNDECODABLE", b"10-15")
        assert b"2 workers died while they decoded this batch" in (headers[REASON] or b"")
        assert (pump.delivered, pump.dead_lettered) == (20, 1)
        assert risks_of(pump.note) == ()


async def test_owners_that_are_killed_behind_the_batch_or_hand_over_before_it_condemn_no_batch() -> None:
    note = b""
    for number in range(6):
        async with dispatch_rig(lambda _: None) as rig:
            pump = fed(rig, note)
            await rig.until(lambda pump=pump: pump.tracker.base == 10)  # type: ignore[misc]
            if number % 2:
                pump.stop_intake()
            else:
                save(pump)
                await rig.idle()
            note = pump.note
            assert risks_of(note) == ()
            assert not rig.copied.records


async def test_a_backlog_decodes_its_batch_once_the_whole_jobs_note_is_saved() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        backlog = rig.pump()
        main = rig.split(backlog, 20)
        rig.feed(backlog, numbers(10))
        rig.feed_bytes(backlog, LARGE, 5)
        rig.feed(backlog, numbers(5, 15))
        await rig.until(lambda: backlog.tracker.base == 10)
        assert risks_of(main.note) == ((10, 1),)
        save(main)
        await rig.until(lambda: backlog.tracker.base == 20)
        assert not rig.copied.records
