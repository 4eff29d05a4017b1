"""Table `activity`: the last `ACTIVITY_KEEP` events of the control log, for who did what and when.

Writer: `agents.control`, alone. Changelog: `{app}-activity-changelog`. Readers: Spark and people.

The key is the event's offset modulo `ACTIVITY_KEEP`, so that table and changelog do not grow for ever. The
value is the event with its `offset` and whether it `counted` (`app.controllog.codec.activity_entry`). A
replayed event writes the same entry.
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

activity = raw_table(app, "activity", partitions=1)
