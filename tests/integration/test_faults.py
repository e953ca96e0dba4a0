"""Each process that `serve` starts is killed under streams. Nothing hangs, and no answer is wrong."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from frontend.launcher.checks import SHARED_MEMORY
from frontend.launcher.guard import marked_pids, shm_prefix
from frontend.launcher.launcher import Interrupted
from model_repository.contract.tensors import model_id_to_ensemble, stage_name
from tests.integration.api import COMPLETIONS, Api
from tests.integration.conftest import FRONTEND, run_build, running_stack
from tests.integration.replicas import StreamOutcome, read_stream, until
from tests.integration.stack import PACED_MODEL, Stack
from tests.processes import command_line, is_running, parent_of
from tests.tensorrt_llm_artifact import install_double, write_artifact
from tests.waiting import DEADLINE_S, wait_until

LATER_RELEASE = "tensorrt_llm_contract_1.3.0rc29.json"

ENSEMBLE = model_id_to_ensemble(PACED_MODEL)
ONE_TOKEN = {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": 1}


def makes_a_token(stack: Stack) -> bool:
    """Whether the paced model makes a token; while the frontend is away, nothing listens."""
    try:
        return Api(stack.url).post(COMPLETIONS, ONE_TOKEN).status == 200
    except OSError:
        return False


STAGES = ("tokenizer", "engine", "detokenizer")
OF_TRITON = {
    "tritonserver": "/bin/tritonserver ",
    **{stage: f"__{stage}/1/model.py" for stage in (*STAGES, "arbiter", "loader1", "loader2")},
}
OF_THE_FRONTEND = {"frontend": " api --host=", "worker": ".spawn ", "tracker": ".resource_tracker "}
OF_SERVE = {**OF_TRITON, **OF_THE_FRONTEND, "guard": "/launcher/guard.py "}  # by a part of their command lines
PAUSES_STREAMS = {"tritonserver", "engine", "detokenizer"}
COMPILER = "compiler"  # of grammars: a fork of the tokenizer stage
NUM_COMPILERS = 3
NOT_AT_ONCE = ("loader1", "loader2", "tracker")  # they are started again at the next load, or not at all
NUM_SPAWNED = 3  # of two workers, with the process of their limits
NUM_READERS = 4


@contextmanager
def watched_stack(workers: int, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run the launcher of `serve` with this number of workers, and restart processes that end."""
    settings = replace(FRONTEND, workers=workers)
    with running_stack(repository, tmp_path_factory, settings) as stack, ThreadPoolExecutor(1) as pool:
        watching = pool.submit(stack.launcher.watch)
        try:
            yield stack
        finally:
            stack.launcher.interrupt()
        with pytest.raises(Interrupted):
            watching.result(DEADLINE_S)


@pytest.fixture(scope="module")
def two_workers(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The launcher of `serve` with two workers. It frees its shared memory, also when its guard was killed."""
    with watched_stack(2, paced_repository, tmp_path_factory) as stack:
        yield stack
        mark = stack.launcher._mark
        assert list(SHARED_MEMORY.glob(shm_prefix(mark) + "*"))
    assert not list(SHARED_MEMORY.glob(shm_prefix(mark) + "*"))


def processes_of(stack: Stack) -> dict[str, list[int]]:
    """Return the processes of a launcher, by the names in OF_SERVE."""
    mark = stack.launcher._mark
    pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
    guards = {pid for pid in pids if mark.encode() in command_line(pid).split(b"\0")}
    found: dict[str, list[int]] = {}
    for pid in sorted(marked_pids(mark) | guards):
        words = command_line(pid).replace(b"\0", b" ").decode()
        name = next((name for name, part in OF_SERVE.items() if part in words), words)
        if name == "tokenizer" and command_line(parent_of(pid)) == command_line(pid):
            name = COMPILER
        found.setdefault(name, []).append(pid)
    return found


async def kill_under_streams(stack: Stack, name: str, pid: int) -> None:
    """Kill a process under streams. Require an answer after it, an idle engine, and no stream that only seems whole."""
    outcomes = [StreamOutcome() for _ in range(NUM_READERS)]
    async with aiohttp.ClientSession() as session:

        async def read(outcome: StreamOutcome) -> None:
            while not outcome.text:  # a worker refuses it until it knows that the last fault is over
                outcome.error = None
                with suppress(aiohttp.ClientError):
                    await read_stream(session, stack.url, outcome, 1900)

        streams = asyncio.gather(*map(read, outcomes))
        await until(lambda: all(outcome.text for outcome in outcomes), "the streams have begun")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_running(pid), "it has ended")
        if name in PAUSES_STREAMS:
            await until(lambda: all(outcome.num_resumed for outcome in outcomes), "the streams have paused")
            lengths = [len(outcome.text) for outcome in outcomes]
            await until(
                lambda: all(len(each.text) > length for each, length in zip(outcomes, lengths, strict=True)),
                "they go on",
            )
        await until(lambda: makes_a_token(stack), "it answers again")
        streams.cancel()
        with suppress(asyncio.CancelledError):
            await streams
    assert not any(outcome.finish_reasons and not outcome.is_whole for outcome in outcomes)
    await asyncio.to_thread(stack.wait_until_idle, PACED_MODEL)


@pytest.mark.faults
async def test_the_only_frontend_is_started_again_and_triton_goes_on(
    paced_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with watched_stack(1, paced_repository, tmp_path_factory) as stack:
        before = processes_of(stack)
        expected = dict.fromkeys(("guard", *OF_TRITON, "frontend"), 1) | {COMPILER: NUM_COMPILERS}
        assert {name: len(pids) for name, pids in before.items()} == expected
        await kill_under_streams(stack, "frontend", before["frontend"][0])
        after = processes_of(stack)
        assert after.pop("frontend") != before.pop("frontend")
        assert after == before


# `make faults` kills each of them.
KILLED_BY_DEFAULT = {"tritonserver", "detokenizer", "worker", "guard"}
OTHERS = [(name, 0) for name in {**OF_SERVE, COMPILER: ""} if name not in KILLED_BY_DEFAULT]
OTHERS += [("worker", number) for number in range(1, NUM_SPAWNED)]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, 0) for name in sorted(KILLED_BY_DEFAULT)),
        *(pytest.param(*other, marks=pytest.mark.faults) for other in OTHERS),
    ],
)
async def test_serve_answers_again_after_any_of_its_processes_was_killed(
    two_workers: Stack, name: str, number: int
) -> None:
    def is_complete() -> bool:
        found = processes_of(two_workers)
        return {*found, *NOT_AT_ONCE} == {*OF_SERVE, COMPILER} and len(found["worker"]) == NUM_SPAWNED

    await until(is_complete, "all processes run")
    before = processes_of(two_workers)
    await kill_under_streams(two_workers, name, before[name][number])
    assert name in OF_TRITON or processes_of(two_workers)["tritonserver"] == before["tritonserver"]


@pytest.mark.faults
def test_a_dead_worker_of_an_idle_model_has_it_loaded_again_without_a_request(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Since release 1.3 TensorRT-LLM notices the death; the next request waited a minute for it."""
    folder = tmp_path_factory.mktemp("later-release")
    run_build("render", str(write_artifact(folder / "demo", "demo", "pytorch")), "--repository", str(folder / "models"))
    install_double(folder / "models")
    with running_stack(folder / "models", tmp_path_factory, TENSORRT_LLM_CONTRACT=LATER_RELEASE) as stack:
        stage = stage_name("demo", "engine")
        stack.kill_worker(stage)
        wait_until(lambda: any(line.endswith(f"reloaded {stage}") for line in stack.log), "it was loaded again")
        body = {"model": "demo", "prompt": "Hello", "max_tokens": 1}
        wait_until(lambda: Api(stack.url).post(COMPLETIONS, body).status == 200, "it answers again")
