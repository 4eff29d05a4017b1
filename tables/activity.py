"""Table `activity`: control log offset -> who did what, when, with which result.

Writer: `agents.control`, alone. Changelog: `{app}-activity-changelog`. Readers: Spark and people.
The key is the event's offset in the control log, so that an event replayed writes the same entry.
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

activity = raw_table(app, "activity", partitions=1)
