"""A real process that the kernel ends beyond its limits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from model_repository.errors import InternalError, InvalidRequest
from model_repository.structured_output.bounded_process import MAX_BYTES, BoundedProcess, TooCostly
from tests.processes import is_running
from tests.waiting import wait_until


def work(task: str) -> Any:
    match task:
        case "spin":
            while True:
                pass
        case "fill":
            return len(bytearray(8 * MAX_BYTES))  # more than the heap may keep from before
        case "abort":
            os.abort()
        case "refuse":
            raise InvalidRequest("it is refused", "field")
        case "fail":
            raise ZeroDivisionError
    return task.upper()


@pytest.fixture(scope="module")
def process() -> Iterator[BoundedProcess]:
    one = BoundedProcess(work)
    yield one
    one.close()


def test_the_result_comes_back(process: BoundedProcess) -> None:
    assert [process.call(text) for text in ("a", "b")] == ["A", "B"]


@pytest.mark.parametrize(
    ("task", "rule"),
    [("spin", "500 ms of processor time"), ("fill", "32 MiB of memory"), ("abort", "32 MiB of memory")],
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


def test_a_process_that_was_killed_is_started_again() -> None:
    process = BoundedProcess(work)
    os.kill(process._pid, signal.SIGKILL)
    wait_until(lambda: not is_running(process._pid), "it has ended")
    assert process.call("a") == "A"
    process.close()
