"""A thousand hostile requests over raw sockets: the server does not crash, hang or leak, and serves the next one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable

import pytest
import uvloop

from tests.hostile import bodies, framing, images, names
from tests.hostile.requests import MESSAGES, Corpus, Hostile, completion
from tests.integration.edge import exchange, open_files, serving
from tests.integration.stack import Stack
from tests.waiting import DEADLINE_S

FAMILIES: tuple[Callable[[], Corpus], ...] = (
    framing.smuggling,
    framing.chunking,
    framing.lines,
    framing.methods,
    names.paths,
    names.headers,
    names.not_utf8,
    names.encodings,
    bodies.bombs,
    bodies.injections,
    bodies.explosions,
    bodies.floods,
    images.images,
)
NUM_AT_ONCE = 16
NUM_LEAK_CHECKS = 6000  # one every 10 ms

# Words of the implementation that no answer may contain. The requests do not contain them.
INTERNAL = re.compile(
    r"Traceback|\.py\b|site-packages|/usr/|/tmp/|/root/|/home/|/proc/|0x[0-9a-f]{6}|<class|object at|NoneType|"
    r"bytearray|aiohttp|pydantic|orjson|jinja|numpy|grpc|llguidance|cyllama|tritonserver|Error:|Exception"
)


def test_the_corpus_is_large_and_each_of_its_requests_is_another() -> None:
    requests = [hostile for family in FAMILIES for hostile in family()]
    assert len({hostile.raw for hostile in requests}) >= 1200
    assert len({hostile.raw for hostile in images.images()}) >= 200


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_nothing_hostile_does_any_harm(
    stack: Stack, family: Callable[[], Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_framing = (
        family.__module__ == framing.__name__
    )  # other families send whole requests, which may take long to read
    if is_framing:
        monkeypatch.setattr("frontend.connections.connection.HEADER_TIMEOUT_S", 1.0)
        monkeypatch.setattr("frontend.handlers.bodies.BODY_TIMEOUT_S", 1.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        complaints = runner.run(attack(stack, list(family()), idle_timeout_s=1.0 if is_framing else DEADLINE_S))
    assert not complaints, "\n".join(complaints)
    stack.wait_until_idle("demo")


async def attack(stack: Stack, requests: list[Hostile], idle_timeout_s: float) -> list[str]:
    """Send all requests to a frontend of their own; return what was wrong."""
    # On a busy machine an explosion takes long. With the usual limit, the requests behind it would be refused with 503.
    async with serving(
        stack, max_body_bytes=1_000_000, max_queue_wait_s=DEADLINE_S, idle_timeout_s=idle_timeout_s
    ) as port:
        assert b" 200 " in await exchange(port, completion())
        num_tasks, num_files = len(asyncio.all_tasks()), open_files()
        gate = asyncio.Semaphore(NUM_AT_ONCE)

        async def complaint(hostile: Hostile) -> str | None:
            async with gate:
                found = what_is_wrong(hostile, await exchange(port, hostile.raw))
            return f"{hostile.name}: {found}" if found else None

        complaints = [found for found in await asyncio.gather(*map(complaint, requests)) if found]
        assert b" 200 " in await exchange(port, completion())
        for _ in range(NUM_LEAK_CHECKS):
            if len(asyncio.all_tasks()) <= num_tasks and open_files() <= num_files:
                return complaints
            await asyncio.sleep(0.01)
        return [*complaints, f"left behind: {len(asyncio.all_tasks())} tasks, {open_files()} files"]


def what_is_wrong(hostile: Hostile, received: bytes) -> str | None:
    """Check the answers to one request; no bytes at all are a clean close."""
    num_answers = 0
    while received:
        head, separator, rest = received.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
        size = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if not separator or found is None:
            return f"no answer: {received[:80]!r}"
        status = int(found[1])
        if status == 100:
            received = rest
            continue
        num_answers += 1
        is_head = hostile.raw.startswith(b"HEAD") or status == 204
        num_bytes = 0 if is_head or size is None else int(size[1])
        body, received = rest[:num_bytes], rest[num_bytes:]
        if complaint := what_is_wrong_with(status, head, body, hostile, is_head=is_head):
            return complaint
    return f"{num_answers} answers" if num_answers > hostile.max_answers else None


def what_is_wrong_with(status: int, head: bytes, body: bytes, hostile: Hostile, *, is_head: bool) -> str | None:
    """Check one answer."""
    if status >= 500 or (hostile.statuses and status not in hostile.statuses):
        return f"status {status}: {body[:300]!r}"
    if b"x-evil" in head.lower():
        return f"an injected header: {head!r}"
    if found := INTERNAL.search(head.decode("latin-1")):
        return f"{found[0]!r} in {head!r}"
    if status < 400 or is_head:
        return None
    text = body.decode("utf-8")
    if found := INTERNAL.search(text):
        return f"{found[0]!r} in {text[:300]!r}"
    error = json.loads(text).get("error", {})
    names = {"message", "type"} if f"POST {MESSAGES}".encode() in hostile.raw else {"message", "type", "param", "code"}
    return None if set(error) == names and error["message"] else f"envelope: {text[:99]}"
