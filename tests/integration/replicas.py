"""A frontend before several Tritons, and many streams through it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.frontend_with import PATIENT
from tests.integration.stack import PACED_MODEL, PREFILL_TOKENS, Stack
from tests.launching import Command, environment_with_key, running
from tests.processes import num_tasks, open_files
from tests.waiting import DEADLINE_S, wait_until

NUM_STREAMS = 32
CONSTANTS = (
    *PATIENT,
    "frontend.triton.replica:BREAKER_PAUSE_S=0.2",
    "frontend.triton.health_monitor:UNLOADED_SILENCE_S=2",
)
# To find soon that a stage hangs, and yet wait for healthy ones of a busy machine.
IMPATIENT = (
    "frontend.triton.health_monitor:STATS_TIMEOUT_S=3",
    "frontend.triton.health_monitor:TEXT_STAGE_TIMEOUT_S=3",
)
NUM_COUNTS, COUNT_INTERVAL_S = 20, 0.05
LONG_PROMPT = "x " * (25 * PREFILL_TOKENS)  # its prefill takes many steps


class Frontend(Command):
    """A running `api` process and its reports."""

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of /health/ready; 0 while nothing listens."""
        try:
            with urllib.request.urlopen(f"{self.url}/health/ready", timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except (OSError, ValueError):
            return 0, {}

    def is_whole(self) -> bool:
        """Whether every endpoint serves the model. With API keys, /health/ready hides them: then one is enough."""
        status, body = self.readiness()
        if status == 200 and "endpoints" not in body:
            return True
        states = [models.get(PACED_MODEL) for models in body.get("replicas", {}).values()]
        return status == 200 and set(body["endpoints"].values()) == {"ready"} and set(states) == {"ready"}

    def holds(self) -> Counter[str]:
        """Return the numbers of its file descriptors by kind, and of its tasks."""
        return open_files(self.process.pid) + Counter(tasks=num_tasks(self.url))

    def least_held(self) -> Counter[str]:
        """Return the least of each number in some counts: at any moment a health check may be under way."""
        least = self.holds()
        for _ in range(NUM_COUNTS):
            time.sleep(COUNT_INTERVAL_S)
            least &= self.holds()
        return least


@contextmanager
def frontend_of(
    stacks: Sequence[Stack | str],
    folder: Path,
    *arguments: str,
    is_up: Callable[[Frontend], bool] = Frontend.is_whole,
    constants: Sequence[str] = (),
) -> Iterator[Frontend]:
    """Run a frontend before these Tritons or endpoints until the end of the block; `is_up` says when the block begins.

    By default it sends more requests than the engines decode at a time, so that requests wait in the engines too.
    """
    endpoints = [f"--triton={stack.endpoint if isinstance(stack, Stack) else stack}" for stack in stacks]
    words = ["api", "--port=0", "--max-in-flight=1024", *endpoints, *arguments]
    with running(folder, *words, constants=(*CONSTANTS, *constants), env=environment_with_key()) as command:
        frontend = Frontend(command.process, command.log_path)
        wait_until(lambda: is_up(frontend), "the frontend is ready")
        yield frontend


@dataclass(slots=True)
class StreamOutcome:
    """The events of one stream."""

    status: int = 0
    text: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    is_done: bool = False  # [DONE] came
    num_resumed: int = 0  # how often it went on after a death

    @property
    def is_whole(self) -> bool:
        """Whether it ended normally."""
        return self.status == 200 and self.error is None and self.is_done and self.finish_reasons == ["length"]

    @property
    def is_cleanly_broken(self) -> bool:
        """Whether it ended with an error and without a finish reason."""
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
            elif event.startswith(":"):
                outcome.num_resumed += event.startswith(": x-resumed:")
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
    url: str, max_tokens: int, num_streams: int = NUM_STREAMS, headers: dict[str, str] | None = None, **fields: Any
) -> AsyncIterator[list[StreamOutcome]]:
    """Run streams beside the block, and wait for their ends after it."""
    outcomes = [StreamOutcome() for _ in range(num_streams)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
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
    """Stop a Triton and its stages, as if they hung."""
    os.killpg(stack.launcher.triton.pid, signal.SIGSTOP)
