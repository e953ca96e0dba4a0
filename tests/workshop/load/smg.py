"""SMG's router, which sends requests to the server that has their beginning, from an environment of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.launching import free_port
from tests.workshop.load import peers

_PINS = Path(__file__).with_name("smg.txt")


@contextmanager
def running(environment: Path, servers: Sequence[str], log: IO[str]) -> Iterator[str]:
    """Run the router before servers, and yield its URL.

    Args:
        environment: where it is installed.
        servers: the URLs of servers with OpenAI's API.

    Raises:
        Unavailable: it cannot be installed, or does not answer in time.
    """
    peers.installed_python(environment, _PINS)
    port = free_port()
    command = [str(environment / "bin" / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", "cache_aware", "--backend", "vllm", "--worker-urls", *servers]
    with peers.listing(subprocess.Popen(command, stdout=log, stderr=log), port) as url:
        yield url
