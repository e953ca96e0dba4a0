"""A real Redis for the tests that need one."""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.waiting import wait_until

SERVER = shutil.which("redis-server")


class RedisServer:
    """A Redis on a Unix socket, that can be stopped and started.

    Args:
        port: for replicas of it; 0: none.
        is_kept: its content survives a kill.
    """

    def __init__(self, folder: Path, port: int = 0, *, is_kept: bool = False) -> None:
        self.port = port
        self._append_only = ["--appendonly", "yes", "--appendfsync", "always"] if is_kept else ["--appendonly", "no"]
        self.path = folder / "redis.sock"
        self.url = f"unix://{self.path}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert SERVER is not None
        command = [SERVER, "--port", str(self.port), "--unixsocket", str(self.path), "--save", "", *self._append_only]
        command += ["--repl-diskless-sync-delay", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self.path.parent)
        with redis.Redis.from_url(self.url, retry=_patient()) as client:
            client.ping()

    def wait_for_copy(self) -> None:
        """Wait until this replica has the data of its primary."""
        wait_until(lambda: self.run(lambda client: client.info("replication"))["master_link_status"] == "up", "a copy")

    def stop(self) -> None:
        """Kill it. Its content is lost, unless it is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def run(self, command: Callable[[redis.Redis], Any]) -> Any:
        """Return the result of a command."""
        with redis.Redis.from_url(self.url) as client:
            return command(client)


class RedisName:
    """An address that leads to one Redis after the other, as a name, a Service, a balancer or a proxy does."""

    def __init__(self, target: RedisServer) -> None:
        self.target = target  # of new connections
        self.url = ""
        self.unknown_commands: tuple[bytes, ...] = ()
        self.num_connections = 0  # from the beginning
        self.num_lost = 0  # so many of them, from the first one, carry nothing any more
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Listen at the URL."""
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            self.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                yield
            finally:
                self.cut()

    def cut(self, *, is_reset: bool = False) -> None:
        """Close the connections, as a restart or an idle timeout does; or reset them, as a balancer does."""
        for writer in self._writers:
            if is_reset and (connection := writer.get_extra_info("socket")).family == socket.AF_INET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        number = self.num_connections
        redis_reader, redis_writer = await asyncio.open_unix_connection(str(self.target.path))
        self._writers += [writer, redis_writer]

        async def forward(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(2**16):
                if source is reader and any(command in data for command in self.unknown_commands):
                    writer.write(b"-ERR unknown command\r\n")
                elif number > self.num_lost:
                    to.write(data)
            to.close()

        with suppress(OSError):
            await asyncio.gather(forward(reader, redis_writer), forward(redis_reader, writer))


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
