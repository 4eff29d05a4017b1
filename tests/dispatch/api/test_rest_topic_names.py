"""A workload with a topic of its own whose name a real cluster refuses is not deployed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from app.cli.client import EXIT_PRECONDITION
from tests.cli.shell import InProcess, quiet_log
from tests.dispatch.dlq.queues import Clusters, create
from tests.web.client import Console
from tests.web.runtime_fake import FakeRuntime, definition, serving


def test_a_workload_whose_topic_name_collides_with_an_existing_topic_is_refused(
    bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    there = f"{topic_name}__pay_eu__dlq"
    asyncio.run(create(bootstrap, there, 1))
    refused, taken = definition("pay.eu", topic_name), definition("pay_us", topic_name)
    fed = FakeRuntime()
    fed.clusters = Clusters(bootstrap)  # type: ignore[assignment]
    with quiet_log(), serving(fed) as url:
        for dry_run in ("?dry_run=true", ""):
            answer = Console(url, fed).ask("PUT", f"/api/v1/workloads/pay.eu/{topic_name}{dry_run}", refused)
            assert (answer.status, answer.json["title"]) == (409, "Topic name refused"), answer.text
            assert f"collides with existing topic: {there}" in answer.json["detail"]
            assert answer.json["detail"].endswith("; rename its group")
        shell = InProcess(url, fed, tmp_path)
        for command in (("plan",), ("deploy", "--execute", "--yes")):
            ended = shell("config", command[0], "-f", shell.file(refused), *command[1:])
            assert ended.returncode == EXIT_PRECONDITION, ended.stdout
            assert there in ended.stderr
        assert not fed.control.appended
        done = shell("config", "deploy", "-f", shell.file(taken), "--execute", "--yes")
        assert done.returncode == 0, done.stderr
    assert len(fed.control.appended) == 1
