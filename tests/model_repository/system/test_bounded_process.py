"""A real process that the kernel ends beyond its limits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from model_repository.errors import InternalError, InvalidRequest
from model_repository.system.bounded_process import BoundedProcess, TooCostly
from tests.processes import is_running
from tests.waiting import wait_until

MAX_BYTES = 32 << 20

hoard: list[bytearray] = []  # of the process


def work(task: str) -> Any:
    match task:
        case "spin":
            while True:
                pass
        case "fill":
            return len(bytearray(8 * MAX_BYTES))  # more than the heap may keep from before
        case "hoard":
            hoard.append(bytearray(MAX_BYTES * 3 // 4))
        case "pid":
            return os.getpid()
        case "abort":
            os.abort()
        case "refuse":
            raise InvalidRequest("it is refused", "field")
        case "fail":
            raise ZeroDivisionError
    return task.upper()


def bounded(*, is_kept: bool = False) -> BoundedProcess:
    return BoundedProcess(work, max_cpu_s=0.5, max_bytes=MAX_BYTES, is_kept=is_kept)


@pytest.fixture(scope="module", params=[False, True], ids=["a process for each call", "one process"])
def process(request: pytest.FixtureRequest) -> Iterator[BoundedProcess]:
    one = bounded(is_kept=request.param)
    yield one
    one.close()


def test_the_result_comes_back(process: BoundedProcess) -> None:
    assert [process.call(text) for text in ("a", "b")] == ["A", "B"]


@pytest.mark.parametrize(
    ("task", "rule"),
    [("spin", "0.5 s of processor time"), ("fill", "32 MiB of memory"), ("abort", "32 MiB of memory")],
)
def test_a_costly_call_is_ended_and_the_next_one_succeeds(process: BoundedProcess, task: str, rule: str) -> None:
    with pytest.raises(TooCostly, match=f"more than {rule}"):
        process.call(task)
    assert process.call("a") == "A"


def test_a_refusal_keeps_its_field(process: BoundedProcess) -> None:
    with pytest.raises(InvalidRequest, match="it is refused") as caught:
        process.call("refuse")
    assert caught.value.field == "field"


def test_an_unexpected_exception_is_logged_and_not_returned(
    process: BoundedProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InternalError):
        process.call("fail")
    assert "ZeroDivisionError" in caplog.text


def test_a_kept_process_serves_calls_until_their_memory_together_exceeds_the_limit() -> None:
    process = bounded(is_kept=True)
    first = process.call("pid")
    process.call("hoard")
    assert process.call("pid") == first
    with pytest.raises(TooCostly):
        for _ in range(100):  # the first calls get what earlier tests have freed
            process.call("hoard")
    assert process.call("pid") != first
    process.close()


def test_otherwise_each_call_has_a_new_process() -> None:
    process = bounded()
    assert process.call("pid") != process.call("pid")
    process.call("hoard")
    process.call("hoard")
    process.close()


def test_a_process_that_was_killed_is_started_again() -> None:
    process = bounded()
    os.kill(process._pid, signal.SIGKILL)
    wait_until(lambda: not is_running(process._pid), "it has ended")
    assert process.call("a") == "A"
    process.close()
