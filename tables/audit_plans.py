"""Table `audit_plans`: audit:name -> the current `AuditPut`, with who deployed it and when.

Writer: `agents.control`, alone. Changelog: `{app}-audit_plans-changelog`. Readers: Spark and people.
Workers follow the control log itself, which is seconds ahead during a rebalance.
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

audit_plans = raw_table(app, "audit_plans", partitions=1)
