"""Large bodies: refused before anything is built of them, and in bounded memory."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from frontend import app
from frontend.errors import ContextLengthExceeded, InvalidJSON
from frontend.handlers import bodies, shared_memory
from frontend.handlers.bodies import LARGE_BYTES, LargeBodies
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.reading import MAX_NAMES, MAX_VALUES, parse
from frontend.settings import Settings
from model_repository.contract.rules import prompt_too_long
from tests.fakes import DEMO, FakeTriton, chunks
from tests.frontend.answers import error_of
from tests.frontend.bodies import COMPLETION
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile
from tests.hostile import large
from tests.waiting import DEADLINE_S

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("attack", large.CROWDS)
def test_a_body_of_too_many_values_is_refused_before_anything_is_built_of_it(
    attack: large.Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, body = attack(DEMO.id)
    monkeypatch.setattr(orjson, "loads", lambda body: pytest.fail("it was parsed"))
    with pytest.raises(InvalidJSON, match=r"The body has [0-9]+ (values|names): at most [0-9]+ are read"):
        parse(CompletionRequest, body, Settings())


@pytest.mark.parametrize(
    "text", [",:[{" * 300_000, "\\" * 30_001 + '"' + "," * 30_000, '\\"' + ":" * 30_000 + '\\\\"'], ids=range(3)
)
def test_characters_inside_a_text_are_not_counted(text: str) -> None:
    request, _ = parse(CompletionRequest, json.dumps(COMPLETION | {"prompt": text}).encode(), Settings())
    assert request.prompt == [text]


@pytest.mark.parametrize(
    ("field", "limit"),
    [("[" + "1," * MAX_VALUES + "1]", MAX_VALUES), ("{" + '"a":1,' * MAX_NAMES + '"a":1}', MAX_NAMES)],
)
def test_characters_after_a_text_are_counted(field: str, limit: int) -> None:
    body = f'{{"model":"m","prompt":"\\\\\\"[","foo":{field}}}'
    with pytest.raises(InvalidJSON, match=f"at most {limit} are read"):
        parse(CompletionRequest, body.encode(), Settings())


def test_messages_are_counted_before_any_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "m", "messages": [""] * 100_000}
    monkeypatch.setattr(BaseModel, "__init__", lambda *_, **__: pytest.fail("it was built"))
    with pytest.raises(Exception, match="100000 messages are more than 4096"):
        parse(ChatCompletionRequest, json.dumps(body).encode(), Settings())


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/completions", "prompt", "a" * (2048 * 256 + 1)),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": "a" * (2048 * 128 + 1)}] * 2),
    ],
)
async def test_a_text_that_no_tokenizer_fits_into_the_window_is_refused_before_it_is_sent(
    serve: Serve, path: str, field: str, value: Any
) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton)
    error = await error_of(await http.post(path, json={"model": DEMO.id, field: value}))
    assert (error["status"], error["param"], error["code"]) == (400, field, ContextLengthExceeded.code)
    assert error["message"] == f"{field}: {prompt_too_long(2048, 'at least 2049 tokens')}"
    assert triton.requests == []
    assert (await http.post("/v1/completions", json=COMPLETION | {"prompt": "a" * 2048 * 256})).status == 200


@pytest.mark.parametrize(("ids", "place"), [([1] * 2049, "prompt"), ([[1], [1] * 2049], "prompt[1]")])
async def test_more_token_ids_than_the_window_has_are_refused_with_their_number(
    serve: Serve, ids: list[Any], place: str
) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton)
    error = await error_of(await http.post("/v1/completions", json=COMPLETION | {"prompt": ids}))
    assert (error["status"], error["param"], error["code"]) == (400, place, ContextLengthExceeded.code)
    assert error["message"] == f"{place}: {prompt_too_long(2048, '2049 tokens')}"
    error = await error_of(await http.post("/detokenize", json={"model": DEMO.id, "tokens": [1] * 2049}))
    assert (error["status"], error["param"]) == (400, "tokens")
    assert (triton.requests, triton.detokenized) == ([], [])


async def test_a_body_of_many_bytes_or_values_is_read_off_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []

    def parse_noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(*arguments)

    monkeypatch.setattr(bodies, "parse", parse_noted)
    http = await serve(FakeTriton(chunks("x")))
    for prompt in ("a" * 10, "a" * (LARGE_BYTES + 1), "a" * LARGE_BYTES, [1] * 300, [1] * 600):
        assert await http.post("/v1/completions", json=COMPLETION | {"prompt": prompt, "truncate_prompt_tokens": 1})
    assert threads == [True, False, False, True, False]


async def test_large_bodies_wait_for_memory_in_order_and_no_byte_of_it_is_lost() -> None:
    memory = LargeBodies(10, 0)
    await memory.reserve("a", 6)
    large_one = asyncio.create_task(memory.reserve("a", 5))
    small_one = asyncio.create_task(memory.reserve("a", 1))
    gone = asyncio.create_task(memory.reserve("a", 1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not (large_one.done() or small_one.done())
    gone.cancel()
    memory.release("a", 6)
    await asyncio.gather(large_one, small_one)
    await memory.reserve("a", 4)


async def test_a_sender_with_bodies_leaves_memory_to_the_others() -> None:
    memory = LargeBodies(10, kept_bytes=3)
    await memory.reserve("a", 7)
    second = asyncio.create_task(memory.reserve("a", 1))
    too_large = asyncio.create_task(memory.reserve("b", 4))
    for _ in range(5):
        await asyncio.sleep(0)
    await memory.reserve("c", 2)  # it passes both
    assert not (second.done() or too_large.done())
    memory.release("a", 5)
    await asyncio.gather(second, too_large)


async def test_the_bodies_of_several_senders_are_worked_on_in_turns() -> None:
    parsed: list[str] = []
    may_parse = threading.Event()

    def parse_noted(name: str) -> None:
        may_parse.wait(DEADLINE_S)
        parsed.append(name)

    memory = LargeBodies(10, 0)
    names = ("flood 1", "flood 2", "flood 3", "other 1")
    locks = {name: asyncio.Lock() for name in ("flood", "other")}
    tasks = [asyncio.create_task(memory.work(locks[name.split()[0]], parse_noted, name)) for name in names]
    await asyncio.sleep(0)
    may_parse.set()
    await asyncio.gather(*tasks)
    assert parsed == ["flood 1", "other 1", "flood 2", "flood 3"]


async def test_a_key_with_slow_large_requests_leaves_memory_to_another_key(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared_memory, "_WAIT_S", 0.0)
    monkeypatch.setattr(app, "MAX_LARGEST", 2)
    key_file = KeyFile(tmp_path / "keys.json")
    for name in ("slow", "other"):
        key_file.add(name)
    triton = FakeTriton(lambda request: [asyncio.Event()] if request.params.is_stream else chunks("x"))
    http = await serve(triton, max_body_bytes=200_000, key_file=str(key_file.path))

    async def status(name: str, *, stream: bool = False) -> int:
        body = json.dumps(COMPLETION | {"prompt": "a" * 150_000, "stream": stream}).encode()
        return (await http.post("/v1/completions", data=body, headers=key_file.headers(name, **JSON))).status

    slow = asyncio.create_task(status("slow", stream=True))
    await asyncio.wait_for(triton.started.wait(), DEADLINE_S)
    assert [await status("slow"), await status("other"), await status("slow")] == [503, 200, 503]
    slow.cancel()


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_the_room_of_a_large_body_is_given_back_with_the_answer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, is_chunked: bool
) -> None:
    monkeypatch.setattr(shared_memory, "_WAIT_S", 0.0)
    monkeypatch.setattr(app, "MAX_LARGEST", 1)
    triton = FakeTriton([asyncio.Event()])
    http = await serve(triton, max_body_bytes=200_000)
    body = json.dumps(COMPLETION | {"prompt": "a" * 150_000}).encode()

    async def in_pieces() -> Any:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    first = asyncio.create_task(http.post("/v1/completions", data=in_pieces() if is_chunked else body, headers=JSON))
    await asyncio.wait_for(triton.started.wait(), DEADLINE_S)
    error = await error_of(await http.post("/v1/completions", data=body, headers=JSON))
    assert (error["status"], error["code"]) == (503, "overloaded")
    triton.script = chunks("x")
    assert (await http.post("/v1/completions", json=COMPLETION)).status == 200
    first.cancel()
    await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)
    while (await http.post("/v1/completions", data=body, headers=JSON)).status == 503:
        pass
