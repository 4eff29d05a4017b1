"""`switchyard demo`: Switchyard at work on this machine, from nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from app.dev.demo import MIN_MESSAGES

DEFAULT_MESSAGES = 30_000


@click.command()
@click.option(
    "--story",
    type=click.Choice(("delivery", "failover")),
    default="delivery",
    show_default=True,
    help="delivery: a worker is killed. failover: a region is.",
)
@click.option("--once", is_flag=True, help="Run to the end, print the report, and exit.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Let Spark's jobs report on the story, into this folder.",
)
@click.option(
    "--messages",
    type=click.IntRange(MIN_MESSAGES),
    default=DEFAULT_MESSAGES,
    show_default=True,
    help="Number of messages (story delivery).",
)
@click.option(
    "--regions",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="Regions of the yard (story delivery).",
)
def demo(story: str, once: bool, report: Path | None, messages: int, regions: int) -> None:
    """Switchyard at work on this machine.

    Starts Kafka, two workers, a receiver and traffic; kills a worker, and counts every message.

    \b
    switchyard demo                          stays, with the console open, until Ctrl-C
    switchyard demo --once                   runs to its end, and accounts for every message
    switchyard demo --story failover --once  a region is killed, another takes over, it comes back
    switchyard demo --once --report out      Spark's reports on the story, in out/

    Exit codes: 0 every figure is right, 1 a figure is wrong or the demo failed, 2 usage,
    130 interrupted before its end.
    """
    from app.archive.errors import MissingSpark, check_spark
    from app.dev.demo.story import Options, play
    from app.kafka.client import aiokafka_patches

    given = click.get_current_context().get_parameter_source
    for option in ("report", "messages", "regions"):
        if story == "failover" and given(option) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{option} is for the story 'delivery' only; leave out --story failover, or --{option}"
            )
    if report:
        try:
            check_spark()
        except MissingSpark as error:
            raise click.ClickException(str(error)) from error
    aiokafka_patches.install()
    sys.exit(play(Options(story, once, report, messages, regions)))
