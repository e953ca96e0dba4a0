"""A real Redis for the tests that need one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

SERVER = shutil.which("redis-server")


class RedisServer:
    """A Redis on a Unix socket, that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "redis.sock"
        self.url = f"unix://{self._path}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert SERVER is not None
        command = [SERVER, "--port", "0", "--unixsocket", str(self._path), "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self._path.parent)
        with redis.Redis.from_url(self.url, retry=_patient()) as client:
            client.ping()

    def stop(self) -> None:
        """End it. Its content is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def run(self, command: Callable[[redis.Redis], Any]) -> Any:
        """Return the result of a command."""
        with redis.Redis.from_url(self.url) as client:
            return command(client)


def _patient() -> redis.retry.Retry:
    return redis.retry.Retry(redis.backoff.ConstantBackoff(0.02), 500)


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if SERVER is None:
        pytest.skip("needs the Debian package redis-server")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_server: RedisServer) -> RedisServer:
    """Return an empty Redis."""
    _server.run(lambda client: client.flushall())
    return _server
