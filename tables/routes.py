"""Table `routes`: name -> the current `RoutePut`, with who deployed it and when.

Writer: `agents.control`, alone. Changelog: `{app}-routes-changelog`. Readers: Spark and people. Workers
follow the control log itself, which is seconds ahead during a rebalance.
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

routes = raw_table(app, "routes", partitions=1)
