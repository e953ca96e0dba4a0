"""One of two Tritons breaks under 32 streams: only its own streams end with an error, and nothing leaks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from model_repository.contract.tensors import model_id_to_ensemble, stage_name
from tests.integration.faults import (
    MAX_TOKENS,
    broken_by,
    cases,
    holdings,
    mend,
    require_nothing_leaked,
    require_recovery,
    text_of_one_stream,
)
from tests.integration.garbling_proxy import (
    Garble,
    GarblingProxy,
    another_serial,
    cut_payload,
    garbling,
    lost,
    noise,
    repeated,
    truncated,
    without_output,
)
from tests.integration.replicas import (
    IMPATIENT,
    Frontend,
    continue_processes,
    frontend_of,
    stop_processes,
    streaming,
)
from tests.integration.stack import PACED_MODEL, Stack
from tests.waiting import wait_until

ENSEMBLE = model_id_to_ensemble(PACED_MODEL)
NUM_ATTEMPTS = 5  # on a busy machine the streams may be over before the garbage comes


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


@pytest.mark.parametrize(("fault", "phase"), cases(FAULTS, at_every_moment="the detokenizer dies"))
async def test_a_fault_of_one_replica_breaks_only_its_own_streams(
    pair: list[Stack], frontend: Frontend, held: Counter[str], expected: str, fault: str, phase: str
) -> None:
    victim = pair[0]
    await broken_by(partial(FAULTS[fault], victim), phase, frontend, victim, expected)
    await require_recovery(frontend, pair, victim, held)


# --- garbage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxy(pair: list[Stack]) -> Iterator[tuple[GarblingProxy, str]]:
    """The proxy before the first Triton, and its endpoint."""
    with garbling(pair[0].endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def garbled(
    pair: list[Stack], proxy: tuple[GarblingProxy, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Frontend]:
    """A frontend that reaches one Triton through the proxy, and the other directly."""
    with frontend_of([proxy[1], pair[1]], tmp_path_factory.mktemp("garbled"), constants=IMPATIENT) as frontend:
        yield frontend


@pytest.fixture(scope="module")
def held_by_garbled(garbled: Frontend, pair: list[Stack], proxy: tuple[GarblingProxy, str]) -> Counter[str]:
    """Its descriptors and tasks after it has read some garbage."""
    proxy[0].batch = noise
    asyncio.run(broken_by(lambda: None, "mid-stream", garbled, pair[0], asyncio.run(text_of_one_stream(garbled))))
    wait_until(garbled.is_whole, "both serve")
    return asyncio.run(holdings(garbled, pair))


GARBAGE: dict[str, Garble] = {
    garble.__name__: garble
    for garble in (truncated, noise, repeated, lost, without_output, cut_payload, another_serial)
}


@pytest.mark.parametrize(("garble", "phase"), cases(GARBAGE, at_every_moment="truncated"))
async def test_garbage_from_one_replica_is_an_error_never_a_text(
    pair: list[Stack],
    garbled: Frontend,
    proxy: tuple[GarblingProxy, str],
    held_by_garbled: Counter[str],
    expected: str,
    garble: str,
    phase: str,
) -> None:
    def begin() -> None:
        proxy[0].batch = GARBAGE[garble]

    for _ in range(NUM_ATTEMPTS):
        await asyncio.to_thread(wait_until, garbled.is_whole, "both serve")
        num_logged = len(garbled.log)
        broken = await broken_by(begin, phase, garbled, pair[0], expected)
        is_sent, proxy[0].batch = proxy[0].batch is None, None
        await asyncio.to_thread(wait_until, garbled.is_whole, "both serve")
        is_sent_again = f"failed at {proxy[1]}, sent again" in garbled.log[num_logged:]
        if broken or is_sent_again or (is_sent and phase == "last chunk"):
            break
    else:
        pytest.fail(f"no stream noticed the garbage; sent: {is_sent}")
    await require_nothing_leaked(garbled, pair, held_by_garbled)


async def test_while_all_that_a_replica_says_is_noise_requests_are_served_by_the_other(
    pair: list[Stack], garbled: Frontend, proxy: tuple[GarblingProxy, str], held_by_garbled: Counter[str], expected: str
) -> None:
    proxy[0].everything = noise
    try:
        async with streaming(garbled.url, MAX_TOKENS) as outcomes:
            pass
        assert all(outcome.text == expected for outcome in outcomes if outcome.is_whole)
        assert all(outcome.is_whole or outcome.is_cleanly_broken for outcome in outcomes), outcomes
        for _ in range(3):
            async with streaming(garbled.url, MAX_TOKENS, num_streams=4) as outcomes:
                pass
        assert [outcome.text for outcome in outcomes if outcome.is_whole] == [expected] * 4
    finally:
        proxy[0].everything = None
    await asyncio.to_thread(wait_until, garbled.is_whole, "both serve")
    await require_nothing_leaked(garbled, pair, held_by_garbled)


# --- one of several, and the health check -----------------------------------------------------------------------------


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


def checked(*arguments: str) -> tuple[int, str]:
    """Run the command `health`; return its exit status and its only line."""
    command = [sys.executable, "-m", "frontend", "health", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.count("\n") == 1, done.stderr
    return done.returncode, done.stdout.strip()


def test_the_probe_command_says_whether_an_engine_works(pair: list[Stack], frontend: Frontend, expected: str) -> None:
    to = f"--triton={pair[0].endpoint}"
    assert checked(to, f"--model={PACED_MODEL}") == (0, f"ok: {ENSEMBLE} answers")
    assert checked(to, f"--model={PACED_MODEL}", "--generate") == (0, f"ok: {ENSEMBLE} made a token")
    assert checked(to, "--model=nobody")[0] == 1
    stop_processes(pair[0])
    try:
        assert checked(to, "--timeout-s=0.5") == (1, "failed: no answer within 0.5 s")
    finally:
        continue_processes(pair[0])
    pair[0].launcher.triton.kill()
    status, line = checked(to)
    assert status == 1
    assert line.startswith("failed: triton_unreachable: The inference server cannot be reached. (failed to connect")
    mend(frontend, pair[0])
