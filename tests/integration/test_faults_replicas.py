"""One of two Tritons breaks under 32 streams: all of them end whole, and nothing leaks."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import grpc
import pytest

from model_repository.contract.tensors import model_id_to_ensemble, stage_name
from tests.integration.api import COMPLETIONS, Api
from tests.integration.replicas import (
    IMPATIENT,
    LONG_PROMPT,
    Frontend,
    StreamOutcome,
    frontend_of,
    stop_processes,
    streaming,
    until,
)
from tests.integration.stack import PACED_MODEL, Stack
from tests.waiting import wait_until

ENSEMBLE = model_id_to_ensemble(PACED_MODEL)
MAX_TOKENS = 60
NUM_READERS = 2  # frontends of one Triton; each may have an open output stream


@dataclass(frozen=True)
class Phase:
    """When a fault comes.

    Args:
        is_reached: whether the phase has begun, from the streams' outcomes and the Triton that will break.
        prompt: of every stream.
    """

    is_reached: Callable[[list[StreamOutcome], Stack], bool]
    prompt: str = "Hello"


PHASES = {
    "queued": Phase(lambda outcomes, victim: victim.stats(PACED_MODEL).num_waiting > 0),
    "prefill": Phase(
        lambda outcomes, victim: victim.stats(PACED_MODEL).num_active > 0 and not any(each.text for each in outcomes),
        LONG_PROMPT,
    ),
    "first byte": Phase(lambda outcomes, victim: any(outcome.text for outcome in outcomes)),
    "mid-stream": Phase(lambda outcomes, victim: any(len(outcome.text) > MAX_TOKENS // 2 for outcome in outcomes)),
    "last chunk": Phase(lambda outcomes, victim: any(outcome.finish_reasons for outcome in outcomes)),
}


async def text_of_one_stream(frontend: Frontend) -> str:
    """Return the text of a stream without a fault."""
    async with streaming(frontend.url, MAX_TOKENS, num_streams=1) as outcomes:
        pass
    assert outcomes[0].is_whole
    return outcomes[0].text


async def survive(fault: Callable[[], object], phase: str, frontend: Frontend, victim: Stack, expected: str) -> None:
    """Let a fault happen under streams, which must be whole, to the letter.

    Args:
        fault: it may block.
        phase: one of PHASES.
        victim: the Triton that breaks.
        expected: the text of a whole stream.
    """
    is_reached = False

    def is_over(outcomes: list[StreamOutcome]) -> bool:
        nonlocal is_reached
        is_reached = PHASES[phase].is_reached(outcomes, victim)
        return is_reached or all(outcome.is_whole for outcome in outcomes)

    while not is_reached:  # on a busy machine the streams may pass the phase unseen
        async with streaming(frontend.url, MAX_TOKENS, prompt=PHASES[phase].prompt) as outcomes:
            await until(partial(is_over, outcomes), phase)
            if is_reached:
                await asyncio.to_thread(fault)
    assert all(outcome.is_whole and outcome.text == expected for outcome in outcomes), outcomes


def mend(frontend: Frontend, stack: Stack) -> None:
    """Restart a Triton that the frontend cannot repair, and wait until both serve again."""
    stack.end_stops()

    def is_mended() -> bool:
        stack.start_again_if_ended()
        # Only a request notices a dead tokenizer; this one comes through a frontend of its own.
        answer = Api(stack.url).post(COMPLETIONS, {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": 1})
        return answer.status == 200 and frontend.is_whole()

    wait_until(is_mended, "both serve again")


async def holdings(frontend: Frontend, pair: list[Stack]) -> Counter[str]:
    """Return a frontend's descriptors and tasks after requests to both Tritons: an output stream is open at each."""
    async with streaming(frontend.url, 1, num_streams=8) as outcomes:
        pass
    assert all(outcome.is_whole for outcome in outcomes), outcomes
    for stack in pair:
        assert stack.stats(PACED_MODEL).num_streams > 0
    return await asyncio.to_thread(frontend.least_held)


async def require_recovery(frontend: Frontend, pair: list[Stack], victim: Stack, held: Counter[str]) -> None:
    """Restart a Triton that the frontend cannot repair, and require that nothing leaked.

    A Triton may end late from the fault of its stage. It is started again, and the new one is checked.
    """
    await asyncio.to_thread(mend, frontend, victim)
    try:
        await require_nothing_leaked(frontend, pair, held)
    except (AssertionError, grpc.RpcError):
        if not await asyncio.to_thread(ends, victim):
            raise
        await asyncio.to_thread(mend, frontend, victim)
        await require_nothing_leaked(frontend, pair, held)


def ends(stack: Stack) -> bool:
    """Whether a Triton has ended, or is about to: its connections are the first to go."""
    try:
        wait_until(lambda: not stack.launcher.triton.is_running, "it has ended", timeout_s=2)
    except AssertionError:
        return False
    return True


async def require_nothing_leaked(frontend: Frontend, pair: list[Stack], held: Counter[str]) -> None:
    """Wait until the engines are idle, and the frontend has no more descriptors of any kind, nor tasks, than before."""
    for stack in pair:
        await asyncio.to_thread(stack.wait_until_idle, PACED_MODEL)
        await until(lambda stack=stack: stack.stats(PACED_MODEL).num_streams <= NUM_READERS, "old streams have ended")  # type: ignore[misc]
    least = await holdings(frontend, pair)

    def is_over() -> bool:
        nonlocal least
        least &= frontend.holds()
        return least <= held or not all(stack.launcher.triton.is_running for stack in pair)

    await until(is_over, f"it holds no more than {held}, after {least}")
    assert least <= held, least - held


@pytest.fixture(scope="module")
def frontend(pair: list[Stack], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """The frontend of both. One has died before: what gRPC keeps after that is no leak."""
    with frontend_of(pair, tmp_path_factory.mktemp("frontend"), constants=IMPATIENT) as frontend:
        kill_triton(pair[0])
        mend(frontend, pair[0])
        yield frontend


@pytest.fixture(scope="module")
def held(frontend: Frontend, pair: list[Stack]) -> Counter[str]:
    """The frontend's descriptors and tasks before a test."""
    return asyncio.run(holdings(frontend, pair))


@pytest.fixture
def expected(frontend: Frontend, pair: list[Stack]) -> str:
    """The text of a stream to which nothing happens."""
    pair[0].start_again_if_ended()
    wait_until(frontend.is_whole, "both serve")
    return asyncio.run(text_of_one_stream(frontend))


def kill_triton(stack: Stack) -> None:
    stack.launcher.triton.kill()


def kill_stage(name: str) -> Callable[[Stack], None]:
    return lambda stack: stack.kill_stage(stage_name(ENSEMBLE, name))


def stop_stage(name: str) -> Callable[[Stack], None]:
    return lambda stack: stack.kill_stage(stage_name(ENSEMBLE, name), signal.SIGSTOP)


FAULTS: dict[str, Callable[[Stack], None]] = {
    "tritonserver dies": kill_triton,
    "tritonserver hangs": stop_processes,
    "the engine dies": kill_stage("engine"),
    "the detokenizer dies": kill_stage("detokenizer"),
    "the tokenizer dies": kill_stage("tokenizer"),
    "the detokenizer hangs": stop_stage("detokenizer"),
    "the tokenizer hangs": stop_stage("tokenizer"),
}


# `make faults` runs every fault at every moment.
BY_DEFAULT = {
    ("tritonserver dies", "mid-stream"),
    ("the engine dies", "queued"),
    ("the detokenizer dies", "first byte"),
    ("the tokenizer hangs", "prefill"),
}


@pytest.mark.parametrize(
    ("fault", "phase"),
    [
        pytest.param(*case, marks=() if case in BY_DEFAULT else pytest.mark.faults)
        for case in itertools.product(FAULTS, PHASES)
    ],
)
async def test_streams_survive_a_fault_of_one_replica(
    pair: list[Stack], frontend: Frontend, held: Counter[str], expected: str, fault: str, phase: str
) -> None:
    victim = pair[0]
    await survive(partial(FAULTS[fault], victim), phase, frontend, victim, expected)
    await require_recovery(frontend, pair, victim, held)
