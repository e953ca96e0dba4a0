"""Slow, eager and vanished clients on the real stack; clients that do not read are in `test_slow_readers.py`."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.frontend.connections.raw_http import answers_in
from tests.hostile.requests import post, request
from tests.integration.edge import exchange, serving
from tests.integration.stack import Stack
from tests.waiting import wait_until

MAX_IDLE_S = 30.0  # until the kernel asks a silent peer whether it is there
_ESTABLISHED, _KEEPALIVE_TIMER = "01", "02"
_JIFFIES_PER_S = 100


async def test_pipelined_requests_are_answered_in_order(stack: Stack) -> None:
    body = {"model": "demo", "prompt": "Count from 1 to 9.", "ignore_eos": True}
    raw = b"".join(
        post(body | {"max_tokens": number}).replace(b"Connection: close", b"Connection: keep-alive")
        for number in range(1, 9)
    )
    async with serving(stack) as port:
        answers = answers_in(await exchange(port, raw + request("GET", "/health/live")))
    counts = [json.loads(answer.body)["usage"]["completion_tokens"] for answer in answers[:-1]]
    assert counts == list(range(1, 9))
    assert answers[-1].status == 200


def test_a_peer_that_vanishes_is_found_by_the_kernel(stack: Stack) -> None:
    """A half-open connection sends nothing ever again: only a TCP keepalive probe tells it from a quiet one."""
    _, port = stack.url.rsplit(":", 1)
    with socket.create_connection(("127.0.0.1", int(port))) as client:
        timer, expires_s = kernel_timer(int(port), client.getsockname()[1])
    assert timer == _KEEPALIVE_TIMER
    assert 0 < expires_s <= MAX_IDLE_S


def kernel_timer(port: int, peer_port: int) -> tuple[str, float]:
    """Wait for a connection of a local port; return the kind of the timer that runs for it, and its seconds."""
    found: list[tuple[str, float]] = []

    def is_found() -> bool:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, state, _, timer, *_ = line.split()
            ports = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
            kind, _, jiffies = timer.partition(":")
            if ports == (port, peer_port) and state == _ESTABLISHED and kind != "00":
                found.append((kind, int(jiffies, 16) / _JIFFIES_PER_S))
        return bool(found)

    wait_until(is_found, "a timer runs for the connection")
    return found[0]
