"""Faults of a device, planted in the calls of the real llama.cpp to its driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.vulkan.faulty_engine.__main__ import NUM_STEPS
from tests.waiting import DEADLINE_S


def run(fault: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.vulkan.faulty_engine", fault]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("lost at the start", "ErrorDeviceLost"),
        pytest.param("lost at the end", "ErrorDeviceLost", marks=pytest.mark.wide),
        pytest.param("out of memory", "ErrorOutOfDeviceMemory", marks=pytest.mark.wide),
    ],
)
def test_a_step_with_a_failed_device_ends_the_process_at_once_and_gives_no_token(fault: str, reason: str) -> None:
    """The frontend has Triton load a dead stage again, and the streams go on."""
    done = run(fault)
    assert (done.returncode, done.stdout.count("\n")) == (-6, NUM_STEPS)  # SIGABRT
    assert reason in done.stderr


def test_a_step_that_hangs_leaves_the_engine_able_to_tell_its_state() -> None:
    """The frontend learns so how long the step has lasted, and has Triton load the stage again (--engine-stall-s)."""
    done = run("hangs")
    assert (done.returncode, done.stdout.splitlines()[NUM_STEPS:]) == (0, ["hangs with 1"])
