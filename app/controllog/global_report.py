"""The report over all regions as it stands in a region's report topic, which Spark writes. Pure.

    rows of a report, by key --folded--> the newest report

A key is a JSON list: ["report"] of the head, else the part and what names the row, or its number among rows
that have no names: ["topics", "orders"], ["timeline", "0"]. A value is a JSON object with when its report was
`generated`; the head also says how many `rows` the report has, and of which parts how many more there are
that it leaves out (`cut`), and its `format`: one of another version is not shown, and told as such. Rows that
a later report does not have stay in the topic: those of another time than the head's do not count. While a
report is being written, some of its rows are not there yet: it is not `complete`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

HEAD = "report"
FORMAT = 2  # 2: `timeline` instead of `incidents`
PARTS = (
    "topics", "tiers", "pairs", "traffic", "untimed", "windows", "series",
    "workloads", "owners", "readiness", "timeline", "quarantine",
)  # fmt: skip

_keys = msgspec.json.Decoder(list[str | None])
_rows = msgspec.json.Decoder(dict[str, Any])


def folded(values: Mapping[bytes, bytes]) -> dict[str, Any] | None:
    """The newest report: its head's fields, a list of rows by part, in the order of `values`, and whether it
    is `complete`. None: there is none, or only rows without a head. What is no row is passed over. Of one of
    another format (None: it does not say) no rows, and `generated` is None."""
    head: dict[str, Any] | None = None
    rows: list[tuple[str, dict[str, Any]]] = []
    for key, value in values.items():
        try:
            names, row = _keys.decode(key), _rows.decode(value)
        except (msgspec.DecodeError, RecursionError):
            continue
        if names == [HEAD]:
            head = row
        elif names and names[0] in PARTS:
            rows.append((names[0], row))
    if head is None:
        return None
    found: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
    if head.get("format") != FORMAT:
        return {"format": head.get("format"), "generated": None, "complete": False, **found}
    for part, row in rows:
        if row.pop("generated", None) == head.get("generated"):
            found[part].append(row)
    many = sum(map(len, found.values()))
    return {**head, **found, "complete": many == head.get("rows")}
