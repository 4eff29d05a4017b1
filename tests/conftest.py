"""Fixtures of real Kafka, shared by all tests of a session, and the Hypothesis profiles.

- `bootstrap`: the address of a broker; `SWITCHYARD_TEST_BOOTSTRAP` names one that is already there.
- `yard`: a yard of at least one region. `yard2`: the same yard with both regions, started when first asked
  for. `killable_yard`: the same for a test that kills, stops or pauses; it is mended afterwards.
- `topic_name`: a name no other test uses, since the brokers are shared.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from app.yard import Yard

BOOTSTRAP_VARIABLE = "SWITCHYARD_TEST_BOOTSTRAP"

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session")
def _shared_yard() -> Iterator[Yard]:
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        pytest.skip(f"needs brokers of its own to kill or count on, and {BOOTSTRAP_VARIABLE} gives {given}")
    with Yard(regions=1) as yard:
        yield yard


@pytest.fixture
def yard(_shared_yard: Yard) -> Yard:
    """Real brokers: east-regional and east-aggregate at least."""
    return _shared_yard


@pytest.fixture
def yard2(_shared_yard: Yard) -> Yard:
    """Real brokers of two regions."""
    _shared_yard.up(regions=2)
    return _shared_yard


@pytest.fixture
def killable_yard(_shared_yard: Yard) -> Iterator[Yard]:
    """A yard whose brokers a test may kill, stop and pause; afterwards all of them run again."""
    yield _shared_yard
    _shared_yard.up()


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a broker to use and not to harm."""
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        return given
    yard: Yard = request.getfixturevalue("_shared_yard")
    return yard.bootstrap("east-regional")


@pytest.fixture
def topic_name() -> str:
    """A topic name no other test uses; the topic itself is the test's to create."""
    return f"test-{uuid.uuid4().hex[:12]}"
