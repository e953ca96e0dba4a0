"""The load generator's process. It reads a job as JSON, and writes its start time and then the result.

python -m tests.workshop.load.generator < job.json
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

import uvloop

from tests.workshop.load.grpc_stream import GrpcClient
from tests.workshop.load.http_stream import Exchange, HttpStream, connect
from tests.workshop.load.load import Load, Target, requests
from tests.workshop.load.load_result import summarize
from tests.workshop.load.stream_record import StreamRecord, read_embeddings, read_stream

_LEAD_S = 0.05  # from the line with the start time to the start


def job_to_json(load: Load, target: Target) -> str:
    """Return a job as `main` reads it."""
    return json.dumps({"load": dataclasses.asdict(load), "target": dataclasses.asdict(target)})


def job_from_json(text: str) -> tuple[Load, Target]:
    """Read the output of `job_to_json`."""
    job: dict[str, Any] = json.loads(text)
    return Load(**job["load"]), Target(**job["target"] | {"token_ends": tuple(job["target"]["token_ends"])})


class Client(Protocol):
    """Sends the requests of a load, one after the other, to its target."""

    async def connect(self) -> None:
        """Open the connections of a closed loop."""

    async def exchange(self, timeout_s: float) -> Any:
        """Send the next request and read its answer to the end. The result has a property `has_failed`."""

    def record(self, exchange: Any) -> StreamRecord:
        """Return the record of such a result."""


class HttpClient:
    """A client of the OpenAI API."""

    def __init__(self, load: Load, target: Target) -> None:
        self._load = load
        self._target = target
        self._requests = requests(load, target)
        self._idle: list[HttpStream] = []

    async def connect(self) -> None:
        if self._load.rate_per_s is None and self._load.reuses_connections:
            for _ in range(self._load.num_streams):
                self._idle.append(await connect(*self._target.address))

    async def exchange(self, timeout_s: float) -> Exchange:
        begun_s, request = time.monotonic(), next(self._requests)
        try:
            async with asyncio.timeout(timeout_s):
                while self._idle:
                    exchange = await self._exchange_on(self._idle.pop(), request)
                    if exchange.status or not exchange.error:
                        return exchange  # else the server had closed the idle connection
                return await self._exchange_on(await connect(*self._target.address), request)
        except TimeoutError:
            return Exchange(begun_s, error="the stream did not end in time")
        except OSError as exc:
            return Exchange(begun_s, error=f"no connection: {exc}")

    def record(self, exchange: Exchange) -> StreamRecord:
        if self._load.api == "embeddings":
            return read_embeddings(exchange, self._load.num_inputs)
        return read_stream(exchange, self._load.num_tokens, may_stop_early=not self._load.ignores_eos)

    async def _exchange_on(self, stream: HttpStream, request: bytes) -> Exchange:
        exchange = None
        try:
            exchange = await stream.exchange(request)
        finally:
            is_whole = exchange is not None and stream.is_open and not exchange.error
            if is_whole and self._load.reuses_connections:
                self._idle.append(stream)
            else:
                stream.close()
        return exchange


class Generator:
    """Sends one load with a client and keeps every exchange."""

    def __init__(self, load: Load, client: Client) -> None:
        self.exchanges: list[Any] = []
        self._load = load
        self._client = client
        self._end_s = 0.0

    async def run(self, start_s: float) -> None:
        """Send the load from a time on, and wait until every stream has ended or is stuck."""
        self._end_s = start_s + self._load.warmup_s + self._load.window_s
        begins = self._stream_begins(start_s) if self._load.rate_per_s is None else self._poisson_times(start_s)
        async with asyncio.TaskGroup() as streams:
            for begin_s in begins:
                await _sleep_until(begin_s)
                streams.create_task(self._stream())

    def _stream_begins(self, start_s: float) -> Iterator[float]:
        for index in range(self._load.num_streams):
            yield start_s + self._load.ramp_s * index / self._load.num_streams

    def _poisson_times(self, start_s: float) -> Iterator[float]:
        assert self._load.rate_per_s is not None
        times = random.Random(self._load.seed)
        time_s = start_s
        while (time_s := time_s + times.expovariate(self._load.rate_per_s)) < self._end_s:
            yield time_s

    async def _stream(self) -> None:
        """Send requests one after the other. A wrong answer ends the stream: a broken server must not be flooded."""
        num_sent = 0
        while self._goes_on(num_sent):
            num_sent += 1
            if self._load.pause_s:
                await asyncio.sleep(self._load.pause_s)
            exchange = await self._client.exchange(self._time_left_s())
            self.exchanges.append(exchange)
            if exchange.has_failed:
                return

    def _goes_on(self, num_sent: int) -> bool:
        if self._load.rate_per_s is not None:
            return num_sent < 1
        if self._load.requests_per_stream is not None:
            return num_sent < self._load.requests_per_stream
        return time.monotonic() < self._end_s

    def _time_left_s(self) -> float:
        return max(self._end_s - time.monotonic(), 0) + self._load.longest_stream_s


async def _sleep_until(time_s: float) -> None:
    if (left_s := time_s - time.monotonic()) > 0:
        await asyncio.sleep(left_s)


async def _run(load: Load, target: Target) -> tuple[float, list[StreamRecord]]:
    client: Client = GrpcClient(load, target) if target.is_grpc else HttpClient(load, target)
    generator = Generator(load, client)
    await client.connect()
    start_s = time.monotonic() + _LEAD_S
    sys.stdout.write(f"{start_s}\n")
    sys.stdout.flush()
    await generator.run(start_s)
    return start_s, [client.record(exchange) for exchange in generator.exchanges]


def main() -> None:
    """Run the job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it silently
    load, target = job_from_json(sys.stdin.read())
    gc.disable()  # there are no cycles, and the results are large
    start_s, records = uvloop.run(_run(load, target))
    sys.stdout.write(summarize(load, target, records, start_s + load.warmup_s).to_json())


if __name__ == "__main__":
    main()
