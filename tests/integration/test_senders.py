"""One sender floods a resource; another one's requests take at most three times as long as in peace, or 250 ms longer.

Peace and attack alternate, and the medians of their turns are compared, so a busy machine counts on both sides; more
turns follow where the first ones exceed the limit. The percentile is the 90th: a turn has too few answers for a 99th.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from frontend.protocol.completion import MAX_CHOICES
from frontend.settings import Settings
from tests.frontend.connections.raw_http import narrow_connection
from tests.frontend.gateway.key_files import KeyFile
from tests.hostile import large
from tests.hostile.requests import COMPLETIONS, MODEL, post
from tests.integration.conftest import running_stack
from tests.integration.edge import exchange
from tests.integration.operations import Server
from tests.integration.stack import Stack

pytestmark = pytest.mark.alone

MIN_TURNS, MAX_TURNS, TURN_S = 3, 9, 1.5
MAX_RATIO, MAX_EXTRA_S = 3.0, 0.25  # of a latency beside a flood: the larger of the two bounds holds


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two keys, `alice` and `bob`. Its frontend has the default settings."""
    key_file = KeyFile(tmp_path_factory.mktemp("senders") / "keys.json")
    for name in ("alice", "bob"):
        key_file.add(name)
    with running_stack(repository, tmp_path_factory, Settings(key_file=str(key_file.path))) as stack:
        yield Server(stack, "", key_file)


type Flood = Callable[[Sender], Awaitable[None]]


class Sender:
    """A client with a key. Each of its requests has a connection of its own."""

    def __init__(self, server: Server, name: str) -> None:
        self.port = int(server.stack.url.rpartition(":")[2])
        self._headers = tuple(f"{field}: {value}" for field, value in server.key_file.headers(name).items())

    def request(self, body: bytes, path: str = COMPLETIONS) -> bytes:
        return post(body, path, self._headers)

    def completion(self, **fields: object) -> bytes:
        return post({"model": MODEL, "prompt": "a", **fields}, COMPLETIONS, self._headers)

    async def send(self, raw: bytes) -> int:
        """Return the status of the answer; 0 without one."""
        answer = await exchange(self.port, raw)
        return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


async def endless(number: int, once: Callable[[], Awaitable[object]]) -> None:
    """Repeat something until it is cancelled, this number of times at the same time."""

    async def repeat() -> None:
        while True:
            with suppress(OSError):
                await once()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(number):
            tasks.create_task(repeat())


def repeated(number: int, raw_of: Callable[[Sender], bytes]) -> Flood:
    """Return a flood that sends one request this many times at once."""

    async def flood(alice: Sender) -> None:
        raw = raw_of(alice)
        await endless(number, lambda: alice.send(raw))

    return flood


async def slow_readers(alice: Sender) -> None:
    raw = alice.completion(max_tokens=2000, ignore_eos=True, stream=True, stream_options={"include_usage": True})

    async def read_8_kb_a_second() -> None:
        loop = asyncio.get_running_loop()
        with narrow_connection(alice.port) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, raw)
            while True:
                if not await loop.sock_recv(client, 800):
                    return
                await asyncio.sleep(0.1)

    await endless(20, read_8_kb_a_second)


async def hang_ups(alice: Sender) -> None:
    raw = alice.completion(prompt=["a b c"] * MAX_CHOICES, max_tokens=200, stream=True)

    async def hang_up() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", alice.port)
        writer.write(raw)
        try:
            await asyncio.sleep(0.3)
        finally:
            writer.transport.abort()

    await endless(4, hang_up)


async def grammars(alice: Sender) -> None:
    """Each has another small grammar, of one text of 2 ** 19 characters."""
    rules = "\n".join(["root ::= r0", *(f"r{level} ::= r{level + 1} r{level + 1}" for level in range(19))])
    numbers = itertools.count()
    await endless(
        8,
        lambda: alice.send(
            alice.completion(structured_outputs={"grammar": f'{rules}\nr19 ::= "{next(numbers):x}"'}, max_tokens=4)
        ),
    )


def token_ids_of(alice: Sender) -> bytes:
    path, body = large.token_ids(MODEL)
    return alice.request(body, path)


def to_detokenize(alice: Sender) -> bytes:
    return alice.request(b'{"model":"%s","tokens":%s}' % (MODEL.encode(), str([300] * 2000).encode()), "/detokenize")


def short(bob: Sender, number: int) -> bytes:
    return bob.completion(prompt="The capital of Peru", max_tokens=8)


def with_a_grammar(bob: Sender, number: int) -> bytes:
    return bob.completion(response_format={"type": "regex", "regex": f"[a-c]{{3}}{number}"}, max_tokens=8)


def of_100_kb(bob: Sender, number: int) -> bytes:
    return bob.request(b'{"model":"%s","prompt":"a","max_tokens":8%s}' % (MODEL.encode(), b" " * 100_000))


def text_of_20_kb(bob: Sender, number: int) -> bytes:
    return bob.request(tokenize_body(20_000), "/tokenize")


def tokenize_body(num_bytes: int) -> bytes:
    text = " ".join(map(str, range(num_bytes)))[:num_bytes]
    return json.dumps({"model": MODEL, "prompt": text}).encode()


TOO_LONG = ["a b c"] * (MAX_CHOICES - 1) + ["a " * 4500]  # the last prompt: so all are refused
FLOODS: dict[str, tuple[Flood, Callable[[Sender, int], bytes]]] = {
    "one wide request": (
        repeated(1, lambda alice: alice.completion(n=MAX_CHOICES, max_tokens=2000, ignore_eos=True)),
        short,
    ),
    "lists of prompts": (repeated(4, lambda alice: alice.completion(prompt=["a"] * MAX_CHOICES, max_tokens=1)), short),
    "slow readers": (slow_readers, short),
    "hang-ups": (hang_ups, short),
    "refusals": (repeated(4, lambda alice: alice.completion(prompt=TOO_LONG, max_tokens=200)), short),
    "grammars": (grammars, with_a_grammar),
    "large bodies": (repeated(16, token_ids_of), short),
    "large bodies beside another": (repeated(16, token_ids_of), of_100_kb),
    "unfinished bodies": (repeated(40, lambda alice: token_ids_of(alice)[:200_000]), of_100_kb),
    "token ids to detokenize": (repeated(40, to_detokenize), short),
    "texts to tokenize": (
        repeated(40, lambda alice: alice.request(tokenize_body(450_000), "/tokenize")),
        text_of_20_kb,
    ),
    "silent connections": (repeated(500, lambda alice: b"POST"), short),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_one_sender_hardly_slows_another_one(server: Server, name: str) -> None:
    flood, request_of = FLOODS[name]
    alice, bob = Sender(server, "alice"), Sender(server, "bob")
    processes = processes_of(server.stack)
    numbers = itertools.count()  # no request has the grammar of another one
    statuses: set[int] = set()

    async def turn() -> float:
        """Return the 90th percentile of the latencies."""
        latencies_s, begin_s = [], time.monotonic()
        while (sent_s := time.monotonic()) < begin_s + TURN_S:
            statuses.add(await bob.send(request_of(bob, next(numbers))))
            latencies_s.append(time.monotonic() - sent_s)
        return float(np.percentile(latencies_s, 90))

    peace_s: list[float] = []
    attack_s: list[float] = []

    def is_slow() -> bool:
        return median(attack_s) > max(MAX_RATIO * median(peace_s), median(peace_s) + MAX_EXTRA_S)

    while len(attack_s) < MIN_TURNS or (is_slow() and len(attack_s) < MAX_TURNS):
        peace_s.append(await turn())
        attack = asyncio.ensure_future(flood(alice))
        attack_s.append(await turn())
        assert not attack.done(), attack
        attack.cancel()
        await asyncio.wait([attack])
        await asyncio.to_thread(server.stack.wait_until_idle, MODEL)
        assert statuses == {200}
    assert not is_slow(), (peace_s, attack_s)
    assert processes_of(server.stack) == processes


def processes_of(stack: Stack) -> list[int]:
    """Return Triton and the stages of the model."""
    assert stack.launcher.triton.is_running
    stages = (stack.processes(f"{MODEL}__{stage}") for stage in ("tokenizer", "engine", "detokenizer"))
    return [stack.launcher.triton.pid, *itertools.chain(*stages)]
