"""One of two Tritons breaks under 32 streams: its own streams say so, the others lose nothing, nothing stays behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from model_repository import contract
from tests.integration.api import COMPLETIONS, Api
from tests.integration.conftest import running_stack
from tests.integration.replicas import (
    NUM_STREAMS,
    Frontend,
    StreamOutcome,
    continue_processes,
    frontend_of,
    stop_processes,
    streaming,
    until,
)
from tests.integration.stack import PACED_MODEL, Stack, wait_until

MAX_TOKENS = 60
MAX_FURTHER_FILES = 4  # after all faults together, for gRPC's own: one that leaks in each would be five times that
SLUG = contract.model_id_to_slug(PACED_MODEL)


@pytest.fixture(scope="module")
def pair(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Stack]]:
    """Two Tritons that serve one small model."""
    with ExitStack() as exits:
        yield [exits.enter_context(running_stack(paced_repository, tmp_path_factory)) for _ in range(2)]


@pytest.fixture(scope="module")
def frontend(pair: list[Stack], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """The frontend of both."""
    with frontend_of(pair, tmp_path_factory.mktemp("frontend")) as frontend:
        yield frontend


@pytest.fixture(scope="module")
def num_files_at_start(frontend: Frontend) -> int:
    """The file descriptors of the frontend before anything has happened to it."""
    return frontend.num_open_files()


@pytest.fixture
def expected(frontend: Frontend) -> str:
    """The text of a stream to which nothing happens."""

    async def whole() -> str:
        async with streaming(frontend.url, MAX_TOKENS, num_streams=1) as outcomes:
            pass
        assert outcomes[0].is_whole
        return outcomes[0].text

    wait_until(frontend.is_whole, "both serve")
    return asyncio.run(whole())


def kill_triton(stack: Stack) -> None:
    stack.launcher.triton.kill()


def kill_stage(name: str) -> Callable[[Stack], None]:
    return lambda stack: stack.kill_stage(contract.stage_name(SLUG, name))


FAULTS: dict[str, Callable[[Stack], None]] = {
    "tritonserver dies": kill_triton,
    "tritonserver hangs": stop_processes,
    "the engine dies": kill_stage("engine"),
    "the detokenizer dies": kill_stage("detokenizer"),
    "the tokenizer dies": kill_stage("tokenizer"),
}

# When the fault comes: what the streams have brought until then.
PHASES: dict[str, Callable[[list[StreamOutcome]], bool]] = {
    "queued": lambda outcomes: True,
    "first byte": lambda outcomes: any(outcome.text for outcome in outcomes),
    "mid-stream": lambda outcomes: any(len(outcome.text) > MAX_TOKENS // 2 for outcome in outcomes),
    "last chunk": lambda outcomes: any(outcome.finish_reasons for outcome in outcomes),
}


def mend(frontend: Frontend, stack: Stack) -> None:
    """Bring back what the frontend does not, and wait until everything is as before."""
    if stack.launcher.triton.is_running:
        continue_processes(stack)

    def is_mended() -> bool:
        if not stack.launcher.triton.is_running:  # also where it did not survive that its stage was killed or stopped
            stack.launcher.triton.start()
        # A tokenizer that is gone is found so by the next request only; this one comes through a frontend of its own.
        asked = Api(stack.url).post(COMPLETIONS, {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": 1})
        return asked.status == 200 and frontend.is_whole()

    wait_until(is_mended, "both serve again")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_one_replica_breaks_only_its_own_streams(
    pair: list[Stack], frontend: Frontend, num_files_at_start: int, expected: str, fault: str, phase: str
) -> None:
    victim = pair[0]
    async with streaming(frontend.url, MAX_TOKENS) as outcomes:
        await until(lambda: PHASES[phase](outcomes), phase)
        await asyncio.to_thread(FAULTS[fault], victim)
    await asyncio.to_thread(mend, frontend, victim)

    whole = [outcome for outcome in outcomes if outcome.is_whole]
    broken = [outcome for outcome in outcomes if not outcome.is_whole]
    assert all(outcome.text == expected for outcome in whole)
    assert all(outcome.is_cleanly_broken and expected.startswith(outcome.text) for outcome in broken), broken
    assert len(whole) >= NUM_STREAMS // 4  # those of the other replica at least, but for what queued where it died

    for stack in pair:
        await asyncio.to_thread(stack.wait_until_idle, PACED_MODEL)
    most = num_files_at_start + MAX_FURTHER_FILES
    await asyncio.to_thread(wait_until, lambda: frontend.num_open_files() <= most, "no file stays open")


async def test_while_one_replica_is_away_every_request_is_served_by_the_other(
    pair: list[Stack], frontend: Frontend, expected: str
) -> None:
    await asyncio.to_thread(kill_triton, pair[0])
    for _ in range(3):
        async with streaming(frontend.url, MAX_TOKENS, num_streams=8) as outcomes:
            pass
        assert [outcome.text for outcome in outcomes if outcome.is_whole] == [expected] * 8
    status, body = await asyncio.to_thread(frontend.readiness)
    assert (status, body["models"][PACED_MODEL]) == (200, "ready")
    assert body["endpoints"][pair[0].endpoint] == "triton_unreachable"
    await asyncio.to_thread(mend, frontend, pair[0])


async def test_the_streams_are_spread_over_both(pair: list[Stack], frontend: Frontend, expected: str) -> None:
    before = [stack.stats(PACED_MODEL).num_finished for stack in pair]
    async with streaming(frontend.url, MAX_TOKENS):
        pass
    finished = [stack.stats(PACED_MODEL).num_finished - num for stack, num in zip(pair, before, strict=True)]
    assert finished == [NUM_STREAMS // 2] * 2


def probed(*arguments: str) -> tuple[int, str]:
    """Run the probe command; return its exit status and its only line."""
    command = [sys.executable, "-m", "frontend", "probe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.count("\n") == 1, done.stderr
    return done.returncode, done.stdout.strip()


def test_a_probe_says_whether_an_engine_works(pair: list[Stack], frontend: Frontend, expected: str) -> None:
    to = f"--triton={pair[0].endpoint}"
    assert probed(to, f"--model={PACED_MODEL}") == (0, f"ok: {SLUG} answers")
    assert probed(to, f"--model={PACED_MODEL}", "--generate") == (0, f"ok: {SLUG} made a token")
    assert probed(to, "--model=nobody")[0] == 1
    stop_processes(pair[0])
    try:
        assert probed(to, "--deadline=0.5") == (1, "failed: no answer within 0.5 s")
    finally:
        continue_processes(pair[0])
    pair[0].launcher.triton.kill()
    status, line = probed(to)
    assert (status, line) == (1, "failed: triton_unreachable: The inference server cannot be reached.")
    mend(frontend, pair[0])
