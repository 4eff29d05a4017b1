"""Two regions on one machine, each with its own workers and receivers; one can be lost as a whole."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.dev.demo.stage import DemoStage, Process, StageError, free_port, http, wait_until
from app.dev.yard import Yard
from app.failover.topology import control_route, events_route
from app.kernel.json_types import JsonObject

STEP_TIMEOUT_S = 120.0
HOMES = ("east", "west")
TIERS = ("regional", "aggregate")
REQUEST_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Listening:
    """A receiver that can be started again at the address in its definitions."""

    group: str
    topics: tuple[str, ...]
    journal: Path
    port: int

    def on(self, stage: DemoStage) -> Process:
        """Starts it."""
        extra = ("--journal", str(self.journal))
        return stage.receiver(self.group, *self.topics, port=self.port, extra=extra)


class TwoRegions:
    """Two regions. `plain` names are the yard's; otherwise names are unique.

    Attributes:
        names: Home -> region.
        clusters: Name -> bootstrap address.
        workers: Home -> the worker that gets the requests.
    """

    def __init__(self, yard: Yard, prefix: str, *, plain: bool = False) -> None:
        self.yard, self.prefix = yard, prefix
        run = "" if plain else uuid.uuid4().hex[:6]
        self.names = {home: f"{home}{run}" for home in HOMES}
        self.clusters = {
            f"{region}-{tier}": yard.bootstrap(f"{home}-{tier}")
            for home, region in self.names.items()
            for tier in TIERS
        }
        listed = [
            {"name": f"{region}-{tier}", "region": region, "tier": tier,
             "bootstrap": self.clusters[f"{region}-{tier}"]}
            for region in self.names.values()
            for tier in TIERS
        ]  # fmt: skip
        self.stages: dict[str, DemoStage] = {}
        for home, region in self.names.items():
            stage = DemoStage(yard, region=region)
            stage.settings.update({"worker": {"grace": "10s"}, "clusters": listed})
            self.stages[home] = stage
        self.workers: dict[str, Process] = {}
        self._listening: dict[str, list[Listening]] = {home: [] for home in HOMES}

    def bootstrap(self, home: str, tier: str) -> str:
        """A cluster's bootstrap address."""
        return self.clusters[f"{self.names[home]}-{tier}"]

    # -- processes -------------------------------------------------------------------------------

    def start(self, workers: Mapping[str, int] | None = None) -> None:
        """Starts workers in each home, in parallel; one by default."""
        wanted = {home: (workers or {}).get(home, 1) for home in HOMES}
        started = {
            home: [self.stages[home].worker(wait=False) for _ in range(n)] for home, n in wanted.items()
        }
        for home, processes in started.items():
            for process in processes:
                self.stages[home].wait_ready(process)
            self.workers[home] = processes[0]

    def running(self, home: str) -> list[Process]:
        """The home's running workers."""
        return [p for p in self.stages[home].processes if p.name.startswith("worker") and p.running]

    def receiver(self, home: str, group: str, *topics: str) -> tuple[Process, Path]:
        """Starts the receiver of this home's definitions; returns it with the path of its journal."""
        stage = self.stages[home]
        one = Listening(group, topics, stage.home / f"journal-{group}.jsonl", free_port())
        self._listening[home].append(one)
        return one.on(stage), one.journal

    def lose(self, home: str) -> None:
        """Kills (-9) a whole region: workers, receivers, both brokers."""
        processes = [process for process in self.stages[home].processes if process.running]
        for process in processes:
            process.popen.kill()
        for tier in TIERS:
            self.yard.kill(f"{home}-{tier}")
        for process in processes:
            process.kill()

    def bring_back(self, home: str, workers: int = 1) -> None:
        """Starts the brokers with their data, the receivers, and new workers; returns once the workers are
        ready."""
        self.yard.up()
        for one in self._listening[home]:
            one.on(self.stages[home])
        started = [self.stages[home].worker(wait=False) for _ in range(workers)]
        for process in started:
            self.stages[home].wait_ready(process)
        self.workers[home] = started[0]

    # -- what workers say ------------------------------------------------------------------------

    def ask(self, home: str, path: str, method: str = "GET", body: Any = None) -> Any:
        """The answer of the home's worker. Raises StageError when it refuses."""
        status, answer = http(method, f"{self.workers[home].url}/api/v1/{path}", body, REQUEST_TIMEOUT_S)
        if status >= 300:
            raise StageError(f"{method} {path} in {home} answered {status}: {answer}")
        return answer

    def deploy(self, definition: JsonObject) -> None:
        """Deploys the same definition in every region."""
        for home, stage in self.stages.items():
            stage.deploy(self.workers[home], definition)

    def roles(self, home: str) -> dict[str, JsonObject]:
        """Workload -> its role as this home knows it."""
        return {role["workload"]: role for role in self.ask(home, "failover")["roles"]}

    def role(self, home: str) -> JsonObject:
        """The role of the only workload."""
        (role,) = self.roles(home).values()
        return role

    def leader(self, home: str) -> Process | None:
        """The leading worker, as the home's worker knows it."""
        items = self.ask(home, "workers?limit=1000")["items"]
        urls = [item["url"] for item in items if item["leader"]]
        return next((worker for worker in self.running(home) if worker.url in urls), None)

    def until_routes(self, home: str, name: str = "shared") -> None:
        """Waits until the region has exactly the routes that its failover definition makes."""
        own, regions = self.names[home], self.names.values()
        wanted = {f"{name}-{region}-to-{own}" for region in regions}
        for region in set(regions) - {own}:
            wanted |= {control_route(region, own), events_route(region, own)}

        def routes() -> set[str]:
            return {item["name"] for item in self.ask(home, "routes")["items"]}

        wait_until(lambda: routes() == wanted, STEP_TIMEOUT_S, lambda: f"{routes()}")

    def close(self) -> None:
        """Ends everything except the brokers."""
        for stage in self.stages.values():
            stage.close()


def failover(name: str, regions: list[str], *topics: str) -> JsonObject:
    """A failover definition."""
    return {
        "apiVersion": "switchyard/v1",
        "kind": "Failover",
        "metadata": {"name": name, "owner": "demo"},
        "spec": {"regions": regions, "topics": list(topics)},
    }
