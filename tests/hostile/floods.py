"""Floods of one sender, each with the requests of another sender beside it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from frontend.protocol.completion import MAX_CHOICES
from tests.documents import data_uri
from tests.frontend.connections.raw_http import narrow_connection
from tests.hostile import large
from tests.hostile.requests import CHAT, COMPLETIONS, MESSAGES, MODEL, RESPONSES, post
from tests.integration.edge import exchange
from tests.pictures import jpeg_of_scans

EMBEDDER = "embedder"  # the id of a model that embeds
EMBEDDINGS = "/v1/embeddings"
COUNT_TOKENS, INPUT_TOKENS = f"{MESSAGES}/count_tokens", f"{RESPONSES}/input_tokens"


class Sender:
    """A client of a server on this machine. Each of its requests has a connection of its own.

    Args:
        headers: of every request, such as its key.
    """

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self.port = port
        self._headers = tuple(f"{field}: {value}" for field, value in headers.items())

    def request(self, body: Any, path: str = COMPLETIONS) -> bytes:
        """Return a request; a body in bytes is sent as it is, another one as JSON without white space."""
        raw = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        return post(raw, path, self._headers)

    def completion(self, **fields: Any) -> bytes:
        return self.request({"model": MODEL, "prompt": "a", **fields})

    async def send(self, raw: bytes) -> int:
        """Return the status of the answer; 0 without one."""
        answer = await exchange(self.port, raw)
        return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


type Flood = Callable[[Sender], Awaitable[None]]
type RequestOf = Callable[[Sender, int], bytes]  # takes a number that no other request has


@dataclass(frozen=True, slots=True)
class Attack:
    """A flood without an end, and the requests that another sender sends one after the other."""

    flood: Flood
    request_of: RequestOf


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


def always_new(number: int, raw_of: RequestOf) -> Flood:
    """Return a flood of requests that all differ, this many at once."""

    async def flood(alice: Sender) -> None:
        numbers = itertools.count()
        await endless(number, lambda: alice.send(raw_of(alice, next(numbers))))

    return flood


async def _slow_readers(alice: Sender) -> None:
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


async def _hang_ups(alice: Sender) -> None:
    raw = alice.completion(prompt=["a b c"] * MAX_CHOICES, max_tokens=200, stream=True)

    async def hang_up() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", alice.port)
        writer.write(raw)
        try:
            await asyncio.sleep(0.3)
        finally:
            writer.transport.abort()

    await endless(4, hang_up)


def unread(number: int, raw_of: Callable[[Sender], bytes]) -> Flood:
    """Return a flood of clients that read nothing of their answers, and hang up after two seconds."""

    async def flood(alice: Sender) -> None:
        raw = raw_of(alice)

        async def once() -> None:
            with narrow_connection(alice.port) as client:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(client, raw)
                await asyncio.sleep(2)

        await endless(number, once)

    return flood


def tokenize_body(num_bytes: int) -> dict[str, Any]:
    """Return a text to tokenize of this size."""
    return {"model": MODEL, "prompt": " ".join(map(str, range(num_bytes)))[:num_bytes]}


def new_text(number: int, num_bytes: int = 15_000) -> str:
    """Return a text that no other number has."""
    words = (f"a{number}b{index}" for index in itertools.count())
    text, size = [], 0
    for word in words:
        text.append(word)
        size += len(word) + 1
        if size >= num_bytes:
            return " ".join(text)
    raise AssertionError("the words have no end")


def turns(number: int, num_turns: int) -> list[dict[str, Any]]:
    """Return a conversation of user's turns in which this number's texts are new."""
    return [{"role": "user", "content": f"{number} says {index}"} for index in range(num_turns)]


def schema_of_references(depth: int = 60, width: int = 12_000, num_references: int = 50) -> dict[str, Any]:
    """Return a schema of some 50 kB that refers to each of its own nested parts."""
    inner: dict[str, Any] = {"prefixItems": [{}] * width}
    for _ in range(depth):
        inner = {"items": inner}
    references = [{"$ref": "#" + "/items" * (level + 1)} for level in range(num_references)]
    return inner | {"prefixItems": references, "allOf": references}


def tools_of_choices(num_tools: int = 40, num_choices: int = 90) -> list[dict[str, Any]]:
    """Return tools in which each parameter list has a `oneOf` of many constants."""
    parameters = {"type": "object", "oneOf": [{"const": number} for number in range(num_choices)]}
    return [{"type": "function", "function": {"name": f"f{n}", "parameters": parameters}} for n in range(num_tools)]


def _schema_by_chat(alice: Sender) -> bytes:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema_of_references()}}
    return alice.request({"model": MODEL, "messages": turns(0, 1), "max_tokens": 4, "response_format": form}, CHAT)


def _schema_by_messages(alice: Sender) -> bytes:
    tool = {"name": "a", "input_schema": {"type": "object"} | schema_of_references()}
    return alice.request({"model": MODEL, "messages": turns(0, 1), "max_tokens": 4, "tools": [tool]}, MESSAGES)


def _schema_by_responses(alice: Sender) -> bytes:
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema_of_references()}}
    return alice.request({"model": MODEL, "input": "a", "max_output_tokens": 16, "text": text}, RESPONSES)


def _many_tools(alice: Sender) -> bytes:
    chat = {"model": MODEL, "messages": turns(0, 1), "max_tokens": 4, "tools": tools_of_choices()}
    return alice.request(chat, CHAT)


def _log_probabilities(alice: Sender) -> bytes:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Count from 1 to 500."}], "ignore_eos": True}
    return alice.request(chat | {"n": 64, "max_tokens": 500, "logprobs": True, "top_logprobs": 20}, CHAT)


def _with_grammar(alice: Sender, grammar: str) -> bytes:
    fields = {"max_tokens": 300, "min_tokens": 250, "structured_outputs": {"grammar": grammar}}
    return alice.completion(prompt="1 1 Count:", **fields)


def _large_grammar(alice: Sender, number: int) -> bytes:
    """Return a request with a small grammar of one text of 2 ** 19 characters."""
    rules = "\n".join(["root ::= r0", *(f"r{level} ::= r{level + 1} r{level + 1}" for level in range(19))])
    return alice.completion(structured_outputs={"grammar": f'{rules}\nr19 ::= "{number:x}"'}, max_tokens=4)


def _count(alice: Sender, number: int) -> bytes:
    messages = [{"role": "user", "content": new_text(number)}]
    return alice.request({"model": MODEL, "messages": messages}, COUNT_TOKENS)


def _input_tokens(alice: Sender, number: int) -> bytes:
    return alice.request({"model": MODEL, "input": new_text(number)}, INPUT_TOKENS)


def _messages_to_tokenize(alice: Sender, number: int) -> bytes:
    return alice.request({"model": MODEL, "messages": turns(number, 401)}, "/tokenize")


def _truncated(num_turns: int) -> RequestOf:
    def raw_of(alice: Sender, number: int) -> bytes:
        body = {"model": MODEL, "input": turns(number, num_turns), "truncation": "auto", "max_output_tokens": 16}
        return alice.request(body, RESPONSES)

    return raw_of


def _vectors(alice: Sender) -> bytes:
    return alice.request({"model": EMBEDDER, "input": ["a"] * 2048}, EMBEDDINGS)


def _instructions(alice: Sender) -> bytes:
    body = {"model": MODEL, "input": "a", "instructions": "a " * 3000, "max_output_tokens": 16, "stream": True}
    return alice.request(body, RESPONSES)


def _picture(alice: Sender) -> bytes:
    url = f"data:image/jpeg;base64,{base64.b64encode(jpeg_of_scans(400, side=1024)).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    return alice.request(
        {"model": MODEL, "messages": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]}, CHAT
    )


def _document(alice: Sender) -> bytes:
    """Return a chat with a web page that nests without an end."""
    file = {"file_data": data_uri(b"<!doctype html>" + b"<div>" * 200_000, "text/html")}
    content = [{"type": "file", "file": file}]
    return alice.request({"model": MODEL, "messages": [{"role": "user", "content": content}]}, CHAT)


def _token_ids(alice: Sender) -> bytes:
    path, body = large.token_ids(MODEL)
    return alice.request(body, path)


def _to_detokenize(alice: Sender) -> bytes:
    return alice.request({"model": MODEL, "tokens": [300] * 2000}, "/detokenize")


def short(bob: Sender, number: int) -> bytes:
    return bob.completion(prompt="The capital of Peru", max_tokens=8)


def _chat(bob: Sender, number: int) -> bytes:
    messages = [{"role": "user", "content": "What is the capital of Peru?"}]
    return bob.request({"model": MODEL, "messages": messages, "max_tokens": 8}, CHAT)


def _message(bob: Sender, number: int) -> bytes:
    messages = [{"role": "user", "content": "What is the capital of Peru?"}]
    return bob.request({"model": MODEL, "messages": messages, "max_tokens": 8}, MESSAGES)


def _response(bob: Sender, number: int) -> bytes:
    return bob.request({"model": MODEL, "input": "What is the capital of Peru?", "max_output_tokens": 16}, RESPONSES)


def _one_token(bob: Sender, number: int) -> bytes:
    return bob.completion(prompt="The capital of Peru", max_tokens=1)


def _embedding(bob: Sender, number: int) -> bytes:
    return bob.request({"model": EMBEDDER, "input": f"Where does cat {number} sleep?"}, EMBEDDINGS)


def _of_100_kb(bob: Sender, number: int) -> bytes:
    return bob.request(b'{"model":"%s","prompt":"a","max_tokens":8%s}' % (MODEL.encode(), b" " * 100_000))


def _with_a_grammar(bob: Sender, number: int) -> bytes:
    return bob.completion(response_format={"type": "regex", "regex": f"[a-c]{{3}}{number}"}, max_tokens=8)


def _text_of_20_kb(bob: Sender, number: int) -> bytes:
    return bob.request(tokenize_body(20_000), "/tokenize")


_TOO_LONG: Sequence[str] = ["a b c"] * (MAX_CHOICES - 1) + ["a " * 4500]  # the last prompt: so all are refused
AMBIGUOUS, REPEATED = "root ::= s\ns ::= s s | [a-z0-9 ]", "root ::= [a-z ]{1,2000}"

ATTACKS: Mapping[str, Attack] = {
    "one wide request": Attack(
        repeated(1, lambda alice: alice.completion(n=MAX_CHOICES, max_tokens=2000, ignore_eos=True)), short
    ),
    "lists of prompts": Attack(
        repeated(4, lambda alice: alice.completion(prompt=["a"] * MAX_CHOICES, max_tokens=1)), short
    ),
    "slow readers": Attack(_slow_readers, short),
    "hang-ups": Attack(_hang_ups, short),
    "refusals": Attack(repeated(4, lambda alice: alice.completion(prompt=_TOO_LONG, max_tokens=200)), short),
    "grammars": Attack(always_new(8, _large_grammar), _with_a_grammar),
    "large bodies": Attack(repeated(16, _token_ids), short),
    "large bodies beside another": Attack(repeated(16, _token_ids), _of_100_kb),
    "unfinished bodies": Attack(repeated(40, lambda alice: _token_ids(alice)[:200_000]), _of_100_kb),
    "token ids to detokenize": Attack(repeated(40, _to_detokenize), short),
    "texts to tokenize": Attack(
        repeated(40, lambda alice: alice.request(tokenize_body(450_000), "/tokenize")), _text_of_20_kb
    ),
    "silent connections": Attack(repeated(500, lambda alice: b"POST"), short),
    "schemas of chats": Attack(repeated(2, _schema_by_chat), _chat),
    "schemas of Messages": Attack(repeated(2, _schema_by_messages), _message),
    "schemas of Responses": Attack(repeated(2, _schema_by_responses), _response),
    "tools with many choices": Attack(repeated(2, _many_tools), _chat),
    "log probabilities": Attack(repeated(2, _log_probabilities), _chat),
    "an ambiguous grammar": Attack(repeated(15, lambda alice: _with_grammar(alice, AMBIGUOUS)), short),
    "counted repeats": Attack(repeated(15, lambda alice: _with_grammar(alice, REPEATED)), short),
    "counts of Messages": Attack(always_new(60, _count), _message),
    "counts of Responses": Attack(always_new(60, _input_tokens), _response),
    "short messages to tokenize": Attack(always_new(60, _messages_to_tokenize), short),
    # Each token comes some 20 ms later while the engine reads long prompts (`PrefillBudget`), and these are long.
    "conversations to truncate": Attack(always_new(40, _truncated(380)), _one_token),
    "long conversations to truncate": Attack(always_new(8, _truncated(3900)), _one_token),
    "instructions in streams": Attack(unread(40, _instructions), _response),
    "pictures of many scans": Attack(repeated(8, _picture), _chat),
    "documents without an end": Attack(repeated(8, _document), _chat),
    "vectors": Attack(unread(16, _vectors), _embedding),
}
