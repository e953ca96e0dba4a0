"""NVIDIA Dynamo's frontend with its mock engine, the peer of the synthetic engine, from an environment of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.launching import free_port
from tests.workshop.load import peers

PINS = Path(__file__).with_name("dynamo.txt")
MODEL = "mock"
# The mock engine's speed-up. With 256 sequences it makes about 30 tokens a second for each at the second one.
_UNPACED, _PACED = 1000, 0.5
_PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")


@contextmanager
def running(
    python: Path,
    folder: Path,
    tokenizer: Path,
    max_sequences: int,
    log: IO[str],
    *options: str,
    is_paced: bool,
    num_engines: int = 1,
    engine_options: Sequence[str] = (),
) -> Iterator[tuple[str, dict[str, int]]]:
    """Run the frontend and mock engines; yield the URL, and the process ids by name.

    Args:
        folder: for the files by which the two find each other.
        tokenizer: the folder of a checkpoint with a tokenizer and a chat template.
        options: of the frontend.
        is_paced: whether the engines keep their own pace.
        num_engines: one or two.

    Raises:
        Unavailable: it does not answer in time.
    """
    port = free_port()
    common = os.environ | {"DYN_FILE_KV": str(folder), "DYN_LOG": "error", "HF_HUB_OFFLINE": "1"}
    frontend = [str(python), "-m", "dynamo.frontend", "--http-port", str(port), *_PLANES, *options]
    engine = [str(python), "-m", "dynamo.mocker", "--model-path", str(tokenizer), "--model-name", MODEL]
    engine += ["--speedup-ratio", str(_PACED if is_paced else _UNPACED), "--max-num-seqs", str(max_sequences), *_PLANES]
    engine += engine_options
    commands = {"frontend": frontend} | dict.fromkeys(("engine", "engine 2")[:num_engines], engine)
    with ExitStack() as stack:
        pids = {}
        for name, command in commands.items():
            own = {"DYN_SYSTEM_PORT": str(free_port())} if command is engine else {}  # a signed 16-bit number there
            process = subprocess.Popen(command, env=common | own, stdout=log, stderr=log)
            stack.callback(peers.end, process)
            pids[name] = process.pid
        url = f"http://127.0.0.1:{port}"
        peers.wait_until_listed(url)
        yield url, pids
