"""The worker as an installed package: the demo counts its messages in each Python that is available."""

from __future__ import annotations

import pytest

from tests.distributions.conftest import Install


@pytest.mark.deep(minutes=1.5)
@pytest.mark.parametrize("minor", [11, 12, 13], ids=lambda minor: f"3.{minor}")
def test_the_demo_plays_and_loses_nothing(install: Install, minor: int) -> None:
    environment = install(minor, "switchyard-kafka")
    report = environment.run("switchyard", "demo", "--once", "--messages", "10000", "--regions", "1")
    assert "10,000 of 10,000, lost 0" in report
    assert report.splitlines()[-1] == "sound"
