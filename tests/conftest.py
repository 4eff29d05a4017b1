"""Fixtures of real Kafka that all tests of a session share, the Hypothesis profiles, and second tries.

- `bootstrap`: the address of a broker; `SWITCHYARD_TEST_BOOTSTRAP` names one that runs already.
- `yard`: a yard of at least one region. `yard2`: the same yard with both regions, started at the first use.
  `killable_yard`: the same yard for a test that kills, stops or pauses brokers; it is mended afterwards.
- `secured`: a yard whose brokers require a login and enforce access control lists (tests/kafka/acls.py).
- `topic_name`: a name that no other test uses, because tests share the brokers.

A test that is marked `deep` takes long. `make test` leaves it out, and CI runs a part of the deep tests with
each commit (tests/__main__.py). A test that is marked `second_try` may fail by chance, and runs once more at
the end, alone. Tests that count messages, tests of pure logic and properties must not have that mark.
"""

from __future__ import annotations

import json
import os
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
from app.kafka.client import aiokafka_patches
from tests.examples import CI_EXAMPLES

BOOTSTRAP_VARIABLE = "SWITCHYARD_TEST_BOOTSTRAP"
USERS = {ADMIN: "adminword", "switchyard": "switchword", "service": "serviceword", "reader": "readerword"}
PORTS_VARIABLE = "SWITCHYARD_TEST_PORTS"  # "20000-24000": the ports of this process (tests/__main__.py)
PROCESS_VARIABLE = "SWITCHYARD_TEST_PROCESS"  # "first", "second" or "beside": runs these tests (the same)
PART_VARIABLE = "SWITCHYARD_TEST_PART"  # "3/8": the deep tests that are marked `in_part` (the same)
FAILURES_VARIABLE = "SWITCHYARD_TEST_FAILURES"  # a file that gets a line for each failure (the same)
PROFILE_VARIABLE = "HYPOTHESIS_PROFILE"
PROFILE = os.environ.get(PROFILE_VARIABLE, "dev")

SEED_VARIABLE = "SWITCHYARD_TEST_SEED"  # a number, for Hypothesis; CI takes it from the commit
SEED_DEST = "hypothesis_seed"  # Hypothesis' own option, --hypothesis-seed

# Failing examples of a run stay on the machine. `make fuzz` puts its own into the repository for every run.
# With a seed, as in CI, Hypothesis reads no database: there `test_found` tries the examples.
FOUND = Path(__file__).parent / "found"
FUZZED = Path(".hypothesis") / "fuzz"
OWN = FUZZED if PROFILE == "fuzz" else Path(".hypothesis") / "examples"
DATABASE = MultiplexedDatabase(
    DirectoryBasedExampleDatabase(OWN), ReadOnlyDatabase(DirectoryBasedExampleDatabase(FOUND))
)
shared = settings(
    deadline=None,
    database=DATABASE,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine makes examples slowly
)
settings.register_profile("dev", shared, max_examples=50)
settings.register_profile("ci", shared, max_examples=CI_EXAMPLES)
settings.register_profile("fuzz", shared, max_examples=1_000)
settings.register_profile("found", shared, phases=[Phase.explicit, Phase.reuse])
settings.register_profile("soak", shared, max_examples=20_000)
settings.load_profile(PROFILE)

if os.environ.get(PORTS_VARIABLE):
    broker.AUTOMATIC_PORTS = range(*map(int, os.environ[PORTS_VARIABLE].split("-")))

# Fixtures that start brokers or containers, or Spark.
STARTING = {"_shared_yard", "secured", "bootstrap", "cached", "engine", "master", "session"}
# Patterns of places below tests/. PURE: no clock, socket or process. BESIDE: no brokers, may run slowly.
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
    "controllog/test_roles",
    "controllog/test_state*",
    "definitions/test_*",
    "dispatch/move/test_time_mapping",
    "failover/test_topology",
    "kafka/fetch/test_shared_reads",
    "kafka/records/*",
    "kernel/*",
    "payload/event_time/*",
    "replicate/api/test_topic_edit",
    "sizing/test_recommendation",
    "tutorial/test_page",
    "worker/tracker/test_fold*",
    "worker/tracker/test_write_health",
)
BESIDE = (
    *PURE,
    "*/api/*",
    "archive/test_log",
    "archive/test_reader",
    "cli/*",
    "dispatch/dlq/*",
    "dispatch/test_view",
    "grpc_client/*",
    "payload/*",
    "reference/*",
    "test_found",
    "test_site",
    "test_suites",
    "spark/*",
    "web/*",
)
# Tests of a second process with a yard of its own. They take as long as all other tests with brokers.
SECOND = ("alerts/*", "audit/*", "docker/*", "failover/*", "offsets/*", "system/*", "tutorial/*", "web/*")
WHOLE = ("docker/*", "system/*", "tutorial/*")  # whole workers, and containers
NEEDS_INSTALLING = {"browser", "containers"}  # markers
PROPERTY_MINUTES = 0.05  # of a property with the profile `ci`


def is_in(place: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches the place."""
    return any(fnmatchcase(place, pattern) for pattern in patterns)


def place_of(path: Path) -> str:
    """The path of a file below tests/, without its suffix."""
    return path.relative_to(Path(__file__).parent).with_suffix("").as_posix()


def process_of(item: pytest.Item) -> str:
    """The process of `python -m tests` that runs the test."""
    return next((process for process in ("second", "beside") if item.get_closest_marker(process)), "first")


def parse_part(text: str) -> tuple[int, int]:
    """The numbers in `3/8`, the third of eight parts. Raises ValueError."""
    part, _, parts = text.partition("/")
    found = int(part), int(parts)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(f"{text!r} is no part: give one and how many there are, as in 3/8")
    return found


def divide(minutes: dict[str, float], parts: int) -> list[set[str]]:
    """Divides tests with these durations into parts of about the same length, the longest test first.

    Two parts differ by at most the longest test. The same names and minutes give the same parts.
    """
    lengths, found = [0.0] * parts, [set[str]() for _ in range(parts)]
    for name in sorted(minutes, key=lambda one: (-minutes[one], one)):
        shortest = lengths.index(min(lengths))
        lengths[shortest] += minutes[name]
        found[shortest].add(name)
    return found


def mark_part(items: list[pytest.Item], part: int, parts: int) -> None:
    """Marks the deep tests and properties of one part with `in_part`, separately for each process."""
    minutes: dict[str, dict[str, float]] = {"first": {}, "second": {}, "beside": {}}
    for item in items:
        if deep := item.get_closest_marker("deep"):
            minutes[process_of(item)][item.nodeid] = deep.kwargs["minutes"]
        elif item.get_closest_marker("property"):
            minutes[process_of(item)][item.nodeid] = PROPERTY_MINUTES
    chosen = set[str]().union(*(divide(of_process, parts)[part - 1] for of_process in minutes.values()))
    for item in items:
        if item.nodeid in chosen:
            item.add_marker("in_part")


def commit_seed() -> int | None:
    """A number from the checked-out commit; None without a repository."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(head.stdout[:8], 16) if head.returncode == 0 else None


@pytest.hookimpl(tryfirst=True)  # Hypothesis' own plugin reads the option after that
def pytest_configure(config: pytest.Config) -> None:
    """Patches aiokafka for tests' clients. Seeds Hypothesis with the commit in CI: each commit tries other
    examples, and failures repeat."""
    aiokafka_patches.install()
    if getattr(config.option, SEED_DEST) is not None:
        return
    given = os.environ.get(SEED_VARIABLE)
    seed = int(given) if given else commit_seed() if os.environ.get("CI") else None
    if seed is not None:
        setattr(config.option, SEED_DEST, seed)


def pytest_report_header(config: pytest.Config) -> str:
    """How to repeat this run's examples."""
    seed = getattr(config.option, SEED_DEST)
    repeat = "random examples" if seed is None else f"repeat with --hypothesis-seed={seed}"
    return f"properties: profile {PROFILE}, {repeat}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests ran in a browser and on containers, and how many were skipped."""
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


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Makes a process of `python -m tests` skip the files of the other processes before it imports them."""
    process, name = os.environ.get(PROCESS_VARIABLE), collection_path.name
    if process is None or not (name.startswith("test_") and name.endswith(".py")):
        return None
    place = place_of(collection_path)
    runs = {
        "first": not is_in(place, (*PURE, *SECOND)),
        "second": is_in(place, SECOND) and not is_in(place, PURE),
        "beside": is_in(place, BESIDE),
    }
    return None if runs[process] else True


@pytest.hookimpl(tryfirst=True)  # pytest applies `-m` after that
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        place, is_property = place_of(item.path), is_hypothesis_test(item.obj)
        starts = not STARTING.isdisjoint(item.fixturenames) or item.get_closest_marker("browser")
        if is_in(place, ("docker/*",)):
            item.add_marker("containers")
        if is_property:
            item.add_marker("property")
        if is_in(place, BESIDE) and not starts:
            item.add_marker("beside")
        elif is_in(place, PURE):
            raise pytest.UsageError(f"{item.nodeid} starts brokers or a browser, and its file is in PURE")
        elif is_in(place, SECOND):
            item.add_marker("second")
        if item.get_closest_marker("second_try") and (is_property or is_in(place, (*PURE, *WHOLE))):
            raise pytest.UsageError(f"{item.nodeid} has one try: what is pure, and what counts messages")
    if part := os.environ.get(PART_VARIABLE):
        mark_part(items, *parse_part(part))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Records for `python -m tests` which tests failed, and whether they may have a second try."""
    if report.failed and (path := os.environ.get(FAILURES_VARIABLE)):
        found = {"test": report.nodeid, "may_try_again": "second_try" in report.keywords}
        with Path(path).open("a") as file:
            file.write(json.dumps(found) + "\n")


@pytest.fixture(scope="session")
def _shared_yard() -> Iterator[Yard]:
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        pytest.skip(f"needs brokers of its own to kill or count on, and {BOOTSTRAP_VARIABLE} gives {given}")
    with Yard(regions=1) as yard:
        yield yard


@pytest.fixture
def yard(_shared_yard: Yard) -> Yard:
    """A yard with at least east-regional and east-aggregate."""
    return _shared_yard


@pytest.fixture
def yard2(_shared_yard: Yard) -> Yard:
    """A yard with two regions."""
    _shared_yard.up(regions=2)
    return _shared_yard


@pytest.fixture
def killable_yard(_shared_yard: Yard) -> Iterator[Yard]:
    """A yard whose brokers a test may kill, stop and pause; they are started again afterwards."""
    yield _shared_yard
    _shared_yard.up()


@pytest.fixture(scope="session")
def secured() -> Iterator[Yard]:
    """A yard of one region whose brokers require a login; tests set the access control lists."""
    with Yard(regions=1, security=YardSecurity(USERS)) as yard:
        yield yard


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a broker that a test must not kill or stop."""
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        return given
    yard: Yard = request.getfixturevalue("_shared_yard")
    return yard.bootstrap("east-regional")


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses; the test creates the topic."""
    return f"test-{uuid.uuid4().hex[:12]}"
