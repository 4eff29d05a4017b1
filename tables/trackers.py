"""Table `trackers`: job -> `TrackerRecord` (epoch, base, snapshot).

Writer: the agent `agents.trackers`, alone; a job's partition is `tracker_partition(job)`, as for its
events. Changelog: `{app}-trackers-changelog`, compacted. Readers: a worker that begins to answer takeovers
(`app.worker.tracker.follower`), and Spark.
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

trackers = raw_table(app, "trackers", partitions=app.topics_declared.trackers.partitions)
