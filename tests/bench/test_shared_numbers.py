"""The numbers that processes of a bench share, and the histogram made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.latency.histogram import CELLS, STEP_NS, Histogram
from tests.bench.processes.shared_numbers import shared_numbers


def test_a_file_that_is_opened_twice_has_one_set_of_numbers(tmp_path: Path) -> None:
    first = shared_numbers(tmp_path / "numbers", 3)
    second = shared_numbers(tmp_path / "numbers", 3)
    first[1] += 2
    second[2] = 1 << 63
    assert list(first) == list(second) == [0, 2, 1 << 63]


def test_a_quantile_is_the_end_of_the_step_in_which_its_share_is_reached(tmp_path: Path) -> None:
    histogram = Histogram(tmp_path / "latencies")
    cells = shared_numbers(tmp_path / "latencies", CELLS)
    with pytest.raises(ValueError, match="no message"):
        histogram.quantile_ms(0.5)
    cells[0], cells[9], cells[19] = 50, 49, 1
    step_ms = STEP_NS / 1e6
    assert histogram.count == 100
    found = [histogram.quantile_ms(share) for share in (0.5, 0.99, 1.0)]
    assert found == pytest.approx([step_ms, 10 * step_ms, 20 * step_ms])
    cells[CELLS - 1] = 1
    with pytest.raises(ValueError, match="1 messages took longer than a second"):
        histogram.quantile_ms(0.5)
    histogram.clear()
    assert histogram.count == 0
