"""A provenance header may have any contents."""

from __future__ import annotations

import pytest

from app.audit.counts.counter import CountingSpec
from app.audit.drilldown.copy_origins import ClusterPartition, CopyOrigin, CopyOrigins
from app.audit.drilldown.prints import ORIGIN, EventTimeWindow, PrintReader
from app.audit.pump.counting_spec import RetimedRecord
from app.kafka.fetch.decoder import records_of
from app.kernel.fencing import LogId

PLACE = ClusterPartition("home", "copy", 0)
SOURCE = ClusterPartition("east", "orders", 3)


@pytest.mark.parametrize(
    ("header", "origin"),
    [
        (b"c1/orders/3/17", CopyOrigin(SOURCE, 17, 17)),
        (b"c1/orders/3/" + b"9" * 5_000, None),
        (b"c1/orders/" + b"9" * 5_000 + b"/17", None),
        (b"c1/orders/3/-17", None),
        (b"c1/orders/3", None),
        (b"\xff\xfe", None),
    ],
)
def test_a_provenance_header_is_parsed_or_ignored(header: bytes, origin: CopyOrigin | None) -> None:
    how, origins = CountingSpec(records_of), CopyOrigins([], 0, LogId())
    reader = PrintReader(PLACE, how, EventTimeWindow(0, 1), origins=origins, cluster_names={"c1": "east"})
    assert reader._header_origin(RetimedRecord(0, 0, None, b"v", ((ORIGIN, header),))) == origin
