"""A process whose event loop stands still ends and says where; one that was paused continues."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.worker.runtime.loop_guard import LoopStall
from app.worker.runtime.watchdog import EXIT_STALLED

ENOUGH_S = 120
PROCESS = """
import asyncio, os, re, sys, time
from app.worker.runtime.loop_guard import LoopGuard

async def main():
    guard = LoopGuard({limit_s}, cpu_cores=1.0, tick_s=0.05)
    guard._cpu_limit_s = 1.0
    guard.start()
    await asyncio.sleep(0.2)
    print("running", flush=True)
    {then}
    guard.stop()
    print("went on", flush=True)

def held_by_a_file():
    os.mkfifo(sys.argv[1])
    open(sys.argv[1]).read()

def held_by_python():
    while True:
        pass

def held_by_c():
    re.match("(a+)+$", "a" * 60 + "b")

asyncio.run(main())
"""


def started(then: str, path: str = "", limit_s: float = 0.5) -> subprocess.Popen[str]:
    text = PROCESS.format(limit_s=limit_s, then=then)
    return subprocess.Popen(
        [sys.executable, "-c", text, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("what", ["held_by_a_file", "held_by_python"])
def test_a_process_whose_loop_stands_still_ends_and_its_stacks_say_where(what: str, tmp_path: object) -> None:
    out, err = started(f"{what}()", f"{tmp_path}/fifo").communicate(timeout=ENOUGH_S)
    assert out == "running\n"
    assert "the event loop has stood still" in err
    assert f"in {what}" in err


def test_a_call_that_never_gives_pythons_lock_back_ends_the_process_too() -> None:
    process = started("held_by_c()")
    out, err = process.communicate(timeout=ENOUGH_S)
    assert out == "running\n"
    assert "in held_by_c" in err
    assert process.returncode in {EXIT_STALLED, -signal.SIGPROF}


def test_a_process_paused_beyond_the_limit_continues() -> None:
    process = started("await asyncio.sleep(0.5)", limit_s=2.0)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3.0)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=ENOUGH_S)
    finally:
        process.kill()
    assert (out, err, process.returncode) == ("went on\n", "", 0)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=50))
def test_only_checked_time_counts_and_a_beat_resets_it(looks: list[tuple[float, bool]]) -> None:
    stillness, now_s, beats, since = LoopStall(1.0), 0.0, 0, 0
    for passed_s, has_beaten in looks:
        now_s, beats = now_s + passed_s, beats + has_beaten
        since = 0 if has_beaten else since + 1
        assert stillness.measure(beats, now_s) <= 2.0 * since
    assert stillness.measure(beats + 1, now_s) == 0.0
    assert stillness.measure(beats + 1, now_s + 0.5) == pytest.approx(0.5)
