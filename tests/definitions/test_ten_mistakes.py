"""A file with ten mistakes: the error lists all ten, each with position and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.problems import InvalidConfiguration
from app.definitions.registry import load_definitions

FILE = """\
apiVersion: switchyard/v1
kind: Workload
metadata:
  group: "bill ing"
  topic: orders
  cluster: east-agregate
  ownr: billing-team
spec:
  target:
    address: http://billing
    contract: unery
    timeout: 10 seconds
  ordering: kye
  tracker: {capacity: 0}
  retry:
    - attempts: 3
    - {delay: 5x}
"""

EXPECTED_ERROR = """\
orders.yaml:4:10: error: metadata.group: not a name (got 'bill ing')
    -> use letters, digits, '.', '_' and '-', at most 200
orders.yaml:6:12: error: metadata.cluster: no such cluster (got 'east-agregate')
    -> did you mean east-aggregate?
orders.yaml:7:3: error: metadata.ownr: unknown field
    -> did you mean owner?
orders.yaml:10:14: error: spec.target.address: not a gRPC address (got 'http://billing')
    -> write host:port, dns:///host:port, srv:///name or unix:/path
orders.yaml:11:15: error: spec.target.contract: must be one of unary, stream, auto (got 'unery')
    -> did you mean unary?
orders.yaml:12:14: error: spec.target.timeout: not a duration (got '10 seconds')
    -> write one like 10s, 500ms or 1h30m
orders.yaml:13:13: error: spec.ordering: must be one of none, key, partition (got 'kye')
    -> did you mean key?
orders.yaml:14:23: error: spec.tracker.capacity: must be at least 1 (got 0)
    -> choose a greater one
orders.yaml:16:7: error: spec.retry.0.delay: missing
    -> add it
orders.yaml:17:15: error: spec.retry.1.delay: not a duration (got '5x')
    -> write one like 10s, 500ms or 1h30m
10 errors; nothing was changed"""


def test_all_ten_mistakes_are_reported_with_line_value_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(FILE)

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([tmp_path / "orders.yaml"], clusters=["east-regional", "east-aggregate"])

    assert str(caught.value).replace(f"{tmp_path}/", "") == EXPECTED_ERROR
