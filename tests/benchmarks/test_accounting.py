from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.benchmarks.accounting import Processes, ProcessUse, Sample, cpu_between

# On each line it reads, the child burns half a second of CPU, itself or in a child that comes and goes, and answers.
CHILD = """
import subprocess, sys, time
BURN = "import time\\nwhile time.process_time() < 0.5: pass"
for line in sys.stdin:
    if line.strip() == "child":
        subprocess.run([sys.executable, "-c", BURN], check=True)
    else:
        end = time.process_time() + 0.5
        while time.process_time() < end: pass
    print("done", flush=True)
"""


@contextmanager
def child() -> Iterator[subprocess.Popen[str]]:
    """Run the child."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def burn(process: subprocess.Popen[str], where: str) -> None:
    """Have the child burn half a second."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{where}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@pytest.mark.parametrize("where", ["self", "child"])
def test_cpu_of_a_real_process_and_of_children_that_came_and_went_is_counted(where: str) -> None:
    with child() as process:
        processes = Processes({"server": process.pid})
        before = processes.sample()
        burn(process, where)
        used = cpu_between(before, processes.sample())
        assert used.keys() == {"server"}
        assert 0.45 <= used["server"] < 0.9  # a Python that starts takes some too


def test_memory_of_a_real_process_is_what_it_holds() -> None:
    memory = Processes({"me": os.getpid()}).memory()["me"]
    assert 0 < memory.pss_bytes <= memory.rss_bytes
    assert memory.num_processes >= 1


def test_a_process_that_is_gone_has_no_account() -> None:
    with child() as process:
        processes = Processes({"server": process.pid})
    assert processes.sample().processes == {}
    assert processes.memory() == {}


def use(name: str, parent: int, own_s: float, ended_s: float = 0.0, started_at: float = 1.0) -> ProcessUse:
    """Return one process's account."""
    return ProcessUse(name, parent, own_s, ended_s, started_at)


def test_what_an_ended_child_had_used_before_is_not_counted_again() -> None:
    before = Sample(0.0, {1: use("server", 0, 10.0), 2: use("engine", 1, 5.0)})
    after = Sample(1.0, {1: use("server", 0, 10.5, ended_s=5.25)})  # the child used 0.25 more, then ended
    assert cpu_between(before, after) == pytest.approx({"server": 0.75})


def test_a_new_process_with_an_old_number_counts_from_its_start() -> None:
    before = Sample(0.0, {1: use("server", 0, 1.0), 2: use("engine", 1, 5.0)})
    after = Sample(1.0, {1: use("server", 0, 1.0, ended_s=5.0), 2: use("engine", 1, 0.3, started_at=9.0)})
    assert cpu_between(before, after) == pytest.approx({"server": 0.0, "engine": 0.3})


def test_a_grandchild_that_ended_with_its_parent_is_in_the_account_of_the_one_above() -> None:
    before = Sample(0.0, {1: use("server", 0, 1.0), 2: use("worker", 1, 2.0), 3: use("worker", 2, 3.0)})
    after = Sample(1.0, {1: use("server", 0, 1.0, ended_s=5.5)})
    assert cpu_between(before, after) == pytest.approx({"server": 0.5})
