"""Routes of other regions are known from copies of their control logs, and no route that loops with them
is deployed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from click.testing import CliRunner

from app.cli.main import switchyard
from app.controllog import codec
from app.controllog.events import RouteDeleted
from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from tests.offsets.clusters import HERE, THERE, a_route, put_of
from tests.offsets.console import served
from tests.web.http.test_openapi import Client
from tests.web.runtime_fake import route


def test_a_route_that_would_loop_with_one_of_another_region_is_refused_by_the_api_and_the_plan(
    yard: Yard, tmp_path: Path, topic_name: str
) -> None:
    topic = f"{topic_name}-more"
    wanted = route("there", HERE, THERE, topic)
    file = tmp_path / "there.yaml"
    file.write_text(json.dumps(wanted))
    with served(yard, tmp_path, topic_name) as at:
        client, log = Client(at.url, name="there"), ControlTopics(at.regions.other).control.name

        def plan() -> tuple[int, str]:
            done = CliRunner().invoke(
                switchyard, ["config", "plan", "-f", str(file)], env={**os.environ, "SWITCHYARD_URL": at.url}
            )
            return done.exit_code, done.output

        def put(status: int) -> str:
            given = {"query": {"dry_run": "true"}, "body": wanted}
            return str(client.ask("PUT", "/api/v1/routes/{name}", status, **given).text)

        put(200)
        assert plan()[0] == 10
        back = a_route("back", THERE, HERE, topic)
        asyncio.run(at.regions.send(HERE, log, {b"route/back": put_of(back), b"route/bad": b"{"}))
        answer = client.ask("GET", "/api/v1/routes-elsewhere").json()
        assert [(one["region"], one["definition"]["metadata"]["name"]) for one in answer["routes"]] == [
            (at.regions.other, "back")
        ]
        assert {name: bool(found) for name, found in answer["clusters"].items()} == {
            HERE: True, THERE: True, "nowhere": False,
        }  # fmt: skip
        loop = (
            f"{topic}: {THERE} -> {HERE} (route back of region {at.regions.other}) -> {THERE} (route there)"
        )
        assert f"would loop: {loop}" in put(409)
        code, output = plan()
        assert (code, f"would loop: {loop}" in output) == (5, True), output
        gone = RouteDeleted(at_ms=1, key="back", actor="me")
        asyncio.run(at.regions.send(HERE, log, {b"route/back": codec.encode(gone)}))
        put(200)
        assert plan()[0] == 10
