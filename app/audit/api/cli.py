"""audit report|loss|missing|copy-again|watch|records: the counts at each tier, and the differences."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import click

from app.audit.api.cli_drilldown import copy_again, missing
from app.audit.api.cli_records import records
from app.audit.api.cli_watch import LOSS, STATES, watch
from app.cli.client import EXIT_LOSS, Client, guarded
from app.cli.output import emit, output_option, printable, url_option

WINDOWS = ["topic", "tier", "cluster", "start", "state", "count", "bytes", "late", "duplicates", "p50_ms",
           "p95_ms", "p99_ms"]  # fmt: skip
VERDICTS = ["topic", "from_tier", "to_tier", "group", "start", "state", "from_count", "to_count", "missing",
            "extra", "absent", "lag_ms"]  # fmt: skip
MOST_NAMED = 5
TOPIC = click.option("--topic", help="Of this topic only.")
FROM = click.option(
    "--from", "since", metavar="TIME", default="24h", show_default=True,
    help="Windows that begin at this time or later: 2h (ago), an ISO 8601 time, or milliseconds.",
)  # fmt: skip
TO = click.option("--to", "until", metavar="TIME", help="Windows that begin before this time.")


@click.group()
def audit() -> None:
    """Audit: the counts of each tier, in windows of event time, and the missing records.

    \b
    switchyard audit report --topic orders
    switchyard audit loss --from 2h
    switchyard audit missing --topic orders --start 2026-01-31T12:00
    switchyard audit watch
    switchyard audit records --topic orders --cluster east-regional --from 2h --to 1h
    """


audit.add_command(missing)
audit.add_command(copy_again)
audit.add_command(watch)
audit.add_command(records)


@audit.command(short_help="The counts of each window, at each tier.")
@TOPIC
@click.option("--tier", help="At this tier only.")
@click.option("--cluster", help="In this cluster only.")
@FROM
@TO
@url_option
@output_option
@guarded
def report(
    topic: str | None, tier: str | None, cluster: str | None, since: str, until: str | None, url: str | None,
    output: str,
) -> None:  # fmt: skip
    """Windows, the newest first: how many records, how large, how late they came.

    A window is open, provisional (its time is over, but records may come late), or closed.

    \b
    switchyard audit report --topic orders --from 2h
    switchyard audit report --tier aggregate -o csv > windows.csv
    """
    client = Client(url)
    rows = _rows(client, "windows", topic=topic, tier=tier, cluster=cluster, **{"from": since, "to": until})
    shown = [{**row, "start": row["start"] or "none"} for row in rows]
    emit(shown, WINDOWS, output, whole=rows)
    if not rows:
        click.echo(nothing_counted(client), err=True)


@audit.command(short_help="Windows in which a tier differs from the one before.")
@TOPIC
@click.option(
    "--all",
    "with_equal",
    is_flag=True,
    help="Also windows without a difference, and those that are not over.",
)
@FROM
@TO
@url_option
@output_option
@guarded
def loss(
    topic: str | None, with_equal: bool, since: str, until: str | None, url: str | None, output: str
) -> None:
    """Windows in which a tier differs from the tier before it. Exit code 8 when records are missing.

    If an audit itself is missing ('absent-audit'), whether records are missing is unknown.

    \b
    switchyard audit loss --topic orders
    switchyard audit loss --from 2026-01-31T12:00 --all -o json
    """
    client = Client(url)
    rows = _rows(
        client, "loss", topic=topic, state=STATES if with_equal else None,
        **{"from": since, "to": until},
    )  # fmt: skip
    shown = [{**row, "absent": row["absent"] or "", "group": row["group"] or ""} for row in rows]
    emit(shown, VERDICTS, output, whole=rows)
    if not rows:
        compared = _has_any(client, "loss", topic=topic, state=STATES, **{"from": since, "to": until})
        click.echo(
            "no window that is over has a difference" if compared else nothing_counted(client), err=True
        )
    lost = [row for row in rows if row["state"] in LOSS]
    if lost:
        known = sum(row["missing"] or 0 for row in lost)
        windows = "window" if len(lost) == 1 else "windows"
        click.echo(f"at least {known} records are missing, in {len(lost)} {windows}", err=True)
        raise SystemExit(EXIT_LOSS)


def nothing_counted(client: Client) -> str:
    """Why there is nothing to show, as far as the plans say."""
    plans = [item["name"] for item in client.all("/audit/plans")]
    if not plans:
        return (
            "nothing is counted: there is no audit plan. Write one (kind: AuditPlan), then: "
            "switchyard config deploy -f plan.yaml --execute"
        )
    names = ", ".join(map(printable, plans[:MOST_NAMED])) + (", …" if len(plans) > MOST_NAMED else "")
    plural = "plans" if len(plans) > 1 else "plan"
    return f"{plural} {names}: no such records were counted in this time; see --from, or leave out --topic"


def _has_any(client: Client, what: str, **wanted: Any) -> bool:
    """Whether a list has any item."""
    query = {name: value for name, value in wanted.items() if value}
    page = client.ask("GET", f"/audit/{what}?{urlencode({**query, 'limit': '1'}, doseq=True)}")
    return bool(page["items"])


def _rows(client: Client, what: str, **wanted: Any) -> list[Any]:
    """All items of a list."""
    query = {name: value for name, value in wanted.items() if value}
    return client.all(f"/audit/{what}", urlencode(query, doseq=True))
