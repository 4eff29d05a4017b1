"""Table `workloads`: group/topic -> the current `WorkloadPut`, with who deployed it and when.

Writer: `agents.control`, alone. Changelog: `{app}-workloads-changelog`. Readers: Spark and people. Workers
follow the control log itself, which is seconds ahead during a rebalance.
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

workloads = raw_table(app, "workloads", partitions=1)
