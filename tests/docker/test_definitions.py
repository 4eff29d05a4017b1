"""The definitions beside the compose files are valid where the compose files put them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.definitions import load_definitions
from app.config.static import load_settings

DOCKER = Path(__file__).parents[2] / "docker"


@pytest.mark.parametrize(
    ("config", "folder", "region"),
    [("one-region", "workloads", "east"), ("two-regions", "two-regions", "east"),
     ("two-regions", "two-regions", "west")],
)  # fmt: skip
def test_they_can_be_deployed_as_they_stand(config: str, folder: str, region: str) -> None:
    settings = load_settings(DOCKER / "config" / f"{config}.yaml", {"SWITCHYARD_REGION": region})
    layout, clusters = settings.layout(), {cluster.name for cluster in settings.clusters}
    found, warnings = load_definitions([DOCKER / folder], clusters=clusters, layout=layout)
    assert found
    assert warnings == []
