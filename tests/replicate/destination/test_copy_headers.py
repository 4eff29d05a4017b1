"""The headers of copies."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from app.replicate.destination.copy_headers import ORIGIN, HeaderEdit
from app.replicate.pump.status import LEFT_OUT_REPORT_INTERVAL_S, check_progress
from tests.kafka.conftest import producing
from tests.replicate.rig import ReplicaRig, definition
from tests.replicate.source_topics import create_on_both_sides

GIVEN = [("id", b"1"), ("secret", b"2"), ("x-a", None), ("id", b""), ("", b"3")]


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        ({"keep": ["id"]}, [("id", b"1"), ("id", b"")]),
        ({"keep": ["id", "x-.*"]}, [("id", b"1"), ("x-a", None), ("id", b"")]),
        ({"keep": ["nothing"]}, []),
        ({"drop": ["id", "x-.*"]}, [("secret", b"2"), ("", b"3")]),
    ],
)
def test_named_headers_are_kept_and_others_are_dropped(headers: dict[str, Any], left: list[Any]) -> None:
    keeps = definition("a", "b", "t", headers=headers).keeps_header()
    plain, marked = (HeaderEdit("r", "a/t", 0, "b/t", keeps, provenance=origin) for origin in (False, True))
    record: Any = SimpleNamespace(offset=7, headers=GIVEN)
    assert plain(record) == left
    assert marked(record) == [*left, ("switchyard-route", b"r"), (ORIGIN, b"a/t/0/7")]


async def test_records_that_were_at_the_destination_are_reported_and_not_each_time(
    rig: ReplicaRig, topic_name: str
) -> None:
    """Any producer may write such a header, and its records are not copied."""
    await create_on_both_sides(rig, topic_name)
    been = (ORIGIN, f"east-aggregate/{topic_name}/0/7".encode())

    async def write(*headers: Any) -> None:
        async with producing(rig.source.spec.bootstrap[0]) as producer:
            for header in headers:
                await producer.send_and_wait(topic_name, b"v", partition=0, headers=[header])

    await write(("a", b""), been, been)
    pump = await rig.start_pump(topic_name, headers={"provenance": True})
    await rig.copied([pump])
    check_progress(pump, time.monotonic())
    ((kind, message),) = rig.incidents
    assert kind == "records-left-out"
    assert "2 records were not copied, the last of them at offset 2" in message
    assert topic_name in message

    await write(been)
    await rig.copied([pump])
    for later_s in (0.0, LEFT_OUT_REPORT_INTERVAL_S / 2):
        check_progress(pump, time.monotonic() + later_s)
    assert len(rig.incidents) == 1
    for later_s in (LEFT_OUT_REPORT_INTERVAL_S + 60, 3 * LEFT_OUT_REPORT_INTERVAL_S):
        check_progress(pump, time.monotonic() + later_s)
    assert rig.kinds() == ["records-left-out"] * 2, "not again without new ones"
    assert "1 records were not copied, the last of them at offset 3" in rig.incidents[1][1]
