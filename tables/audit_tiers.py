"""Table `audit_tiers`: topic/tier/cluster/shard -> `TierRecord` (watermarks, closed windows, reporters).

Writer: the agent `agents.audit_reports`, alone; the partition is that of the topic's reports. Changelog:
`{app}-audit_tiers-changelog`, compacted. Readers: as for `tables.audit_windows`
(`app.controllog.codec.tier_record`).
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

audit_tiers = raw_table(app, "audit_tiers", partitions=app.topics_declared.audit.partitions)
