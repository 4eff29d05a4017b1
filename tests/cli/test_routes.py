"""Routes in files: checked and planned though none runs; deploying them is refused before any change."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.test_commands import Shell
from tests.cli.test_commands import shell as shell  # noqa: PLC0414 - the fixture
from tests.console.hand_fed import definition


def route(name: str = "mirror", source: str = "east", target: str = "west") -> dict[str, Any]:
    return {
        "apiVersion": "switchyard/v1", "kind": "Route", "metadata": {"name": name},
        "spec": {"from": source, "to": target, "topics": ["orders"]},
    }  # fmt: skip


def test_routes_are_validated_and_planned_and_not_deployed(shell: Shell) -> None:
    file = shell.file(definition(), route())

    valid = shell("config", "validate", "-f", file)
    assert (valid.returncode, "2 definitions: all valid" in valid.stderr) == (0, True), valid.stderr
    planned = shell("config", "plan", "-f", file, "-o", "json")
    assert planned.returncode == 10
    assert {row["workload"]: row["action"] for row in json.loads(planned.stdout)} == {
        "billing/orders": "create",
        "route mirror": "create",
    }
    assert "routes are checked only" in planned.stderr
    deployed = shell("config", "deploy", "-f", file, "--execute", "--yes")
    assert deployed.returncode == 5
    assert "take mirror out of the files" in deployed.stderr
    assert not shell.fed.control.appended


def test_a_loop_in_the_files_is_told_with_exit_code_3(shell: Shell) -> None:
    ended = shell("config", "validate", "-f", shell.file(route(), route("back", "west", "east")))

    assert ended.returncode == 3
    assert "would loop: orders: west -> east (route back) -> west (route mirror)" in ended.stderr
