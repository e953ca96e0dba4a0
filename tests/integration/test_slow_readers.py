"""Clients that stop reading, on the real stack."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from tests.hostile.requests import CHAT, completion, post
from tests.integration.edge import exchange, serving
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL, Stack, wait_until

MAX_TOKENS = 1900  # of each completion: nineteen seconds


def test_a_reader_that_stalls_frees_the_engine_and_leaves_others_alone(stack: Stack) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        alone, beside = runner.run(stall(stack))
    assert alone
    assert alone == beside
    stack.wait_until_idle(PACED_MODEL)


async def stall(stack: Stack) -> tuple[bytes, bytes]:
    """Let a client stall until it is cut; return what another one was answered before and meanwhile."""
    async with serving(stack, stalled_reader_s=0.3) as port:
        alone = await exchange(port, completion(temperature=0, max_tokens=20))
        num_cancelled = stack.stats(PACED_MODEL).num_cancelled + MAX_SEQUENCES
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", port))
            messages = [{"role": "user", "content": "x"}]
            body = {"model": PACED_MODEL, "messages": messages, "stream": True, "n": MAX_SEQUENCES}
            client.sendall(post(body | {"max_tokens": MAX_TOKENS}, CHAT))
            beside = await exchange(port, completion(temperature=0, max_tokens=20))
            await asyncio.to_thread(
                wait_until, lambda: is_cancelled(stack, num_cancelled), "the generation is cancelled"
            )
    return text_of(alone), text_of(beside)


def is_cancelled(stack: Stack, num_cancelled: int) -> bool:
    """Whether so many sequences have ended before their time."""
    return stack.stats(PACED_MODEL).num_cancelled >= num_cancelled


def text_of(answer: bytes) -> bytes:
    """Return the completion's text as it stands in the answer."""
    return answer.partition(b'"text":')[2].partition(b"}")[0]
