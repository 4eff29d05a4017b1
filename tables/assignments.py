"""Table `assignments`: job -> its valid `Assignment` (worker, "" once released; epoch, term, reason).

Writer: `agents.control`, alone. Changelog: `{app}-assignments-changelog`. Readers: Spark and people.
"""

from __future__ import annotations

from app import app
from tables.options import raw_table

assignments = raw_table(app, "assignments", partitions=1)
