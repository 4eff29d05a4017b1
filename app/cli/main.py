"""`switchyard <noun> <verb>`, and the same nouns for `faust -A app <noun> <verb>`."""

from __future__ import annotations

from typing import Any

import click

from app.alerts.api.cli import alert
from app.audit.api.cli import audit
from app.definitions.api.cli import config
from app.dev.demo.cli import demo
from app.dev.yard.cli import yard
from app.dispatch.api.cli import tracker, worker, workload
from app.dispatch.api.cli_dlq import dlq
from app.dispatch.api.cli_trace import trace
from app.failover.api.cli import failover
from app.offsets.api.cli import offsets
from app.placement.api.cli import drain, placement
from app.replicate.api.cli import route
from app.sizing.api.cli import size

NOUNS = (config, workload, tracker, trace, dlq, route, audit, alert, offsets, failover, placement, size)
ONLY_HERE = (worker, yard, demo)  # `faust worker` is Faust's own: it starts one


@click.group()
@click.version_option(package_name="switchyard-kafka")
def switchyard() -> None:
    """Pushes, copies, proves and moves Kafka traffic.

    \b
    switchyard workload list
    switchyard config plan -f workloads/
    switchyard dlq show billing/orders
    switchyard route describe east-to-west
    switchyard offsets map --group billing --from east-aggregate --to west-aggregate

    Exit codes: 0 ok, 1 failure, 2 usage, 3 invalid definition, 4 not found, 5 precondition, 6 done in part,
    7 unreachable, 8 loss found, 9 capacity, 10 the plan has changes.
    """


worker.add_command(drain)
for noun in (*NOUNS, *ONLY_HERE):
    switchyard.add_command(noun)


def attach(faust_cli: Any) -> None:
    """Adds the nouns to Faust's own command group."""
    for noun in NOUNS:
        faust_cli.add_command(noun)


def main() -> None:
    """The console script."""
    switchyard(prog_name="switchyard")
