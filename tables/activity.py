"""Table `activity`: who did what, when: the last `ACTIVITY_KEEP` events of the control log.

Writer: `agents.control`, alone. Changelog: `{app}-activity-changelog`. Readers: Spark and people.
The key is the event's offset in the control log modulo that (a ring: neither table nor changelog grows for
ever); the value is the event with its `offset`, and whether it `counted` or the log refused it
(`app.controllog.codec.activity_entry`). An event replayed writes the same entry.
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

activity = raw_table(app, "activity", partitions=1)
