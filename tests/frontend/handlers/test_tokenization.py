"""/tokenize and /detokenize over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from model_repository.contract.request import ChatPrompt, TextPrompt, ToolUse
from tests.fakes import DEMO, FakeTriton, chunks, served_model
from tests.frontend.bodies import COMPLETION, USER, WEATHER
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile


@pytest.mark.parametrize(("wanted", "strings"), [(True, ["Ġa", "b"]), (False, None), (None, None)])
async def test_a_text_is_tokenized_in_vllms_form(serve: Serve, wanted: bool | None, strings: Any) -> None:
    http = await serve(FakeTriton())
    answer = await http.post("/tokenize", json=COMPLETION | {"return_token_strs": wanted})
    assert await answer.json() == {"count": 2, "max_model_len": 2048, "tokens": [5, 6], "token_strs": strings}


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"prompt": "hi"}, (TextPrompt("hi"), True)),
        ({"prompt": "hi", "add_special_tokens": False}, (TextPrompt("hi"), False)),
        ({"messages": [USER]}, (ChatPrompt(messages=(USER,)), True)),
        (
            {"messages": "hi", "tools": [WEATHER]},
            (ChatPrompt(messages=(USER,), tool_use=ToolUse(tools=(WEATHER,))), True),
        ),
    ],
)
async def test_the_prompt_reaches_the_tokenizer(serve: Serve, fields: dict[str, Any], asked: Any) -> None:
    triton = FakeTriton()
    http = await serve(triton)
    assert (await http.post("/tokenize", json={"model": DEMO.id} | fields)).status == 200
    assert triton.tokenized == [asked]


async def test_token_ids_are_text_with_their_special_tokens(serve: Serve) -> None:
    triton = FakeTriton()
    http = await serve(triton)
    answer = await http.post("/detokenize", json={"model": DEMO.id, "tokens": [7, 8]})
    assert await answer.json() == {"prompt": "<7><8>"}
    assert triton.detokenized == [((7, 8), True)]


async def test_one_sender_has_one_text_detokenized_at_a_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Streams waited for all of the token ids that one sender had sent."""
    key_file = KeyFile(tmp_path / "keys.json")
    for name in ("flood", "other"):
        key_file.add(name)
    running: list[list[int]] = []
    most_running = 0
    is_done = asyncio.Event()

    async def detokenize(ensemble: str, token_ids: Sequence[int], *, has_special_tokens: bool, sender: str) -> str:
        nonlocal most_running
        running.append(list(token_ids))
        most_running = max(most_running, running.count([1]))
        if list(token_ids) == [1]:
            await is_done.wait()
        running.remove(list(token_ids))
        return ""

    triton = FakeTriton(chunks("x"))
    monkeypatch.setattr(triton, "detokenize", detokenize)
    http = await serve(triton, key_file=str(key_file.path))

    async def status(name: str, path: str, **body: Any) -> int:
        async with http.post(path, json={"model": DEMO.id, **body}, headers=key_file.headers(name)) as answer:
            return answer.status

    flood = [
        asyncio.create_task(status("flood", "/detokenize", tokens=[1])),
        asyncio.create_task(status("flood", "/v1/completions", prompt=[[1], [1]], logprobs=1)),
    ]
    assert await status("other", "/detokenize", tokens=[2]) == 200
    is_done.set()
    assert await asyncio.gather(*flood) == [200, 200]
    assert most_running == 1


async def test_models_have_all_their_names_here_too(serve: Serve) -> None:
    model = served_model("org/a", aliases=("gpt-4o",), adapters=("formal",), context_window=77)
    http = await serve(FakeTriton(models=[model]), default_model="gpt-4o")
    for named in ({"model": "gpt-4o"}, {"model": "formal"}, {}):
        answer = await http.post("/tokenize", json={"prompt": "x"} | named)
        assert (await answer.json())["max_model_len"] == 77
        assert (await http.post("/detokenize", json={"tokens": []} | named)).status == 200
