"""The definitions beside the compose files are valid with the configuration that the compose files use."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from app.config.settings import load_settings
from app.definitions.registry import load_definitions

DOCKER = Path(__file__).parents[2] / "docker"


@pytest.mark.parametrize(
    ("config", "folder", "region"),
    [("one-region", "workloads", "east"), ("two-regions", "two-regions", "east"),
     ("two-regions", "two-regions", "west")],
)  # fmt: skip
def test_the_definitions_can_be_deployed_unchanged(config: str, folder: str, region: str) -> None:
    settings = load_settings(DOCKER / "config" / f"{config}.yaml", {"SWITCHYARD_REGION": region})
    layout, clusters = settings.layout(), {cluster.name for cluster in settings.clusters}
    found, warnings = load_definitions([DOCKER / folder], clusters=clusters, layout=layout)
    assert found
    assert warnings == []


def test_the_configuration_for_kubernetes_is_valid_and_lets_each_pod_announce_its_own_address(
    tmp_path: Path,
) -> None:
    manifests = list(yaml.safe_load_all((DOCKER / "kubernetes" / "worker.yaml").read_text()))
    (config,) = (one["data"]["switchyard.yaml"] for one in manifests if one["kind"] == "ConfigMap")
    file = tmp_path / "switchyard.yaml"
    file.write_text(config)
    web = load_settings(file, {}).web
    assert (web.host, web.advertised) == ("0.0.0.0", "")  # noqa: S104 - of the pod
    assert web.public[0] == "https://switchyard.example.com"
    (pod,) = (one["spec"]["template"]["spec"] for one in manifests if one["kind"] == "Deployment")
    assert {port["containerPort"] for c in pod["containers"] for port in c["ports"]} == {web.port}
