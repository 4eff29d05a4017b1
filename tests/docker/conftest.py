"""The engine, the images that all tests here share, and a region of containers for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config

from tests.docker.engine import Engine
from tests.docker.region import Region


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A Docker engine; skips where there is none and none can be started."""
    made = Engine(tmp_path_factory.mktemp("engine"))
    testcontainers_config.ryuk_disabled = True  # an image to be pulled; fixtures remove what they start
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def worker_image(engine: Engine) -> str:
    """The worker's image, of the code as it stands."""
    return engine.build("worker")


@pytest.fixture(scope="session")
def kafka_image(engine: Engine) -> str:
    """Kafka for development."""
    return engine.build("kafka")


@pytest.fixture(scope="session")
def receiver_image(engine: Engine) -> str:
    """The example receiver in Go."""
    return engine.build("receiver", GO_BASE=engine.go_base())


@pytest.fixture
def region(worker_image: str, kafka_image: str, tmp_path: Path) -> Iterator[Region]:
    """A network with a broker and a receiver on it; workers are the test's to start."""
    with Region(worker_image, kafka_image, tmp_path) as made:
        yield made
