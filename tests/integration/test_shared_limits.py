"""Limits that several processes share, in the admission process or in Redis. Both may be killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.frontend.gateway.conftest import SERVER, RedisServer
from tests.integration.api import Api
from tests.integration.replicas import Frontend, frontend_of
from tests.integration.stack import PACED_MODEL, Stack
from tests.waiting import wait_until

LIMIT = 5


def admission_processes(frontend: Frontend) -> list[int]:
    return [int(pid) for pid in re.findall(r"the admission process (\d+) serves", frontend.log)]


def status_of(url: str) -> int:
    """Send a request on a connection of its own: the kernel spreads connections over the workers."""
    return Api(url).post("/tokenize", {"model": PACED_MODEL, "prompt": "a"}).status


def test_workers_count_together_and_go_on_when_their_admission_process_is_killed(
    paced_stack: Stack, tmp_path: Path
) -> None:
    options = ["--workers=2", f"--requests-per-minute={LIMIT}", "--limits-on-failure=closed"]

    def is_up(frontend: Frontend) -> bool:
        return frontend.log.count(" listens on http") == 2

    with frontend_of([paced_stack], tmp_path, *options, is_up=is_up) as frontend:
        url = frontend.url
        assert sorted(status_of(url) for _ in range(4 * LIMIT)) == [200] * LIMIT + [429] * 3 * LIMIT
        os.kill(admission_processes(frontend)[0], signal.SIGKILL)
        wait_until(lambda: len(admission_processes(frontend)) == 2, "the admission process is started again")
        wait_until(lambda: status_of(url) == 200, "the workers reach it again")
        assert {status_of(url) for _ in range(4 * LIMIT)} <= {200, 429}


@pytest.mark.skipif(SERVER is None, reason="needs the Debian package redis-server")
def test_frontends_count_together_in_redis_and_follow_the_policy_when_it_is_killed(
    paced_stack: Stack, tmp_path: Path
) -> None:
    redis_server = RedisServer(tmp_path)
    redis_server.start()
    arguments = [f"--requests-per-minute={LIMIT}", f"--redis-url={redis_server.url}", "--limits-on-failure=closed"]
    try:
        with (
            frontend_of([paced_stack], tmp_path, *arguments) as first,
            frontend_of([paced_stack], tmp_path, *arguments) as second,
        ):
            urls = [first.url, second.url]
            assert sorted(status_of(url) for url in urls * LIMIT) == [200] * LIMIT + [429] * LIMIT
            redis_server.stop()
            assert {status_of(url) for url in urls * LIMIT} == {503}
            redis_server.start()
            wait_until(lambda: {status_of(url) for url in urls} == {429}, "earlier requests count again")
    finally:
        redis_server.stop()
