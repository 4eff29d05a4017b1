"""Load: it rises fast and falls slowly; estimates from siblings; shares that add up; no figure does harm."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernel.load import (
    CEILING,
    DEFAULT_JOB,
    DEFAULT_WORKER,
    FLOOR,
    JobWork,
    Load,
    SmoothedLoad,
    apportion,
    capacity_or_default,
    valid_or,
    vector,
    with_estimates,
)

QUIET = Load(0.1, 1e7, 1e5)
BUSY = Load(0.5, 5e7, 5e5)
anything = st.floats() | st.sampled_from([-1.0, 1e300, math.inf, math.nan, 0.0])
wild = st.builds(Load, anything, anything, anything)


def cores(load: Load) -> float:
    return round(load.cpu_cores, 3)


def test_a_load_rises_within_minutes_and_falls_after_hours() -> None:
    smoothed = SmoothedLoad(QUIET, fast_s=120, slow_s=3600)
    now_s = 0.0
    for now_s in range(0, 600, 5):
        smoothed.sample(BUSY, now_s)
    assert smoothed.load.cpu_cores > 0.49
    for now_s in range(600, 4200, 5):
        smoothed.sample(QUIET, now_s)
    assert smoothed.fast.cpu_cores < 0.11
    assert smoothed.load.cpu_cores > 0.49, "an hour after the peak it still counts"
    for now_s in range(4200, 8000, 5):
        smoothed.sample(QUIET, now_s)
    assert cores(smoothed.load) == cores(QUIET), "two windows after the peak it does not"


def test_seconds_of_catching_up_are_no_new_level() -> None:
    smoothed = SmoothedLoad(fast_s=120)
    for now_s in range(0, 600, 1):
        smoothed.sample(BUSY if 300 <= now_s < 305 else QUIET, now_s)
    assert smoothed.load.cpu_cores < 0.12


def test_a_long_silence_forgets_both_windows() -> None:
    smoothed = SmoothedLoad(slow_s=3600)
    smoothed.sample(BUSY, 0)
    smoothed.sample(QUIET, 3 * 3600)
    assert cores(smoothed.load) == cores(QUIET)


def test_an_initial_load_gives_way_to_what_is_measured() -> None:
    smoothed = SmoothedLoad(BUSY)
    assert smoothed.load == BUSY
    for now_s in range(0, 900, 5):
        smoothed.sample(QUIET, now_s)
    assert smoothed.fast.cpu_cores < 0.11


def test_windows_must_make_sense() -> None:
    for fast_s, slow_s in ((0, 1), (2, 1), (1, math.inf), (math.nan, 1)):
        with pytest.raises(ValueError, match="fast_s"):
            SmoothedLoad(fast_s=fast_s, slow_s=slow_s)


@given(st.lists(st.tuples(wild, anything), max_size=20))
def test_whatever_is_measured_a_load_is_finite_and_not_negative(samples: list[tuple[Load, float]]) -> None:
    smoothed = SmoothedLoad()
    for measured, now_s in samples:
        load = smoothed.sample(measured, now_s)
        for figure, most in zip(
            (load.cpu_cores, load.memory_bytes, load.network_bytes_per_s), vector(CEILING), strict=True
        ):
            assert 0 <= figure <= most


@given(wild)
def test_an_impossible_measurement_leaves_the_last_true_one(measured: Load) -> None:
    sound = valid_or(measured, QUIET)
    for name in Load.__struct_fields__:
        figure, most = getattr(measured, name), getattr(CEILING, name)
        assert getattr(sound, name) == (figure if 0 <= figure <= most else getattr(QUIET, name))
    smoothed = SmoothedLoad()
    smoothed.sample(QUIET, 0)
    assert smoothed.sample(Load(math.nan, -1.0, math.inf), 60) == QUIET


@given(wild)
def test_what_placement_reckons_with_is_between_floor_and_ceiling(load: Load) -> None:
    for figure, least, most in zip(vector(load), vector(FLOOR), vector(CEILING), strict=True):
        assert least <= figure <= most


def test_a_worker_without_a_measured_capacity_has_the_default() -> None:
    assert capacity_or_default(Load()) == DEFAULT_WORKER
    assert capacity_or_default(Load(math.nan, 8e9, -1)) == Load(
        DEFAULT_WORKER.cpu_cores, 8e9, DEFAULT_WORKER.network_bytes_per_s
    )


def test_a_new_job_is_taken_for_the_median_of_its_siblings() -> None:
    known = {f"dispatch:g/t:t:{n}": Load(cpu, 1e6, 1e3) for n, cpu in enumerate((0.1, 0.2, 0.9))}
    known["dispatch:g/t:t__retry:0"] = Load(0.01, 1e6, 1e3)
    jobs = [*known, "dispatch:g/t:t:3", "dispatch:g/t:t__other:0", "dispatch:h/t:t:0"]
    loads = with_estimates(jobs, known)
    assert loads["dispatch:g/t:t:1"] is known["dispatch:g/t:t:1"]
    assert loads["dispatch:g/t:t:3"].cpu_cores == 0.2, "of its topic in its workload"
    assert loads["dispatch:g/t:t__other:0"].cpu_cores == pytest.approx(0.15), "of its workload"
    assert loads["dispatch:h/t:t:0"] == DEFAULT_JOB


@given(
    st.lists(st.from_regex(r"[a-c]:[a-c]:[a-c]:[0-9]", fullmatch=True), max_size=12),
    st.dictionaries(st.from_regex(r"[a-c]:[a-c]:[a-c]:[0-9]", fullmatch=True), wild, max_size=6),
)
def test_every_job_gets_a_load(jobs: list[str], known: dict[str, Load]) -> None:
    loads = with_estimates(jobs, known)
    assert set(loads) == set(jobs)
    for load in loads.values():
        assert all(map(math.isfinite, vector(load)))


amounts = st.floats(0, 1e12)
works = st.dictionaries(
    st.text(max_size=3), st.builds(JobWork, amounts, amounts, amounts), min_size=1, max_size=8
)


@given(works, st.builds(Load, st.floats(0, 64), st.floats(0, 1e11), st.floats(0, 1e9)))
def test_shares_sum_to_what_the_process_took_beyond_idling(work: dict[str, JobWork], process: Load) -> None:
    idle = Load(0.05, 1.2e8, 0)
    parts = apportion(process, work, idle)
    assert set(parts) == set(work)
    assert sum(load.cpu_cores for load in parts.values()) == pytest.approx(max(0, process.cpu_cores - 0.05))
    assert sum(load.memory_bytes for load in parts.values()) == pytest.approx(
        max(0, process.memory_bytes - 1.2e8)
    )
    assert sum(load.network_bytes_per_s for load in parts.values()) == pytest.approx(
        process.network_bytes_per_s
    )
    assert all(min(vector(load)) >= 0 for load in parts.values())


def test_calls_cost_more_cpu_than_messages_and_bytes_take_the_memory() -> None:
    parts = apportion(
        Load(1.0, 1e8, 1e6),
        {"unary": JobWork(1e6, 1000, 1000), "stream": JobWork(3e6, 1000, 2), "idle": JobWork()},
    )
    assert parts["unary"].cpu_cores > 5 * parts["stream"].cpu_cores
    assert parts["stream"].memory_bytes == pytest.approx(7.5e7)
    assert parts["idle"] == Load()


@given(
    st.dictionaries(st.text(max_size=3), st.builds(JobWork, anything, anything, anything), max_size=6), wild
)
def test_no_count_however_absurd_breaks_the_shares(work: dict[str, JobWork], process: Load) -> None:
    for load in apportion(process, work, process).values():
        assert all(map(math.isfinite, (load.cpu_cores, load.memory_bytes, load.network_bytes_per_s)))


def test_jobs_that_did_nothing_share_alike() -> None:
    assert apportion(Load(0.2, 2e6, 0), {"a": JobWork(), "b": JobWork()})["a"] == Load(0.1, 1e6, 0)
    assert apportion(Load(0.2), {}) == {}


def test_catching_up_after_a_takeover_is_no_peak() -> None:
    smoothed = SmoothedLoad(fast_s=120.0, slow_s=3600.0)
    for second in range(0, 12, 2):
        smoothed.sample(Load(1.0, 1 << 20, 1000.0), second)
    for second in range(12, 242, 2):
        load = smoothed.sample(Load(0.1, 1 << 20, 1000.0), second)
    assert load.cpu_cores < 0.2
    assert (
        smoothed.sample(Load(0.1, 1 << 20, 1000.0), 700.0).cpu_cores < 0.2
    )  # nor does the catch-up count as a peak later
