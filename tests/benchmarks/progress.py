"""How far the suite is, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.benchmarks.load import Load
from tests.benchmarks.runs import Run
from tests.benchmarks.scenarios import Scenario

_SETUP_S = 7.0  # to build, start and end servers
_RUN_OVERHEAD_S = 1.2  # to start the load generator, and to read what it kept


class Progress:
    """Says a line for every run.

    Args:
        tell: takes a line.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        num_repeats: int,
        num_setups: int,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._start_s = clock()
        self._num_repeats = {each.name: min(num_repeats, each.max_repeats) for each in scenarios}
        self._expected_s = {
            (scenario.name, point.label): expected_s(point.load) for scenario in scenarios for point in scenario.points
        }
        self._left_s = sum(
            sum(expected_s(point.load) for point in scenario.points) * self._num_repeats[scenario.name]
            for scenario in scenarios
        )
        self._left_s += _SETUP_S * num_setups
        self._total_s = self._left_s
        self.num_runs = sum(len(scenario.points) * self._num_repeats[scenario.name] for scenario in scenarios)
        self._num_done = 0

    @property
    def left_s(self) -> float:
        """What is still expected; as much slower or faster as it went so far."""
        done_s = self._total_s - self._left_s
        pace = (self._clock() - self._start_s) / done_s if self._num_done > 3 else 1.0
        return self._left_s * pace

    def setup_done(self) -> None:
        """Take note that servers were started."""
        self._left_s -= _SETUP_S

    def run_done(self, run: Run) -> None:
        """Take note of a run, and tell of it."""
        self._num_done += 1
        self._left_s -= self._expected_s[run.scenario, run.point]
        metrics = run.metrics()
        found = f"{metrics['tokens_per_s']:,.0f} tokens/s"
        if run.result.num_failed:
            found += f", {run.result.num_failed} of {run.result.num_sent} FAILED"
        self._tell(
            f"{self._num_done:3}/{self.num_runs} {run.scenario}: {run.point}, "
            f"repeat {run.repeat} of {self._num_repeats[run.scenario]}: {found}; "
            f"about {max(self.left_s, 0) / 60:.1f} min left"
        )


def expected_s(load: Load) -> float:
    """Return about how long a run takes."""
    stream_s = load.num_tokens * (load.itl_ms or 0) / 1e3
    if load.requests_per_stream is not None:
        return max(load.ramp_s + stream_s * load.requests_per_stream, load.warmup_s + load.window_s) + _RUN_OVERHEAD_S
    return load.warmup_s + load.window_s + stream_s + _RUN_OVERHEAD_S
