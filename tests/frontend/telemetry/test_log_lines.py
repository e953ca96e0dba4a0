"""The lines of the log: gathered for a turn of the event loop, and the same with and without records."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from frontend.telemetry.log_lines import GatheringHandler, log_fields
from model_repository.system.log_time import TIME

LOGGER = logging.getLogger("gathered")


class CountingStream(io.StringIO):
    """A stream that counts its writes."""

    num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        return super().write(text)


@pytest.fixture
def stream() -> CountingStream:
    return CountingStream()


@pytest.fixture(params=[False, True], ids=["text", "JSON"])
def is_json(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def handler(stream: CountingStream, is_json: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatheringHandler]:
    handler = GatheringHandler(stream, is_json=is_json)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    monkeypatch.setattr(LOGGER, "level", logging.DEBUG)
    yield handler
    handler.close()


def messages(stream: CountingStream) -> list[str]:
    """Return the last words of the lines."""
    return [line.rstrip('"}').rpartition(" ")[2].rpartition('"')[2] for line in stream.getvalue().splitlines()]


async def test_the_lines_of_a_turn_are_one_write_and_a_warning_does_not_wait(
    handler: GatheringHandler, stream: CountingStream
) -> None:
    LOGGER.info("one")
    LOGGER.info("two")
    assert stream.num_writes == 0
    await asyncio.sleep(0)
    assert (stream.num_writes, messages(stream)) == (1, ["one", "two"])
    LOGGER.info("three")
    LOGGER.warning("four")
    assert (stream.num_writes, messages(stream)) == (2, ["one", "two", "three", "four"])


async def test_a_thread_without_a_loop_writes_at_once(handler: GatheringHandler, stream: CountingStream) -> None:
    LOGGER.info("one")
    await asyncio.to_thread(LOGGER.info, "two")
    assert messages(stream) == ["one", "two"]


def test_a_line_without_a_record_is_that_of_a_record(
    handler: GatheringHandler, stream: CountingStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for others in ([], [logging.NullHandler()]):
        monkeypatch.setattr(logging.root, "handlers", [handler, *others])
        log_fields(LOGGER, logging.INFO, lambda: "100 % done", lambda: {"event": "done", "share": 1.0})
    first, second = (TIME.sub("", line) for line in stream.getvalue().splitlines())
    assert first == second
    assert "100 % done" in first or json.loads(first)["share"] == 1.0


def test_the_last_lines_of_a_process_are_written() -> None:
    source = (
        "import asyncio, logging; from frontend.telemetry import log_lines; log_lines.configure_logging('text')\n"
        "async def main(): logging.info('the last words'); raise SystemExit(3)\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("the last words")) == (3, 1)
