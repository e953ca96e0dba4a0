"""The soak: half of the server's capacity for minutes, with the memory of every process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.workshop.load.accounting import Processes
from tests.workshop.load.load import Load
from tests.workshop.load.measures import slope
from tests.workshop.load.runs import measure
from tests.workshop.load.scenarios import Setup
from tests.workshop.load.servers import Server

SETUP = Setup()
_CAPACITY_LOAD = Load(num_streams=64, num_tokens=200, warmup_s=1, window_s=5)
_SEGMENT_S = 20.0  # the load generator keeps all bytes of a segment
_WARM_SHARE = 0.25  # the start of the time, which the slope leaves out: buffers and caches grow then


@dataclass(slots=True)
class MemoryTrack:
    """Samples of memory over time."""

    times_s: list[float] = field(default_factory=list)
    rss_bytes: dict[str, list[int]] = field(default_factory=dict)  # by name of process
    pss_bytes: dict[str, list[int]] = field(default_factory=dict)

    def add(self, time_s: float, processes: Processes) -> None:
        """Add a sample."""
        sample = processes.memory()
        self.times_s.append(time_s)
        for name, memory in sample.items():
            self.rss_bytes.setdefault(name, []).append(memory.rss_bytes)
            self.pss_bytes.setdefault(name, []).append(memory.pss_bytes)

    def growth_mb_per_hour(self) -> dict[str, float]:
        """Return the slope of each name's RSS after the warm-up. PSS depends on other processes too."""
        start = int(len(self.times_s) * _WARM_SHARE)
        times_s = self.times_s[start:]
        return {
            name: slope(times_s, values[start:]) * 3600 / 1e6
            for name, values in self.rss_bytes.items()
            if len(values) == len(self.times_s)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOutcome:
    """The result of a soak."""

    minutes: float
    capacity_tokens_per_s: float
    rate_per_s: float  # of requests
    num_sent: int
    num_failed: int
    errors: dict[str, int]
    memory: MemoryTrack


def soak(server: Server, minutes: float, print_line: Callable[[str], None]) -> SoakOutcome:
    """Measure the capacity, then send half of it and track memory."""
    result, window = measure(_CAPACITY_LOAD, server.target, server.processes)
    capacity = result.num_tokens / window.duration_s
    rate_per_s = capacity / _CAPACITY_LOAD.num_tokens / 2
    print_line(f"capacity {capacity:,.0f} tokens/s; sending {rate_per_s:.1f} requests/s of half of that")
    num_sent, num_failed, errors = 0, 0, dict(result.errors)
    end_s = time.monotonic() + minutes * 60
    load = replace(_CAPACITY_LOAD, rate_per_s=rate_per_s, warmup_s=0)
    with _tracking(server.processes, interval_s=min(5.0, minutes * 60 / 30)) as track:
        while (left_s := end_s - time.monotonic()) > 1:
            load = replace(load, window_s=min(_SEGMENT_S, left_s), seed=load.seed + 1)
            result, _ = measure(load, server.target, server.processes)
            num_sent += result.num_sent
            num_failed += result.num_failed
            for error, number in result.errors.items():
                errors[error] = errors.get(error, 0) + number
            pss_mb = sum(values[-1] for values in track.pss_bytes.values()) / 1e6
            print_line(
                f"{left_s / 60:5.1f} min left, {num_sent} requests, {num_failed} failed, {pss_mb:,.0f} MB in all"
            )
    return SoakOutcome(
        minutes=minutes,
        capacity_tokens_per_s=capacity,
        rate_per_s=rate_per_s,
        num_sent=num_sent,
        num_failed=num_failed,
        errors=errors,
        memory=track,
    )


@contextmanager
def _tracking(processes: Processes, interval_s: float) -> Iterator[MemoryTrack]:
    """Sample memory in the block, with the first sample at its start."""
    track, is_over = MemoryTrack(), threading.Event()
    start_s = time.monotonic()

    def watch() -> None:
        while not is_over.wait(interval_s):
            track.add(time.monotonic() - start_s, processes)

    track.add(0.0, processes)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield track
    finally:
        is_over.set()
        watcher.join()
