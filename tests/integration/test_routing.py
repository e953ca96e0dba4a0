"""Conversations at two Tritons: each goes on where its KV tokens are."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.frontend.gateway.key_files import KeyFile
from tests.integration.api import CHAT
from tests.integration.conftest import run_build, running_stack
from tests.integration.replicas import Frontend, frontend_of
from tests.integration.stack import Stack

NUM_CONVERSATIONS, NUM_SLOTS, NUM_TURNS = 6, 4, 4  # of one Triton: neither has room for all
WORDS = "The quick brown fox jumps over the lazy dog. "


@dataclass(eq=False)
class Conversation:
    """A chat that grows by each answer."""

    number: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    num_prompt_tokens: int = 0  # of the last turn
    num_cached: int = 0
    text: str = ""

    async def turn(self, session: aiohttp.ClientSession, text: str = "And then?", **fields: Any) -> None:
        """Ask the next question; the first one has a long text before it."""
        if not self.messages:
            self.messages.append({"role": "system", "content": f"{self.number} {WORDS * 60}"})
        self.messages.append({"role": "user", "content": text})
        body = {"model": "demo", "messages": self.messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        async with session.post(CHAT, json=body | fields) as response:
            answer = await response.json()
        assert response.status == 200, answer
        self.text = answer["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": self.text})
        self.num_prompt_tokens = answer["usage"]["prompt_tokens"]
        self.num_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def twins(demo_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Stack]]:
    """Two Tritons with few slots."""
    repository = tmp_path_factory.mktemp("twins") / "repository"
    options = ("--max-sequences", str(NUM_SLOTS), "--num-threads", "1")
    run_build("render", str(demo_artifact), "--repository", str(repository), *options)
    with ExitStack() as exits:
        yield [exits.enter_context(running_stack(repository, tmp_path_factory)) for _ in range(2)]


def total(frontend: Frontend, name: str) -> float:
    """Return the sum of a metric's samples."""
    with urllib.request.urlopen(f"{frontend.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def is_up(frontend: Frontend) -> bool:
    """Whether the frontend has heard from both engines."""
    return bool(frontend.url) and total(frontend, "conch_engine_up") == 2


async def test_conversations_go_on_where_their_tokens_are_through_any_frontend(
    twins: list[Stack], tmp_path: Path
) -> None:
    conversations = [Conversation(number) for number in range(NUM_CONVERSATIONS)]
    with frontend_of(twins, tmp_path, is_up=is_up) as first:
        async with aiohttp.ClientSession(first.url) as session:
            for number in range(NUM_TURNS):
                before = [each.num_prompt_tokens for each in conversations]
                await asyncio.gather(*(each.turn(session) for each in conversations))
                if number:
                    assert all(each.num_cached >= num for each, num in zip(conversations, before, strict=True))
    with frontend_of(twins, tmp_path, is_up=is_up) as second:
        async with aiohttp.ClientSession(second.url) as session:
            before = [each.num_prompt_tokens for each in conversations]
            await asyncio.gather(*(each.turn(session) for each in conversations))
    assert all(each.num_cached >= num for each, num in zip(conversations, before, strict=True))


async def test_a_prompt_stays_for_its_time_beside_the_prompts_of_others(twins: list[Stack]) -> None:
    kept, others = Conversation(100), [Conversation(number) for number in range(200, 200 + 4 * NUM_SLOTS)]
    async with aiohttp.ClientSession(twins[0].url) as session:
        await kept.turn(session, prompt_cache_options={"ttl": "10m"})
        for each in others:
            await each.turn(session)
        num_tokens = kept.num_prompt_tokens
        await kept.turn(session)
    assert kept.num_cached >= num_tokens


async def test_another_key_finds_nothing_of_a_conversation_at_any_replica(twins: list[Stack], tmp_path: Path) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    for name in ("alice", "bob"):
        key_file.add(name)
    with frontend_of(twins, tmp_path, f"--key-file={key_file.path}") as frontend:
        for name in ("alice", "bob"):
            async with aiohttp.ClientSession(frontend.url, headers=key_file.headers(name)) as session:
                conversations = [Conversation(number) for number in range(300, 300 + 2 * NUM_SLOTS)]
                await asyncio.gather(*(each.turn(session) for each in conversations))
                # All begin with the same few tokens of the chat template.
                assert max(each.num_cached for each in conversations) < 32, name


async def test_conversations_go_on_as_alone_when_an_engine_dies_in_a_turn(twins: list[Stack], tmp_path: Path) -> None:
    async with aiohttp.ClientSession(twins[0].url) as session:
        alone = [Conversation(number) for number in range(400, 400 + NUM_SLOTS)]
        for each in alone:
            for _ in range(NUM_TURNS):
                await each.turn(session, max_tokens=100)
    conversations = [Conversation(each.number) for each in alone]
    with frontend_of(twins, tmp_path, is_up=is_up) as frontend:
        async with aiohttp.ClientSession(frontend.url) as session:
            for number in range(NUM_TURNS):
                turns = asyncio.gather(*(each.turn(session, max_tokens=100) for each in conversations))
                if number == 1:
                    await asyncio.sleep(0.1)
                    twins[1].kill_stage("demo__engine")
                await turns
        assert total(frontend, "conch_resumed_total")
    assert [each.messages for each in conversations] == [each.messages for each in alone]
