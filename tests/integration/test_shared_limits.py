"""The limits of several real processes: of workers in one beside them, of frontends in Redis. Both may be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.frontend.gateway.conftest import SERVER, RedisServer
from tests.integration.replicas import frontend_of
from tests.integration.stack import PACED_MODEL, Stack
from tests.waiting import wait_until

LIMIT = 5


@contextmanager
def workers(stack: Stack, log: Path, *arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", "frontend", "api", f"--triton={stack.endpoint}", "--workers=2", "--port=0"]
    with log.open("wb") as out, subprocess.Popen([*command, *arguments], stdout=out, stderr=out) as process:
        try:
            wait_until(lambda: len(urls(log)) == 2, "two workers listen")
            yield urls(log)[0]
        finally:
            process.terminate()
            process.wait(30)


def urls(log: Path) -> list[str]:
    return re.findall(r"listens on (http\S+)", log.read_text())


def admission_processes(log: Path) -> list[int]:
    return [int(pid) for pid in re.findall(r"the admission process (\d+) serves", log.read_text())]


def status_of(url: str) -> int:
    """Send a request on a connection of its own: the kernel deals them out to the workers."""
    body = json.dumps({"model": PACED_MODEL, "prompt": "a"}).encode()
    request = urllib.request.Request(f"{url}/tokenize", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_workers_count_together_and_go_on_when_what_counts_is_killed(stack: Stack, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with workers(stack, log, f"--requests-per-minute={LIMIT}", "--limits-on-failure=closed") as url:
        assert sorted(status_of(url) for _ in range(4 * LIMIT)) == [200] * LIMIT + [429] * 3 * LIMIT
        os.kill(admission_processes(log)[0], signal.SIGKILL)
        wait_until(lambda: len(admission_processes(log)) == 2, "the admission process is started again")
        wait_until(lambda: status_of(url) == 200, "it is found again")
        assert 503 not in {status_of(url) for _ in range(4 * LIMIT)} - {200, 429}


@pytest.mark.skipif(SERVER is None, reason="needs the Debian package redis-server")
@pytest.mark.parametrize(("on_failure", "meanwhile"), [("open", 200), ("closed", 503)])
def test_frontends_count_together_in_redis_and_go_on_as_told_when_it_is_killed(
    paced_stack: Stack, tmp_path: Path, on_failure: str, meanwhile: int
) -> None:
    redis_server = RedisServer(tmp_path)
    redis_server.start()
    arguments = [f"--requests-per-minute={LIMIT}", f"--redis-url={redis_server.url}"]
    arguments.append(f"--limits-on-failure={on_failure}")
    try:
        with (
            frontend_of([paced_stack], tmp_path, *arguments) as first,
            frontend_of([paced_stack], tmp_path, *arguments) as second,
        ):
            urls = [first.url, second.url]
            assert sorted(status_of(url) for url in urls * LIMIT) == [200] * LIMIT + [429] * LIMIT
            redis_server.stop()
            assert {status_of(url) for url in urls * LIMIT} == {meanwhile}
            redis_server.start()
            wait_until(lambda: {status_of(url) for url in urls} == {429}, "what is used is counted again")
    finally:
        redis_server.stop()
