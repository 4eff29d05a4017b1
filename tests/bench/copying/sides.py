"""The sides of the comparison: a route of one worker, MirrorMaker 2, and the bare copier (`bare`).

Each copies a topic from its beginning into a new topic every time, which is deleted afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from app.dev.demo.stage import DemoStage, Process, http, route
from app.dev.demo.traffic import create_topic
from app.dev.yard.java import Java
from tests.bench import mirror_maker
from tests.bench.copying.latency import latency_ms
from tests.bench.copying.topic import PARTITIONS, Shape, drop
from tests.bench.copying.watch import Figures, begins, watch

SOURCE, COPIES = "east-regional", "east-aggregate"


@dataclass
class Sides:
    """The sides; `worker` has nothing else to do."""

    stage: DemoStage
    worker: Process
    java: Java
    jars: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def ours(self, shape: Shape) -> Figures:
        """A route copies the filled topic."""
        return self._watched(self._ours(shape.topic), shape)

    def ours_beside(
        self, shape: Shape, head: float, beside: Callable[[], AbstractContextManager[Any]]
    ) -> Figures:
        """A route copies it while `beside` runs; measured from the share `head` of the topic on."""
        with self._ours(shape.topic) as (process, copy):
            asyncio.run(begins(self._bootstraps[1], copy, PARTITIONS, process))
            with beside():
                return asyncio.run(watch(self._bootstraps[1], copy, PARTITIONS, shape.count, process, head))

    def peer(self, shape: Shape) -> Figures:
        """MirrorMaker 2 copies it."""
        return self._watched(self._peer(shape.topic, shape.codec), shape)

    def bare(self, shape: Shape) -> Figures:
        """The bare copier copies it."""
        return self._watched(self._bare(shape.topic), shape)

    def our_latency_ms(self) -> tuple[float, float]:
        """p50 and p99 through a route."""
        topic = self._empty()
        with self._ours(topic) as (process, copy):
            return self._latency_ms(topic, copy, process)

    def peer_latency_ms(self) -> tuple[float, float]:
        """p50 and p99 through MirrorMaker 2."""
        topic = self._empty()
        with self._peer(topic, "none") as (process, copy):
            return self._latency_ms(topic, copy, process)

    @property
    def _bootstraps(self) -> tuple[str, str]:
        return self.stage.yard.bootstrap(SOURCE), self.stage.yard.bootstrap(COPIES)

    def _watched(self, copying: Any, shape: Shape) -> Figures:
        with copying as (process, copy):
            return asyncio.run(watch(self._bootstraps[1], copy, PARTITIONS, shape.count, process))

    def _latency_ms(self, topic: str, copy: str, process: Process) -> tuple[float, float]:
        try:
            return latency_ms(self.stage, *self._bootstraps, topic, copy, process)
        finally:
            asyncio.run(drop(self._bootstraps[0], topic))

    def _empty(self) -> str:
        topic = f"flow-{uuid.uuid4().hex[:8]}"
        asyncio.run(create_topic(self._bootstraps[0], topic, PARTITIONS))
        return topic

    @contextmanager
    def _ours(self, topic: str) -> Iterator[tuple[Process, str]]:
        name = f"ours{next(self._numbers)}"
        copy = f"{name}.{topic}"
        rename = {"names": {topic: copy}}
        self.stage.deploy(self.worker, route(name, SOURCE, COPIES, topic, rename=rename))
        try:
            yield self.worker, copy
        finally:
            http("DELETE", f"{self.worker.url}/api/v1/routes/{name}")
            asyncio.run(drop(self._bootstraps[1], copy))

    @contextmanager
    def _bare(self, topic: str) -> Iterator[tuple[Process, str]]:
        copy = f"bare{next(self._numbers)}.{topic}"
        asyncio.run(create_topic(self._bootstraps[1], copy, PARTITIONS))
        command = [sys.executable, "-m", "tests.bench.copying.bare", *self._bootstraps, topic, copy]
        process = self.stage.start(copy, [*command, str(PARTITIONS)])
        try:
            yield process, copy
        finally:
            process.kill()
            asyncio.run(drop(self._bootstraps[1], copy))

    @contextmanager
    def _peer(self, topic: str, codec: str) -> Iterator[tuple[Process, str]]:
        alias = f"peer{next(self._numbers)}"
        process = mirror_maker.start(self.stage, self.java, self.jars, alias, self._bootstraps, topic, codec)
        copy = f"{alias}.{topic}"
        try:
            yield process, copy
        finally:
            process.kill()
            asyncio.run(drop(self._bootstraps[1], copy))
