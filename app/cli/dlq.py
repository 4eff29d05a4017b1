"""dlq list|show: what lies in the dead letter queues, and why."""

from __future__ import annotations

from typing import Any

import click

from app.cli.client import Client, guarded, workload_path
from app.cli.output import emit, output_option, url_option

MAX_VALUE_CHARS = 120


@click.group()
def dlq() -> None:
    """Dead letter queues.

    \b
    switchyard dlq list
    switchyard dlq show billing/orders --limit 20
    """


@dlq.command("list")
@url_option
@output_option
@guarded
def list_queues(url: str | None, output: str) -> None:
    """Every workload's queue and how many messages it holds.

    \b
    switchyard dlq list -o json
    """
    client = Client(url)
    rows = []
    for item in client.all("/workloads"):
        body = client.ask("GET", workload_path(item["key"]).replace("/workloads/", "/dlq/", 1))
        rows.append(
            {"workload": item["key"], **{k: body[k] for k in ("topic", "messages", "enabled", "exists")}}
        )
    emit(rows, ["workload", "topic", "messages", "enabled", "exists"], output)


@dlq.command()
@click.argument("name", metavar="GROUP/TOPIC")
@click.option(
    "--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="At most this many."
)
@url_option
@output_option
@guarded
def show(name: str, limit: int, url: str | None, output: str) -> None:
    """The newest dead letters: where each came from, what was answered, what is in it.

    \b
    switchyard dlq show billing/orders --limit 5 -o yaml
    """
    path = workload_path(name).replace("/workloads/", "/dlq/", 1)
    body = Client(url).ask("GET", f"{path}/messages?limit={limit}")
    rows = [
        {
            "origin": f"{m['origin']['topic']}-{m['origin']['partition']}@{m['origin']['offset']}",
            "code": m["code"],
            "attempt": m["attempt"],
            "reason": m["reason"],
            "key": _text(m["key"]),
            "value": _text(m["value"]),
        }
        for m in body["items"]
    ]
    emit(rows, ["origin", "code", "attempt", "reason", "key", "value"], output, whole=body["items"])


def _text(shown: dict[str, Any] | None) -> str:
    if shown is None:
        return "null"
    return str(shown.get("text", shown.get("base64", "")))[:MAX_VALUE_CHARS]
