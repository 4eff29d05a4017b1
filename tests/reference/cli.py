"""cli.md: the help of each command, as click prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from app.cli.main import switchyard

WIDTH = 100


def page() -> list[str]:
    """The page."""
    root = click.Context(switchyard, info_name="switchyard", max_content_width=WIDTH, terminal_width=WIDTH)
    lines = [
        "# The command line",
        "Each command prints its help with `--help`. Commands that ask a worker find it by `--url`, or by",
        "the environment variable `SWITCHYARD_URL`.",
        "",
        "## Exit codes",
        "",
        *_exit_codes(),
    ]
    for context in _contexts(root):
        depth = context.command_path.count(" ")
        is_group = isinstance(context.command, click.Group)
        lines += [
            f"{'##' if depth < 2 else '###'} {context.command_path}",
            "",
            "```text",
            *(_without_commands(context) if is_group and depth else context.get_help()).splitlines(),
            "```",
            "",
        ]
    return lines


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """A command and all its subcommands."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from _contexts(
                    click.Context(
                        command, info_name=name, parent=context, max_content_width=WIDTH, terminal_width=WIDTH
                    )
                )


def _without_commands(context: click.Context) -> str:
    """A group's help without its commands, which have headings of their own."""
    return context.get_help().partition("\nCommands:")[0].rstrip()


def _exit_codes() -> list[str]:
    """A table of the exit codes in the help of `switchyard`."""
    _, _, names = " ".join((switchyard.help or "").split()).partition("Exit codes: ")
    codes = re.findall(r"(\d+) ([^,.]+)", names)
    return [
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {number} | {words} |" for number, words in codes),
        "",
    ]
