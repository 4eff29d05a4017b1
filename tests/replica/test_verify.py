"""What was encoded anew is compared with what was read; what a cleaner has taken is no difference."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.core.job import JobId, Kind
from app.core.rate import TokenBucket
from app.core.verbatim import LOG_APPEND_TIME, Copy
from app.kafka.append_encode import copies
from app.replica import verify
from app.replica.verify import Copied, Verifier, _compare, _compare_records
from tests.core.test_verbatim import NO_LIMIT, as_logged, rows_of, the_batch
from tests.kafka.conftest import create
from tests.kafka.conftest import write as write_to
from tests.kafka.test_decode import fetched
from tests.replica.stand import Stand

JOB = JobId(Kind.REPLICATE, "r", "t", 0)
ROWS: list[Any] = [(1_000 + n, b"k%d" % n, b"v", [("h", b"%d" % n)]) for n in range(6)]


def sent(copy: Copy) -> Copied:
    """As it waits to be compared, at offset 40 of the destination."""
    client: Any = None
    verifier = Verifier(client, lambda *_: None, TokenBucket(1e9, 1e9))
    verifier.add(JOB, ("t", 0), 40, copy)
    return verifier._waiting["t", 0][0]


def joined() -> Copy:
    """Small batches that travel as one."""
    data = b"".join(as_logged(at, rows_of(ROWS[at : at + 2])) for at in (0, 2, 4))
    (copy,) = copies(fetched(data, 0, 6), NO_LIMIT)
    return copy


def test_what_was_encoded_anew_and_went_as_it_was_is_the_same() -> None:
    copied = sent(joined())
    assert _compare(copied, [the_batch(as_logged(40, rows_of(ROWS)))]) == ""
    stamped = the_batch(as_logged(40, rows_of(ROWS), flags=LOG_APPEND_TIME, max_timestamp_ms=5))
    assert _compare(copied, [stamped]) == "", "the destination's own timestamps"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ((1_003, b"other", b"v", [("h", b"3")]), "record at 43 is another"),
        ((1_003, b"k3", None, [("h", b"3")]), "record at 43 is another"),
        ((1_003, b"k3", b"v", [("h", b"")]), "record at 43 is another"),
        ((9, b"k3", b"v", [("h", b"3")]), "record at 43 has timestamp 9, not 1003"),
    ],
)
def test_a_fault_in_encoding_anew_is_found(changed: Any, said: str) -> None:
    """It was not: the bytes that were made were compared with themselves."""
    wrong = as_logged(40, rows_of([*ROWS[:3], changed, *ROWS[4:]]))
    copy = joined()._replace(data=as_logged(0, rows_of([*ROWS[:3], changed, *ROWS[4:]])))
    assert said in _compare(sent(copy), [the_batch(wrong)])


def test_of_a_compacted_destination_only_what_is_still_there_is_compared() -> None:
    copied = sent(joined())
    assert copied.prints is not None
    left = the_batch(as_logged(40, rows_of([ROWS[1], ROWS[4]], [1, 2]), taken_behind=1))
    assert "2 records are there instead of 6" in _compare(copied, [left])
    assert _compare_records(copied.prints, copied, [left]) == ""
    assert _compare_records(copied.prints, copied, []) == "", "all of it has gone"
    moved = the_batch(as_logged(40, rows_of([ROWS[1], ROWS[4]], [0, 3])))
    assert "record at 40 is another" in _compare_records(copied.prints, copied, [moved])


class Compared:
    """A verifier that is led by hand, over a real destination with `ROWS` in it."""

    def __init__(self, stand: Stand, topic: str) -> None:
        self.told: list[str] = []
        self.verifier = Verifier(stand.target, lambda kind, *_: self.told.append(kind), TokenBucket(1e9, 1e9))
        self.target = topic, 0

    async def compare(self, copy: Copy, topic_id: str) -> tuple[int, int]:
        """How many records were compared and differ, of all so far."""
        self.verifier.add(JOB, self.target, 0, copy, topic_id)
        await self.verifier._compare_run(self.target)
        assert not self.verifier.waiting
        return self.verifier.compared[JOB], self.verifier.differing[JOB]


async def test_copies_in_a_topic_that_is_made_anew_or_gone_are_not_compared_with_another(
    stand: Stand, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "LOOK_S", 0.01)
    monkeypatch.setattr(verify, "RETRY_S", 0.01)
    await create(stand.target, topic_name, 1)
    await write_to(stand.target.spec.bootstrap[0], topic_name, [b"others"] * 6)
    topic_id = (await stand.target.topic_ids([topic_name]))[topic_name]
    compared = Compared(stand, topic_name)
    (copy,) = copies(fetched(as_logged(0, rows_of(ROWS)), 0, 6), NO_LIMIT)
    assert await compared.compare(copy, "AAAAAAAAAAAAAAAAAAAAAA") == (0, 0)
    assert compared.told == []
    assert await compared.compare(copy, topic_id) == (0, 6)
    assert compared.told == ["copy-differs"]
    compared.verifier.add(JOB, (f"{topic_name}-gone", 0), 0, copy, topic_id)
    running = asyncio.create_task(compared.verifier.run())
    try:
        await stand.until(lambda: not compared.verifier.waiting)
    finally:
        running.cancel()
    assert compared.told == ["copy-differs"]


async def test_where_nobody_may_know_whether_it_is_compacted_bytes_are_no_evidence_and_count_as_nothing(
    stand: Stand, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> dict[str, str]:
        return {topic_name: "TopicAuthorizationFailed"}

    monkeypatch.setattr(verify, "describe", refused)
    await create(stand.target, topic_name, 1)
    await write_to(stand.target.spec.bootstrap[0], topic_name, [b"others"] * 6)
    compared = Compared(stand, topic_name)
    (copy,) = copies(fetched(as_logged(0, rows_of(ROWS)), 0, 6), NO_LIMIT)
    assert await compared.compare(copy, "") == (0, 0), "not compared is not the same"
    assert await compared.compare(copy, "") == (0, 6), "from now on by its records"
