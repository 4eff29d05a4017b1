"""Plans and deployments beside other deployments, which change definitions meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from app.cli.client import Client
from app.controllog.events import AnyControlEvent, RouteDeleted, WorkloadDeleted
from app.definitions.api.cli import TRIES
from tests.cli.shell import Shell
from tests.cli.shell import shell as shell  # noqa: PLC0414 - the fixture
from tests.web.runtime_fake import FakeRuntime, definition, put, put_route, route

EXECUTE = ("--execute", "--yes")


class Requests:
    """The requests of commands; `before` and `after` run around the first one that begins with `then`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.then = ""
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        ask = Client.ask

        def counted(client: Client, method: str, path: str, *rest: Any, **options: Any) -> Any:
            self.made.append(f"{method} {path}")
            is_it = bool(self.then) and self.made[-1].startswith(self.then)
            if is_it:
                self.then = ""
                self.before()
            try:
                return ask(client, method, path, *rest, **options)
            finally:
                if is_it:
                    self.after()

        monkeypatch.setattr(Client, "ask", counted)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


def deleted(fed: FakeRuntime, key: str = "billing/orders") -> Callable[[], object]:
    return lambda: fed.apply(WorkloadDeleted(at_ms=1, key=key, actor="another"))


def changed(**spec: Any) -> dict[str, Any]:
    return definition(tracker={"capacity": 5}, **spec)


# -- plans -----------------------------------------------------------------------------------------


def test_a_plan_of_a_thousand_workloads_is_a_few_requests(shell: Shell, requests: Requests) -> None:
    many = [definition(f"g{number:03}", "orders") for number in range(1000)]
    shell.fed.apply(*map(put, many))
    shell.fed.apply(*(put_route(route(f"r{number}", "east", "west", f"t{number}")) for number in range(20)))
    assert shell("config", "plan", "-f", shell.file(*many)).returncode == 0
    assert len(requests.made) <= 10, requests.made
    assert shell("config", "export").stdout.count("apiVersion") == 1020


@pytest.mark.parametrize("command", ["plan", "diff", "deploy", "export"])
def test_a_definition_that_is_deleted_while_a_plan_reads_is_gone(
    shell: Shell, requests: Requests, command: str
) -> None:
    shell.fed.apply(put(definition()), put(definition("old", "orders")), put_route(route()))
    requests.then = "GET /workloads"

    def both_deleted() -> None:
        deleted(shell.fed, "old/orders")()
        shell.fed.apply(RouteDeleted(at_ms=1, key="mirror", actor="another"))

    requests.after = both_deleted
    files = () if command == "export" else ("-f", shell.file(definition()))
    ended = shell("config", command, *files)
    assert ended.returncode == 0, ended.stderr


def test_a_plan_that_meets_a_change_is_made_again(shell: Shell, requests: Requests) -> None:
    """Another deployment deletes the workload of the other cluster just after the worker refused the plan."""
    moved = definition()
    moved["metadata"]["cluster"] = "west"
    shell.fed.apply(put(moved))
    requests.then, requests.after = "PUT ", deleted(shell.fed)
    ended = shell("config", "plan", "-f", shell.file(definition()))
    assert ended.returncode == 10, ended.stderr
    assert "create" in ended.stdout


def test_a_plan_that_stays_refused_is_made_once(shell: Shell, requests: Requests) -> None:
    moved = definition()
    moved["metadata"]["cluster"] = "west"
    shell.fed.apply(put(moved))
    assert shell("config", "plan", "-f", shell.file(definition())).returncode == 5
    assert sum(one.startswith("PUT ") for one in requests.made) == 1


def test_a_derived_route_is_not_part_of_a_plan(shell: Shell) -> None:
    derived = msgspec.structs.replace(put_route(route()), made_by="failover:orders")
    shell.fed.apply(put(definition()), derived)
    ended = shell("config", "plan", "--prune", "-f", shell.file(definition()))
    assert ended.returncode == 0, ended.stdout


# -- deployments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("was_there", [False, True])
def test_of_two_equal_deployments_both_succeed(shell: Shell, was_there: bool) -> None:
    if was_there:
        shell.fed.apply(put(definition()))
    shell.fed.control.meanwhile = [put(changed())]
    ended = shell("config", "deploy", "-f", shell.file(changed()), *EXECUTE)
    assert ended.returncode == 0, ended.stderr
    verb = "updated" if was_there else "created"
    assert f"unchanged billing/orders: another deployment {verb} it meanwhile" in ended.stderr
    assert shell.fed.control.view.workloads["billing/orders"].etag == put(changed()).etag


def test_changes_that_another_deployment_made_first_are_found_by_one_look(
    shell: Shell, requests: Requests
) -> None:
    many = [definition(f"g{number}", "orders") for number in range(50)]
    requests.then = "PUT /workloads/g0/orders"
    shell.fed.control.meanwhile = list[AnyControlEvent](map(put, many))
    ended = shell("config", "deploy", "-f", shell.file(*many), *EXECUTE)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("unchanged ") == 50
    assert len(requests.made) < 50 + 20  # each was a dry run once


def test_what_another_deployment_deleted_first_is_unchanged(shell: Shell, requests: Requests) -> None:
    shell.fed.apply(*(put(definition(name, "orders")) for name in "abc"))
    requests.then, requests.before = "DELETE ", deleted(shell.fed, "c/orders")
    file = shell.file(definition("a", "orders"), definition("b", "orders"))
    ended = shell("config", "deploy", "--prune", "-f", file, *EXECUTE)
    assert ended.returncode == 0, ended.stderr
    assert "unchanged c/orders: another deployment deleted it meanwhile" in ended.stderr


@pytest.mark.parametrize("was_there", [False, True])
def test_another_change_made_meanwhile_is_not_overwritten(shell: Shell, was_there: bool) -> None:
    if was_there:
        shell.fed.apply(put(definition()))
    other = put(definition(tracker={"capacity": 7}))
    shell.fed.control.meanwhile = [other]
    ended = shell("config", "deploy", "-f", shell.file(changed()), *EXECUTE)
    assert ended.returncode == 5
    assert ended.stderr.splitlines()[-1].startswith("switchyard: billing/orders: Changed meanwhile: ")
    assert shell.fed.control.view.workloads["billing/orders"].etag == other.etag


def test_an_update_of_what_was_deleted_meanwhile_is_refused(shell: Shell, requests: Requests) -> None:
    shell.fed.apply(put(definition()))
    file = shell.file(changed())
    requests.then = "PUT /workloads/billing/orders?dry_run=true"
    requests.after = deleted(shell.fed)
    ended = shell("config", "deploy", "-f", file, *EXECUTE)
    assert ended.returncode == 5
    assert "there is no such definition any more" in ended.stderr
    assert not shell.fed.control.view.workloads


def test_a_refusal_that_stays_ends_the_deployment_after_some_tries(
    shell: Shell, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_counted(*_: AnyControlEvent) -> int:
        return 0

    monkeypatch.setattr(shell.fed.control, "append", not_counted)
    monkeypatch.setattr(shell.fed.control, "counted", lambda _: False)
    ended = shell("config", "deploy", "-f", shell.file(definition()), *EXECUTE)
    assert ended.returncode == 5
    assert "Changed meanwhile" in ended.stderr
    assert sum(one.startswith("PUT /workloads/billing/orders") for one in requests.made) == 1 + TRIES
