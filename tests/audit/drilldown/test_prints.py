"""What a record says of where it comes from is anybody's word."""

from __future__ import annotations

import pytest

from app.audit.counts.counter import How
from app.audit.drilldown.copy_origins import Origin, Origins, Partition
from app.audit.drilldown.prints import ORIGIN, Reader, Window
from app.audit.pump.counting_spec import Timed
from app.kafka.fetch.decoder import records_of
from app.kernel.fencing import LogId

PLACE = Partition("home", "copy", 0)
SOURCE = Partition("east", "orders", 3)


@pytest.mark.parametrize(
    ("told", "origin"),
    [
        (b"c1/orders/3/17", Origin(SOURCE, 17, 17)),
        (b"c1/orders/3/" + b"9" * 5_000, None),
        (b"c1/orders/" + b"9" * 5_000 + b"/17", None),
        (b"c1/orders/3/-17", None),
        (b"c1/orders/3", None),
        (b"\xff\xfe", None),
    ],
)
def test_an_origin_is_understood_or_not_believed(told: bytes, origin: Origin | None) -> None:
    how, origins = How(records_of), Origins([], 0, LogId())
    reader = Reader(PLACE, how, Window(0, 1), origins=origins, names={"c1": "east"})
    assert reader._told_origin(Timed(0, 0, None, b"v", ((ORIGIN, told),))) == origin
