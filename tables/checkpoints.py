"""Table `checkpoints`: route/topic/partition -> `OffsetMapLine`, the offset syncs of a source partition.

Writer: the agent `agents.checkpoints`, alone. Changelog: `{app}-checkpoints-changelog`, compacted; a
reader of all of it has the whole map, in another region too. Readers: failover, offset sync, Spark and
people (`app.controllog.codec.checkpoint_line`).
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

checkpoints = raw_table(app, "checkpoints", partitions=app.topics_declared.checkpoints.partitions)
