"""The CPU time that the frontend takes for one request, in this process: without sockets, gRPC and other processes.

`python -m tests.workshop.load.in_process` feeds the real frontend with a streamed chat of one token, one request after
the other, each on a new connection. The Triton behind it is played. Small steps show: the low percentiles repeat within
3 % also on a busy machine. `--beside DIR` measures another checkout in turns with this one, such as a commit before a
change (its environment is this one's).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvloop
from tritonclient.grpc import service_pb2

from frontend.server import app_runner, tune_collector
from frontend.settings import Settings
from frontend.telemetry.log_lines import configure_logging
from frontend.triton.generations import Generations
from model_repository.contract.codec import pack
from model_repository.contract.output import ChunkBatch, FinishReason, GenerationChunk, Timing, Usage
from model_repository.contract.tensors import CHUNK_BATCH
from tests.fakes import FakeTriton, served_model

ENDPOINT = "127.0.0.1:1"
QUESTION = "1 apple boat cloud door earth flower green house island jump kind light apple boat cloud"
BODY = {
    "model": "org/demo",
    "temperature": 0,
    "stream": True,
    "max_tokens": 1,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
    "messages": [{"role": "user", "content": QUESTION}],
}
ANSWER = GenerationChunk(
    text="A",
    finish_reason=FinishReason.LENGTH,
    usage=Usage(num_input_tokens=38, num_output_tokens=1),
    timing=Timing(arrival_time_ns=1, first_scheduled_time_ns=2, first_token_time_ns=3, last_token_time_ns=4),
)
PERCENTILES = (2, 10, 50)
_END = b"0\r\n\r\n"


class PlayedStub:
    """Answers each request at once, over the same messages as Triton."""

    def __init__(self) -> None:
        self._outputs: PlayedCall | None = None
        self._serial = 0

    def ModelStreamInfer(self, messages: AsyncIterator[Any], **options: Any) -> PlayedCall:
        return PlayedCall(self, messages)

    def answer(self, call: PlayedCall, message: Any) -> None:
        """Answer a message: with an empty batch to the one that opens the output stream."""
        if message.id == "outputs":
            self._outputs, self._serial = call, 0
            numbers: Sequence[int] = ()
        else:
            first, last = map(int, message.id.split("-"))
            numbers = range(first, last + 1)
        payload = pack(ChunkBatch(self._serial, tuple((number, ANSWER) for number in numbers)))
        self._serial += 1
        response = service_pb2.ModelStreamInferResponse()
        answer = response.infer_response
        answer.id = "1-1"
        answer.outputs.add(name=CHUNK_BATCH.name, datatype="BYTES", shape=[1, 1])
        answer.raw_output_contents.append(len(payload).to_bytes(4, "little") + payload)
        answer.parameters["triton_final_response"].bool_param = False
        assert self._outputs is not None
        self._outputs.responses.put_nowait(response.SerializeToString())


class PlayedCall:
    """A gRPC call."""

    def __init__(self, stub: PlayedStub, messages: AsyncIterator[Any]) -> None:
        self.responses: asyncio.Queue[bytes] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._send(stub, messages))

    async def _send(self, stub: PlayedStub, messages: AsyncIterator[Any]) -> None:
        async for message in messages:
            stub.answer(self, service_pb2.ModelInferRequest.FromString(message.SerializeToString()))

    async def read(self) -> Any:
        """Return the next response."""
        return service_pb2.ModelStreamInferResponse.FromString(await self.responses.get())

    def cancel(self) -> None:
        """End the call."""
        self._task.cancel()


class PlayedTriton(FakeTriton):
    """A client of Triton with the real calls of a model, over a stub that is played."""

    def __init__(self) -> None:
        super().__init__((), [served_model(capabilities=frozenset(), tool_call_format="")])
        self.stub = PlayedStub()
        self.generations = Generations(
            self,  # type: ignore[arg-type]  # the stub is all that is used
            cancel=lambda ensemble, keys: asyncio.sleep(0),
            fetch_epoch=lambda ensemble: asyncio.sleep(0, 1),
            parameters={},
        )


class PlayedTransport(asyncio.Transport):
    """Keeps the bytes of an answer, and tells of its end."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.written: list[bytes] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        if data[-len(_END) :] == _END and not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


async def measure(num_requests: int, *, is_shown: bool) -> list[float]:
    """Return the seconds of CPU time of each request, without those of the first quarter."""
    runner = app_runner(Settings(triton_endpoints=(ENDPOINT,)), {ENDPOINT: PlayedTriton()})
    await runner.setup()
    assert runner.server is not None
    body = json.dumps(BODY).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    taken_s = []
    for _ in range(num_requests):
        transport = PlayedTransport()
        began_s = time.thread_time()
        protocol = runner._connection()
        protocol.connection_made(transport)
        protocol.data_received(head.encode() + body)
        await transport.ended
        protocol.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        taken_s.append(time.thread_time() - began_s)
        answer = b"".join(transport.written)
        assert answer.startswith(b"HTTP/1.1 200") and b'"content":"A"' in answer, answer
    if is_shown:
        print(answer.decode())  # noqa: T201
    return taken_s[num_requests // 4 :]


def percentiles_us(taken_s: Sequence[float]) -> list[float]:
    """Return PERCENTILES of the CPU times, in microseconds."""
    cuts = statistics.quantiles(taken_s, n=100)
    return [1e6 * cuts[percentile - 1] for percentile in PERCENTILES]


def beside(other: Path, num_turns: int, num_requests: int) -> None:
    """Measure both checkouts in turns, each in a process of its own, and print a row for each."""
    rows: dict[str, list[list[float]]] = {"this": [], "other": []}
    roots = {"this": Path(__file__).parents[3], "other": other.resolve()}
    for _ in range(num_turns):
        for name, root in roots.items():
            command = [sys.executable, __file__, "--requests", str(num_requests)]
            environment = os.environ | {"PYTHONPATH": str(root)}
            done = subprocess.run(command, env=environment, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
            rows[name].append(json.loads(done.stdout))
    for name, found in rows.items():
        medians = [statistics.median(column) for column in zip(*found, strict=True)]
        print(f"{name:6}", *(f"p{p} {us:6.0f} us" for p, us in zip(PERCENTILES, medians, strict=True)))  # noqa: T201


def main() -> None:
    """Measure this checkout, or two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3000, help="number of them (3000)")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout, measured in turns")
    parser.add_argument("--turns", type=int, default=3, help="with --beside (3)")
    parser.add_argument("--show", action="store_true", help="print the last answer")
    options = parser.parse_args()
    if options.beside is not None:
        beside(options.beside, options.turns, options.requests)
        return
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # request lines are made and written, as in use
    configure_logging("text")
    tune_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        taken_s = runner.run(measure(options.requests, is_shown=options.show))
    print(json.dumps([round(us, 1) for us in percentiles_us(taken_s)]))  # noqa: T201


if __name__ == "__main__":
    main()
