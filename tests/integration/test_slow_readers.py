"""Clients that stop reading, on the real stack."""

from __future__ import annotations

import asyncio
import select
import socket

import uvloop

from tests.hostile.requests import CHAT, completion, post
from tests.integration.edge import EDGE_DEADLINE_S, exchange, serving
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL, Stack

MAX_TOKENS = 2000  # of each completion: twenty seconds


def test_a_reader_that_stalls_frees_the_engine_and_leaves_others_alone(stack: Stack) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        alone, beside = runner.run(stall(stack))
    assert alone == beside
    stack.wait_until_idle(PACED_MODEL)
    assert stack.stats(PACED_MODEL).num_cancelled >= MAX_SEQUENCES


async def stall(stack: Stack) -> tuple[bytes, bytes]:
    """Let a client stall; return what another one was answered before and while it did."""
    async with serving(stack, stalled_reader_s=0.3) as port:
        alone = await exchange(port, completion(temperature=0, max_tokens=20))
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", port))
            messages = [{"role": "user", "content": "x"}]
            body = {"model": PACED_MODEL, "messages": messages, "stream": True, "n": MAX_SEQUENCES}
            client.sendall(post(body | {"max_tokens": MAX_TOKENS}, CHAT))
            beside = await exchange(port, completion(temperature=0, max_tokens=20))
            assert await asyncio.to_thread(is_reset, client)
    return text_of(alone), text_of(beside)


def is_reset(client: socket.socket) -> bool:
    """Wait until the server has reset the connection, without reading."""
    poll = select.poll()
    poll.register(client, 0)
    return any(events & select.POLLERR for _, events in poll.poll(EDGE_DEADLINE_S * 1000))


def text_of(answer: bytes) -> bytes:
    return answer.partition(b'"text":')[2].partition(b"}")[0]
