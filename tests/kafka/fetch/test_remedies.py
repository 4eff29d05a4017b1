"""Commands in remedies exist."""

from __future__ import annotations

import re

import click
import pytest

from app.cli.main import switchyard
from app.kafka.fetch.deliveries import CORRUPT, REMEDIES

COMMAND = re.compile(r"switchyard ([a-z]+) ([a-z-]+)([^,;.]*)")


@pytest.mark.parametrize("code", sorted(REMEDIES))
def test_commands_in_remedies_exist_with_their_options(code: int) -> None:
    found = COMMAND.findall(REMEDIES[code])
    for noun, verb, rest in found:
        group = switchyard.commands[noun]
        assert isinstance(group, click.Group)
        options = {option for one in group.commands[verb].params for option in one.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options
    if code == CORRUPT:  # where it ends is not known: there is nothing that could be skipped
        assert {(noun, verb) for noun, verb, _ in found} == {("route", "reset"), ("workload", "reset")}
