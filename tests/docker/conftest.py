"""The Docker engine, the images that all tests share, and a region of containers for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config

from tests.docker.engine import Engine
from tests.docker.region import Region


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A Docker engine; skips the test if none runs and none can be started."""
    docker = Engine(tmp_path_factory.mktemp("engine"))
    testcontainers_config.ryuk_disabled = (
        True  # its image would have to be pulled; fixtures remove their containers
    )
    try:
        yield docker
    finally:
        docker.close()


@pytest.fixture(scope="session")
def worker_image(engine: Engine) -> str:
    """The worker's image, built from this checkout."""
    return engine.build("worker")


@pytest.fixture(scope="session")
def kafka_image(engine: Engine) -> str:
    """The development image of Kafka."""
    return engine.build("kafka")


@pytest.fixture(scope="session")
def receiver_image(engine: Engine) -> str:
    """The image of the example receiver in Go."""
    return engine.build("receiver", GO_BASE=engine.go_base())


@pytest.fixture
def region(worker_image: str, kafka_image: str, tmp_path: Path) -> Iterator[Region]:
    """A network with a broker and a receiver; the test starts the workers."""
    with Region(worker_image, kafka_image, tmp_path) as started:
        yield started
