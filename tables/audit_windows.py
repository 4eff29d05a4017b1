"""Table `audit_windows`: topic/tier/cluster/width/start/shard -> `WindowRecord` (a window's counts).

Writer: the agent `agents.audit_reports`, alone; the partition is that of the topic's reports. Changelog:
`{app}-audit_windows-changelog`, compacted. Each value is a fold of its own over the topic
(`app.audit.folds.collector`). Readers: that agent when it starts (`items_of`), and Spark
(`app.controllog.codec.window_record`).
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

audit_windows = raw_table(app, "audit_windows", partitions=app.topics_declared.audit.partitions)
