"""What is copied again is copied once."""

from __future__ import annotations

from app.audit.prints import Reader, Window
from app.control.audit_copy import NEAR, runs_of, same_of
from app.core.audit.count import How
from app.core.audit.missing import Seen
from app.core.audit.origins import Partition
from app.core.record_batch import iter_batches
from app.kafka.decode import records_of
from tests.core.audit.logs import Log

PLACE = Partition("east", "orders", 0)


def test_a_batch_that_holds_records_of_several_runs_gives_each_of_them_once() -> None:
    log = Log()
    log.append([1_000] * (3 * NEAR))
    (batch,) = iter_batches(log.batches[0][1])
    reader = Reader(PLACE, How(records_of), Window(0, 2_000))
    records = {record.offset: record for record in records_of(batch)}
    missing = [0, 1, NEAR + 1, NEAR + 500, 3 * NEAR - 1]
    seen = {
        offset: Seen(PLACE, offset, reader.contents_of(records[offset]), 0, 0, 1_000) for offset in missing
    }

    runs = runs_of(seen)
    assert [sorted(run) for run in runs] == [[0, 1, NEAR + 1, NEAR + 500], [3 * NEAR - 1]]
    copied = [record.offset for run in runs for record in same_of(batch, run, reader)]
    assert copied == missing


def test_what_is_another_record_now_is_not_copied() -> None:
    log = Log()
    log.append([1_000, 1_001])
    (batch,) = iter_batches(log.batches[0][1])
    reader = Reader(PLACE, How(records_of), Window(0, 2_000))
    seen = {0: Seen(PLACE, 0, 7, 0, 0, 1_000)}
    assert same_of(batch, seen, reader) == []
