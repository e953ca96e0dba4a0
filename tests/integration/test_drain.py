"""Rolling restarts: frontends end one after the other under streams, and no stream is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.integration.conftest import running_stack
from tests.integration.replicas import NUM_STREAMS, Frontend, StreamOutcome, frontend_of, read_stream, streaming, until
from tests.integration.stack import DEADLINE_S, Stack

MAX_TOKENS = 60
NUM_ROUNDS = 3  # of streams, one after the other, by each client


@pytest.fixture(scope="module")
def small_stack(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A Triton with the paced model alone."""
    with running_stack(paced_repository, tmp_path_factory) as stack:
        yield stack


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


async def follow(url: str, outcomes: list[StreamOutcome]) -> None:
    """Read some streams one after the other.

    Who is sent elsewhere comes again, and so does who meets a connection that is just being closed: OpenAI's SDK does.
    """
    async with aiohttp.ClientSession() as session:
        for _ in range(NUM_ROUNDS):
            is_refused = True
            while is_refused:
                outcome = StreamOutcome()
                with suppress(aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    await read_stream(session, url, outcome, MAX_TOKENS)
                assert outcome.status in (0, 200, 503)
                is_refused = outcome.status != 200
            outcomes.append(outcome)


async def test_a_rolling_restart_under_streams_loses_none(small_stack: Stack, tmp_path: Path) -> None:
    balancer, outcomes = Balancer(), list[StreamOutcome]()
    with ExitStack() as exits:

        def started() -> Frontend:
            return exits.enter_context(frontend_of([small_stack], tmp_path))

        balancer.frontends = [started(), started()]
        async with balancer.listening() as url:
            clients = asyncio.gather(*(follow(url, outcomes) for _ in range(NUM_STREAMS)))
            await until(lambda: bool(outcomes), "the first streams have ended")
            for leaving in list(balancer.frontends):
                leaving.process.send_signal(signal.SIGTERM)
                balancer.frontends.append(await asyncio.to_thread(started))
                assert await asyncio.to_thread(leaving.process.wait, DEADLINE_S) == 0, leaving.log
                balancer.frontends.remove(leaving)
            await asyncio.wait_for(clients, DEADLINE_S)
    assert len(outcomes) == NUM_STREAMS * NUM_ROUNDS
    assert [outcome for outcome in outcomes if not outcome.is_whole] == []
    assert len({outcome.text for outcome in outcomes}) == 1


@pytest.mark.parametrize("workers", [1, 2])
async def test_after_its_time_a_drain_ends_the_streams_with_an_error(
    small_stack: Stack, tmp_path: Path, workers: int
) -> None:
    with frontend_of([small_stack], tmp_path, "--drain-timeout-s=0.5", f"--workers={workers}") as frontend:
        async with streaming(frontend.url, 1900) as outcomes:
            await until(lambda: any(outcome.text for outcome in outcomes), "they have begun")
            frontend.process.send_signal(signal.SIGTERM)
        assert all(outcome.is_cleanly_broken for outcome in outcomes), outcomes
        assert {outcome.error["code"] for outcome in outcomes if outcome.error} == {"draining"}
        assert await asyncio.to_thread(frontend.process.wait, DEADLINE_S) == 0
    await asyncio.to_thread(small_stack.wait_until_idle, "synthetic/paced")


async def test_a_second_signal_ends_a_drain(small_stack: Stack, tmp_path: Path) -> None:
    with frontend_of([small_stack], tmp_path, "--drain-timeout-s=3600") as frontend:
        async with streaming(frontend.url, 1900, num_streams=4) as outcomes:
            await until(lambda: all(outcome.text for outcome in outcomes), "they have begun")
            frontend.process.send_signal(signal.SIGTERM)
            await until(lambda: "draining" in frontend.log, "it drains")
            frontend.process.send_signal(signal.SIGTERM)
        assert all(outcome.is_cleanly_broken for outcome in outcomes), outcomes
        assert await asyncio.to_thread(frontend.process.wait, DEADLINE_S) == 0
