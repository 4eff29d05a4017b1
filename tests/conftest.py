"""Fixtures of real Kafka, shared by all tests of a session, the Hypothesis profiles, and second tries.

- `bootstrap`: the address of a broker; `SWITCHYARD_TEST_BOOTSTRAP` names one that is already there.
- `yard`: a yard of at least one region. `yard2`: the same yard with both regions, started when first asked
  for. `killable_yard`: the same for a test that kills, stops or pauses; it is mended afterwards.
- `secured`: a yard whose brokers want a login and allow what access control lists say (tests/kafka/acls.py).
- `topic_name`: a name no other test uses, since the brokers are shared.

In CI a test with brokers, processes or sockets that failed is tried once more; the summary names it with what
failed first, so that it is mended. Never tried again: pure logic, Hypothesis, and what may be a message lost
or doubled; in tests/system nothing but what was too late.
"""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings
from hypothesis.database import DirectoryBasedExampleDatabase, MultiplexedDatabase, ReadOnlyDatabase

from app.dev.yard import Yard, broker
from app.dev.yard.security import ADMIN, YardSecurity

BOOTSTRAP_VARIABLE = "SWITCHYARD_TEST_BOOTSTRAP"
USERS = {ADMIN: "adminword", "switchyard": "switchword", "reader": "readerword"}  # the last never writes
PORTS_VARIABLE = "SWITCHYARD_TEST_PORTS"  # "20000-24000": of this process, beside others (tests/__main__.py)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")

SEED_VARIABLE = "SWITCHYARD_TEST_SEED"  # of Hypothesis, a number; CI's default is the commit
SEED_DEST = "hypothesis_seed"  # Hypothesis' own option, --hypothesis-seed

BUSY = [HealthCheck.too_slow]  # a machine that is busy makes examples slowly; that is no finding
# What a run finds stays on the machine; what `make fuzz` found stays in the repository, and is tried as well.
# Hypothesis reads no database where it has a seed, as in CI: there `test_found` tries what was found.
FOUND = Path(__file__).parent / "found"
FUZZED = Path(".hypothesis") / "fuzz"
OWN = FUZZED if PROFILE == "fuzz" else Path(".hypothesis") / "examples"
DATABASE = MultiplexedDatabase(
    DirectoryBasedExampleDatabase(OWN), ReadOnlyDatabase(DirectoryBasedExampleDatabase(FOUND))
)
shared = settings(deadline=None, database=DATABASE, print_blob=True)
settings.register_profile("dev", shared, max_examples=50)
settings.register_profile("ci", shared, max_examples=200, suppress_health_check=BUSY)
settings.register_profile("fuzz", shared, max_examples=1_000, suppress_health_check=BUSY)
settings.register_profile("found", shared, phases=[Phase.explicit, Phase.reuse], suppress_health_check=BUSY)
settings.register_profile("soak", shared, max_examples=20_000)
settings.load_profile(PROFILE)

if os.environ.get(PORTS_VARIABLE):
    broker.AUTOMATIC_PORTS = range(*map(int, os.environ[PORTS_VARIABLE].split("-")))

# Fixtures that start brokers or containers, or Spark: of its tests those run beside that say so themselves.
STARTING = {"_shared_yard", "secured", "bootstrap", "cached", "engine", "master", "session"}
# Places below tests/, as patterns. Of PURE nothing is tried again; how long BESIDE takes matters to none.
PURE = (
    "*/model/*",
    "*/test_definition",
    "*/test_definition_checks",
    "alerts/test_*",
    "audit/counts/*",
    "audit/folds/*",
    "audit/drilldown/test_copy_origins",
    "audit/drilldown/test_findings",
    "audit/drilldown/test_id_sums",
    "audit/drilldown/test_reconciliation",
    "audit/drilldown/test_sieve",
    "bench/*",
    "config/*",
    "controllog/test_failover_run*",
    "controllog/test_global_report",
    "controllog/test_roles",
    "controllog/test_state*",
    "definitions/test_*",
    "dispatch/move/test_time_mapping",
    "failover/test_topology",
    "kafka/fetch/test_shared_reads",
    "kafka/records/*",
    "kernel/*",
    "payload/*",
    "replicate/api/test_topic_edit",
    "sizing/test_forecasts",
    "sizing/test_recommendation",
    "worker/tracker/*",
)
BESIDE = (
    *PURE,
    "*/api/*",
    "archive/test_log",
    "archive/test_reader",
    "cli/*",
    "dispatch/dlq/*",
    "dispatch/test_view",
    "spark/*",
    "web/*",
)
WHOLE = ("docker/*", "system/*")  # whole workers, on a yard of their own; as long as all others with brokers
NEEDS_INSTALLING = {"browser", "containers"}  # markers
COUNTED = ("system/*",)  # every message, after kills: what is not as it should be there once is a finding

COUNTS = re.compile(
    "(^|_)(all|doubles?|every|loses?|lost|miss|none|no_message|no_record|nothing|once|twice)(_|$)"
)
SAYS_LOST = r"(?i)(?<!connection )\b(lost|missing|twice|doubled)\b|never came|Counter\("
OUT_OF_TIME = "from pytest-timeout"  # the second try would have no end


def is_in(place: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns means the place."""
    return any(fnmatchcase(place, pattern) for pattern in patterns)


def second_try(place: str, name: str) -> pytest.MarkDecorator:
    """Once more, unless the failure says that messages were lost, or that what a test there, or of this name,
    counts is not as it should be."""
    final: list[str | type[Exception]] = [SAYS_LOST, OUT_OF_TIME]
    if is_in(place, COUNTED) or COUNTS.search(name):
        final.append(AssertionError)
    return pytest.mark.flaky(reruns=1, rerun_except=final)


def commit_seed() -> int | None:
    """A number made of the commit that is checked out; None where there is no repository."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(asked.stdout[:8], 16) if asked.returncode == 0 else None


@pytest.hookimpl(tryfirst=True)  # Hypothesis' own plugin reads the option after that
def pytest_configure(config: pytest.Config) -> None:
    """CI seeds Hypothesis by the commit: each commit tries other examples, and a failure can be repeated."""
    if getattr(config.option, SEED_DEST) is not None:
        return
    given = os.environ.get(SEED_VARIABLE)
    seed = int(given) if given else commit_seed() if PROFILE == "ci" else None
    if seed is not None:
        setattr(config.option, SEED_DEST, seed)


def pytest_report_header(config: pytest.Config) -> str:
    """How to repeat this run's examples."""
    seed = getattr(config.option, SEED_DEST)
    repeat = "random examples" if seed is None else f"repeat with --hypothesis-seed={seed}"
    return f"properties: profile {PROFILE}, {repeat}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests ran in a browser and on containers: those are skipped where nothing is installed."""
    ran: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if not isinstance(report, pytest.TestReport) or not {"setup", "call"} & {report.when}:
                continue
            for kind in NEEDS_INSTALLING & report.keywords.keys():
                if outcome == "skipped":
                    skipped[kind] += 1
                elif report.when == "call":
                    ran[kind] += 1
    for kind in sorted(ran | skipped):
        terminalreporter.write_line(f"tests that need {kind}: {ran[kind]} ran, {skipped[kind]} skipped")


@pytest.hookimpl(tryfirst=True)  # `-m` is looked at after that
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        place = item.path.relative_to(Path(__file__).parent).with_suffix("").as_posix()
        starts = not STARTING.isdisjoint(item.fixturenames) or item.get_closest_marker("browser")
        if is_in(place, WHOLE):
            item.add_marker("whole")
        if is_in(place, ("docker/*",)):
            item.add_marker("containers")
        if is_hypothesis_test(item.obj):
            item.add_marker("property")
        if is_in(place, BESIDE) and not starts:
            item.add_marker("beside")
        if PROFILE == "ci" and not is_in(place, PURE) and not is_hypothesis_test(item.obj):
            item.add_marker(second_try(place, item.function.__name__))


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
def secured() -> Iterator[Yard]:
    """Real brokers of one region, to which users have to log in; what they may do is the tests' to say."""
    with Yard(regions=1, security=YardSecurity(USERS)) as yard:
        yield yard


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
