from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.accounting import Memory, Processes
from tests.benchmarks.soak import MemoryTrack
from tests.benchmarks.test_main import bench


class Growing(Processes):
    """Processes of which one grows by a megabyte a second, but for a jump at the start."""

    def __init__(self) -> None:
        super().__init__({})
        self.time_s = 0

    def memory(self) -> dict[str, Memory]:
        """Return what they hold now."""
        self.time_s += 1
        jump = 500 if self.time_s > 3 else 0
        held = {"leaks": (jump + self.time_s) * 1_000_000, "is flat": 7}
        return {name: Memory(1, size, size, size) for name, size in held.items()}


def test_growth_is_that_of_warm_processes() -> None:
    track, processes = MemoryTrack(), Growing()
    for second in range(40):
        track.add(second, processes)
    assert track.growth_mb_per_hour() == pytest.approx({"leaks": 3600, "is flat": 0})


def test_a_minute_at_half_load_leaves_every_process_as_large_as_it_was(tmp_path: Path) -> None:
    done = bench("--soak", "1", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads((tmp_path / "soak.json").read_text())
    assert outcome["num_sent"] > 100
    for name, sizes in outcome["memory"]["rss_bytes"].items():
        warm = len(sizes) // 4
        assert max(sizes[-3:]) < 1.05 * max(sizes[warm : warm + 3]) + 5e6, f"{name}: {sizes}"
