"""Rolling restarts: frontends end one after the other under streams, and no stream is lost."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.integration.replicas import NUM_STREAMS, Frontend, StreamOutcome, frontend_of, read_stream, streaming, until
from tests.integration.stack import PACED_MODEL, Stack
from tests.launching import environment_with_key
from tests.waiting import DEADLINE_S

MAX_TOKENS = 60


class Balancer:
    """Forwards each TCP connection to a frontend that says it is ready, as a cluster's service does."""

    def __init__(self) -> None:
        self.frontends: list[Frontend] = []
        self._num_accepted = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen; yield the URL."""
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = [each for each in self.frontends if (await asyncio.to_thread(each.readiness))[0] == 200]
        self._num_accepted += 1
        target = urlsplit(ready[self._num_accepted % len(ready)].url)
        their_reader, their_writer = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(_pipe(reader, their_writer), _pipe(their_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def followed(url: str) -> AsyncIterator[list[StreamOutcome]]:
    """Let many clients read one stream after the other until the block ends. Yield all outcomes, also of refusals.

    A refused client, or one whose connection is being closed, tries again, as OpenAI's SDK does.
    """
    outcomes: list[StreamOutcome] = []
    is_over = asyncio.Event()

    async def follow() -> None:
        async with aiohttp.ClientSession() as session:
            while not is_over.is_set():
                outcomes.append(StreamOutcome())
                with suppress(aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    await read_stream(session, url, outcomes[-1], MAX_TOKENS)

    clients = asyncio.gather(*(follow() for _ in range(NUM_STREAMS)))
    try:
        await until(lambda: any(outcome.is_done for outcome in outcomes), "the first streams have ended")
        yield outcomes
    finally:
        is_over.set()
        await asyncio.wait_for(clients, DEADLINE_S)


def assert_whole(outcomes: list[StreamOutcome]) -> None:
    """Check that no stream that has begun was lost."""
    begun = [outcome for outcome in outcomes if outcome.status == 200]
    assert len(begun) > 2 * NUM_STREAMS
    assert [outcome for outcome in begun if not outcome.is_whole] == []
    assert len({outcome.text for outcome in begun}) == 1


async def test_a_rolling_restart_of_frontends_under_streams_loses_none(paced_stack: Stack, tmp_path: Path) -> None:
    balancer = Balancer()
    with ExitStack() as exits:

        def started() -> Frontend:
            return exits.enter_context(frontend_of([paced_stack], tmp_path))

        balancer.frontends = [started(), started()]
        async with balancer.listening() as url, followed(url) as outcomes:
            for leaving in list(balancer.frontends):
                leaving.process.send_signal(signal.SIGTERM)
                balancer.frontends.append(await asyncio.to_thread(started))
                assert await asyncio.to_thread(leaving.process.wait, DEADLINE_S) == 0, leaving.log
                balancer.frontends.remove(leaving)
                assert re.search(r"draining: [1-9]\d* requests are in flight", leaving.log)
    assert {outcome.status for outcome in outcomes} <= {0, 200, 503}
    assert_whole(outcomes)


async def drained(stack: Stack, *arguments: str) -> tuple[int, str]:
    """Take a Triton out of service; return the command's status and its only line."""
    command = [sys.executable, "-m", "frontend", "drain", f"--triton={stack.endpoint}", *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, env=environment_with_key()
    )
    assert done.stdout.count("\n") == 1, done.stderr
    return done.returncode, done.stdout.strip()


def serves_again(frontend: Frontend, stack: Stack) -> bool:
    """Whether both serve; start a Triton that died while it loaded, as `serve` does.

    On a busy machine tritonserver 2.51 may fail to lock its shared memory.
    """
    stack.start_again_if_ended()
    return frontend.is_whole()


def is_draining(frontend: Frontend, stack: Stack) -> bool:
    """Whether a frontend sends no more requests to a Triton that drains."""
    return bool(frontend.readiness()[1]["replicas"][stack.endpoint][PACED_MODEL] == "draining")


async def test_a_rolling_restart_of_tritons_under_streams_loses_none_and_refuses_none(
    pair: list[Stack], tmp_path: Path
) -> None:
    with frontend_of(pair, tmp_path) as frontend:
        async with followed(frontend.url) as outcomes:
            for stack in pair:
                await until(lambda stack=stack: stack.stats(PACED_MODEL).num_active > 0, "streams run there")  # type: ignore[misc]
                status, line = await drained(stack, "--notice-s=0", "--timeout-s=0.1")
                assert status == ("requests still run at" in line), line
                await until(lambda stack=stack: is_draining(frontend, stack), "the frontend knows")  # type: ignore[misc]
                assert (await drained(stack, "--notice-s=0"))[0] == 0
                await asyncio.to_thread(stack.launcher.triton.stop, DEADLINE_S)
                # tritonserver 2.51 may abort in its gRPC server when its last model has stopped. On a busy machine its
                # stages may take longer than its time for them: then the status is 1.
                assert re.search(r"ended with status [01]$|killed by SIGABRT$", stack.launcher.triton.how_it_ended())
                stack.launcher.start_again(stack.launcher.triton)
                await until(lambda stack=stack: serves_again(frontend, stack), "both serve again")  # type: ignore[misc]
    assert [outcome for outcome in outcomes if outcome.status != 200] == []
    assert_whole(outcomes)


async def test_a_triton_hands_over_what_still_runs_after_its_time(pair: list[Stack], tmp_path: Path) -> None:
    leaving = pair[0]
    with frontend_of(pair, tmp_path) as frontend:
        async with streaming(frontend.url, 400) as outcomes:
            await until(lambda: all(outcome.text for outcome in outcomes), "they have begun")
            assert leaving.stats(PACED_MODEL).num_active
            assert await drained(leaving, "--notice-s=1", "--timeout-s=1", "--hand-over") == (
                0,
                f"ok: nothing runs at {leaving.endpoint} any more",
            )
        assert all(outcome.is_whole for outcome in outcomes), outcomes
        assert len({outcome.text for outcome in outcomes}) == 1
        assert 0 < sum(outcome.num_resumed > 0 for outcome in outcomes) < len(outcomes)
        assert (await drained(leaving, "--undo"))[0] == 0


async def test_after_its_time_a_drain_ends_the_streams_with_an_error(paced_stack: Stack, tmp_path: Path) -> None:
    with frontend_of([paced_stack], tmp_path, "--drain-timeout-s=0.5", "--workers=2") as frontend:
        async with streaming(frontend.url, 1900) as outcomes:
            await until(lambda: any(outcome.text for outcome in outcomes), "they have begun")
            frontend.process.send_signal(signal.SIGTERM)
        assert all(outcome.is_cleanly_broken for outcome in outcomes), outcomes
        assert {outcome.error["code"] for outcome in outcomes if outcome.error} == {"draining"}
        assert await asyncio.to_thread(frontend.process.wait, DEADLINE_S) == 0
    await asyncio.to_thread(paced_stack.wait_until_idle, "synthetic/paced")


async def test_a_second_signal_ends_a_drain(paced_stack: Stack, tmp_path: Path) -> None:
    with frontend_of([paced_stack], tmp_path, "--drain-timeout-s=3600") as frontend:
        async with streaming(frontend.url, 1900, num_streams=4) as outcomes:
            await until(lambda: all(outcome.text for outcome in outcomes), "they have begun")
            frontend.process.send_signal(signal.SIGTERM)
            await until(lambda: "draining" in frontend.log, "it drains")
            frontend.process.send_signal(signal.SIGTERM)
        assert all(outcome.is_cleanly_broken for outcome in outcomes), outcomes
        assert await asyncio.to_thread(frontend.process.wait, DEADLINE_S) == 0
