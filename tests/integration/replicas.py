"""Two Tritons behind one frontend, and many streams through it: what the tests of faults are made of."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.integration.resources import num_tasks, open_files
from tests.integration.stack import PACED_MODEL, PREFILL_TOKENS, Stack
from tests.launching import environment_with_key
from tests.waiting import DEADLINE_S, wait_until

NUM_STREAMS = 32
NUM_EQUAL = 10  # looks in a row
LONG_PROMPT = "x " * (25 * PREFILL_TOKENS)  # whose prefill takes steps enough to be caught at it


type Holdings = tuple[dict[str, int], int]


class Frontend:
    """A running `api`, and what it says of itself."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text()

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        found: list[str] = re.findall(r"listens on (\S+)", self.log)
        return found[0] if found else ""

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of /health/ready; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health/ready", timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except (OSError, ValueError):
            return 0, {}

    def is_whole(self) -> bool:
        """Whether every endpoint serves the model, as far as it says: with keys it says no more than that one does."""
        status, body = self.readiness()
        if status == 200 and "endpoints" not in body:
            return True
        states = [models.get(PACED_MODEL) for models in body.get("replicas", {}).values()]
        return status == 200 and set(body["endpoints"].values()) == {"ready"} and set(states) == {"ready"}

    def holds(self) -> Holdings:
        """Return its file descriptors by kind, and how many tasks it has."""
        return dict(open_files(self.process.pid)), num_tasks(self.url)

    def settled(self) -> Holdings:
        """Return what it holds once that does not change any more."""
        seen: list[Holdings] = []

        def is_settled() -> bool:
            seen.append(self.holds())
            return len(seen) >= NUM_EQUAL and all(each == seen[-1] for each in seen[-NUM_EQUAL:])

        wait_until(is_settled, "it holds the same for a while")
        return seen[-1]


@contextmanager
def frontend_of(
    stacks: Sequence[Stack | str],
    folder: Path,
    *arguments: str,
    is_up: Callable[[Frontend], bool] = Frontend.is_whole,
) -> Iterator[Frontend]:
    """Run a frontend for these Tritons, or endpoints; unless `is_up` says else, it is ready when all of them are.

    It sends more than they decode at a time, unless the arguments say else: what waits in an engine has its faults too.
    """
    log = folder / f"api-{len(list(folder.iterdir()))}.log"
    endpoints = [f"--triton={stack.endpoint if isinstance(stack, Stack) else stack}" for stack in stacks]
    fast = ["--max-in-flight=1024", "--stats-interval-s=0.2", "--stats-deadline-s=0.5", "--breaker-pause-s=0.2"]
    command = [sys.executable, "-m", "frontend", "api", "--port=0", *endpoints, *fast, *arguments]
    environment = environment_with_key()
    with log.open("wb") as stream, subprocess.Popen(command, env=environment, stdout=stream, stderr=stream) as process:
        try:
            frontend = Frontend(process, log)
            wait_until(lambda: is_up(frontend), "the frontend is ready")
            yield frontend
        finally:
            process.kill()


@dataclass(slots=True)
class StreamOutcome:
    """What one stream brought."""

    status: int = 0
    text: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    is_done: bool = False  # [DONE] came

    @property
    def is_whole(self) -> bool:
        """Whether it ended as if nothing had happened."""
        return self.status == 200 and self.error is None and self.is_done and self.finish_reasons == ["length"]

    @property
    def is_cleanly_broken(self) -> bool:
        """Whether it says that it failed, and nothing else."""
        return self.error is not None and not self.finish_reasons and (self.status != 200 or self.is_done)


async def read_stream(
    session: aiohttp.ClientSession, url: str, outcome: StreamOutcome, max_tokens: int, **fields: Any
) -> None:
    """Stream one completion into the outcome."""
    body = {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": max_tokens, "stream": True} | fields
    async with session.post(f"{url}/v1/completions", json=body) as response:
        outcome.status = response.status
        if response.status != 200:
            outcome.error = (await response.json())["error"]
            return
        async for line in response.content:
            event = line.decode().removeprefix("data: ").strip()
            if event == "[DONE]":
                outcome.is_done = True
            elif event:
                _take(outcome, json.loads(event))


def _take(outcome: StreamOutcome, event: dict[str, Any]) -> None:
    if "error" in event:
        outcome.error = event["error"]
        return
    for choice in event["choices"]:
        outcome.text += choice["text"]
        if choice["finish_reason"] is not None:
            outcome.finish_reasons.append(choice["finish_reason"])


@asynccontextmanager
async def streaming(
    url: str, max_tokens: int, num_streams: int = NUM_STREAMS, **fields: Any
) -> AsyncIterator[list[StreamOutcome]]:
    """Run streams beside the block, and wait for their ends after it, which a hang would fail."""
    outcomes = [StreamOutcome() for _ in range(num_streams)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        tasks = [asyncio.create_task(read_stream(session, url, outcome, max_tokens, **fields)) for outcome in outcomes]
        try:
            yield outcomes
            await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def until(is_true: Callable[[], bool], what: str) -> None:
    """Wait for something without blocking the event loop."""
    await asyncio.to_thread(wait_until, is_true, what)


def stop_processes(stack: Stack) -> None:
    """Have a Triton hang, its stages with it."""
    os.killpg(stack.launcher.triton.pid, signal.SIGSTOP)


def continue_processes(stack: Stack) -> None:
    """Have it go on."""
    os.killpg(stack.launcher.triton.pid, signal.SIGCONT)
