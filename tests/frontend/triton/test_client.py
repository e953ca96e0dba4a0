"""The other calls to Triton: models, engines, reloads, tokens; and a Triton that is away."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from frontend import errors
from frontend.triton.client import TritonClient
from frontend.triton.endpoints import ModelFilter
from model_repository.contract.output import GenerationChunk, Usage, VectorChunk
from model_repository.contract.request import (
    MAX_BATCH_REQUESTS,
    ChatPrompt,
    DetokenizeRequest,
    EngineRequest,
    EngineRequestBatch,
    Prompt,
    RequestBatch,
    TextPrompt,
    TokenizeAnswer,
    TokenizeRequest,
    TokenPrompt,
    ToolUse,
)
from model_repository.contract.tensors import ENGINE_REQUESTS, TEXT, TOKENS
from model_repository.errors import InvalidRequest, PromptTooLong
from tests.fakes import chunks, served_model, stats
from tests.frontend.bodies import USER, WEATHER
from tests.frontend.test_loop_time import TIMEOUT_S, stand_still
from tests.frontend.triton.conftest import Connect
from tests.frontend.triton.generating import REQUEST, completion_of
from tests.frontend.triton.server import FakeTritonServer, infer_response, listen
from tests.waiting import DEADLINE_S


async def test_an_engine_that_does_not_answer_is_a_timeout(server: FakeTritonServer, client: TritonClient) -> None:
    server.is_engine_silent = True
    with pytest.raises(errors.TritonTimeout):
        await client.engine_stats("demo", timeout_s=0.05)


async def test_a_frontend_that_is_busy_itself_takes_no_engine_for_lost(client: TritonClient) -> None:
    # Large bodies kept the event loop busy for longer than an engine's deadline, twice: the engine was reloaded.
    asking = asyncio.create_task(client.engine_stats("demo", timeout_s=TIMEOUT_S))
    listing = asyncio.create_task(client.snapshot())
    for _ in range(3):
        await stand_still()
    assert (await asking, list((await listing).ready)) == (stats(7), [])


@pytest.mark.parametrize("garbage", ["", "{", "{}", "[1]", "null", '{"epoch": 7}', "\xff"])
async def test_an_engine_that_answers_garbage_has_failed(
    server: FakeTritonServer, client: TritonClient, garbage: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.garbage = garbage or " "
    with pytest.raises(errors.BadAnswer):
        await client.engine_stats("demo", timeout_s=10)
    assert "makes no sense" in caplog.text


ENCODED = EngineRequestBatch("", ((0, EngineRequest(prompt_token_ids=(1,), max_tokens=5)),))


@pytest.mark.parametrize(
    "answer",
    [
        infer_response(TOKENS, b"\xc1"),  # no MessagePack
        infer_response(TOKENS, b"\x81\xa9token_ids\x91\x05"),  # without the strings
        infer_response(TOKENS),
        ENCODED,  # in another tensor
    ],
)
async def test_a_tokenizer_that_answers_garbage_has_failed(
    server: FakeTritonServer, client: TritonClient, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    server.tokenizer_answer = answer
    with pytest.raises(errors.BadAnswer):
        await client.tokenize("demo", TextPrompt("x"), add_special_tokens=True)
    assert "makes no sense" in caplog.text


async def test_models_are_ready_ensembles_with_our_parameters(server: FakeTritonServer, client: TritonClient) -> None:
    model = served_model(aliases=("gpt-4o",), adapters=("formal",), defaults={"chat_max_tokens": None})
    ours = model.parameters.to_config()
    server.index = [
        ("org--demo", "READY"),
        ("org--demo__engine", "READY"),
        ("foreign", "READY"),
        ("plain", "READY"),
        ("gone", "READY"),
        ("org--broken", "UNAVAILABLE"),
        ("org--never", ""),
        ("org--broken__engine", "UNAVAILABLE"),
    ]
    server.configs = {"org--demo": ("ensemble", ours), "foreign": ("ensemble", {}), "plain": ("", ours)}
    snapshot = await client.snapshot()
    assert snapshot.ready == {"org/demo": model}
    assert snapshot.unready == {"org/broken": "unavailable", "gone": "unavailable"}, (
        "gone: unloaded since its state was read"
    )


async def test_the_replicas_of_a_model_are_one_model_which_is_ready_if_one_of_them_is(
    server: FakeTritonServer, client: TritonClient
) -> None:
    replicas = {
        f"org--demo{suffix}": served_model(replica=number) for suffix, number in (("", 1), ("@2", 2), ("@3", 3))
    }
    server.configs = {name: ("ensemble", model.parameters.to_config()) for name, model in replicas.items()}
    server.index = [("org--demo@3", "READY"), ("org--demo@2", "READY"), ("org--demo", "UNAVAILABLE")]
    snapshot = await client.snapshot()
    assert (set(snapshot.ready), snapshot.unready) == ({"org/demo"}, {})
    assert snapshot.replicas_of("org/demo") == ["org--demo@2", "org--demo@3"]
    assert snapshot.by_ensemble["org--demo@3"] == replicas["org--demo@3"]
    server.index = [("org--demo@2", "UNAVAILABLE"), ("org--demo", "LOADING")]
    snapshot = await client.snapshot()
    assert (set(snapshot.ready), set(snapshot.unready)) == (set(), {"org/demo"})


async def test_models_that_are_not_offered_are_not_seen_whatever_their_state(
    server: FakeTritonServer, connect: Connect
) -> None:
    server.index = [("org--demo", "READY"), ("other", "READY"), ("broken", "UNAVAILABLE")]
    parameters = {name: ("ensemble", served_model(name.replace("--", "/"))) for name, _ in server.index}
    server.configs = {name: (kind, model.parameters.to_config()) for name, (kind, model) in parameters.items()}
    model_filter = ModelFilter(["org/demo"])
    client = await connect(server, offered=model_filter)
    snapshot = await client.snapshot()
    assert (set(snapshot.ready), set(snapshot.unready)) == ({"org/demo"}, set())
    assert await client.repository.ensembles() == {"org--demo"}
    model_filter.add(["broken"])
    assert (await client.snapshot()).unready == {"broken": "unavailable"}


async def test_adapters_are_those_that_the_engine_named_last(server: FakeTritonServer, client: TritonClient) -> None:
    model = served_model(adapters=("formal",))
    server.index = [("org--demo", "READY")]
    server.configs = {"org--demo": ("ensemble", model.parameters.to_config())}

    async def adapters() -> tuple[str, ...]:
        return tuple((await client.snapshot()).ready["org/demo"].parameters.adapters)

    assert await adapters() == ("formal",)
    server.adapters = {"formal": "", "polite": "teams/polite"}
    await client.engine_stats("org--demo", timeout_s=10)
    assert await adapters() == ("formal", "polite")
    server.adapters = {}
    await client.engine_stats("org--other", timeout_s=10)
    assert await adapters() == ("formal", "polite")
    await client.unload_adapter("org--demo", "polite")
    assert await adapters() == ()


async def test_a_reload_is_the_stage_and_then_the_ensembles(server: FakeTritonServer, client: TritonClient) -> None:
    ensembles = ["demo", "demo__requests", "demo__outputs"]
    server.index = [*((name, "UNAVAILABLE") for name in ensembles), ("demo__engine", "READY")]
    await client.repository.unload("demo__engine")
    await client.repository.load("demo", "demo__engine")
    loads = [f"load {name}" for name in ("demo__engine", *ensembles)]
    assert server.repository_calls == ["unload demo__engine", *loads]


async def test_an_ensemble_that_is_ready_is_not_loaded_again(server: FakeTritonServer, client: TritonClient) -> None:
    # It took the engine with it: Triton loads every stage whose folder has changed, and Python had cached its model.py.
    server.index = [(f"demo{part}", "READY") for part in ("", "__requests", "__outputs", "__detokenizer")]
    await client.repository.load("demo", "demo__detokenizer")
    assert server.repository_calls == ["load demo__detokenizer"]


@pytest.mark.parametrize("key", ["", "wrong" * 10])
async def test_without_tritons_key_models_are_served_but_not_loaded(
    server: FakeTritonServer, connect: Connect, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = served_model()
    server.key = "right" * 10
    server.index = [("org--demo", "READY"), ("org--demo__engine", "READY"), ("broken", "UNAVAILABLE")]
    server.configs = {"org--demo": ("ensemble", model.parameters.to_config())}
    server.script = list(chunks("a"))
    client = await connect(server, key=key)
    for _ in range(2):
        snapshot = await client.snapshot()
        assert (snapshot.ready, snapshot.unready) == ({"org/demo": model}, {})
    assert await completion_of(client) == chunks("a")
    for refused in (
        client.repository.ensembles(),
        client.repository.unload("broken"),
        client.repository.load("broken", "broken__engine"),
    ):
        with pytest.raises(errors.TritonKeyRefused, match="CONCH_TRITON_KEY"):
            await refused
    assert not server.repository_calls
    [warning] = caplog.messages
    assert " CONCH_TRITON_KEY is not Triton's key." in warning


@pytest.mark.parametrize(
    "ask",
    [
        completion_of,
        lambda client: client.snapshot(),
        lambda client: client.engine_stats("demo", 10),
        lambda client: client.tokenize("demo", TextPrompt("x"), add_special_tokens=True),
        lambda client: client.detokenize("demo", [1], has_special_tokens=True),
    ],
)
async def test_without_triton_every_call_says_so_at_once(ask: Callable[[TritonClient], Any]) -> None:
    listener, port = await listen(FakeTritonServer())
    await listener.stop(None)
    client = TritonClient(f"127.0.0.1:{port}")
    with pytest.raises(errors.TritonUnreachable):
        await asyncio.wait_for(ask(client), DEADLINE_S)
    await client.close()


@pytest.mark.parametrize(
    "prompt",
    [
        TextPrompt("Grüße 🙂"),
        TokenPrompt((1, 2)),
        ChatPrompt(messages=(USER,), tool_use=ToolUse(tools=(WEATHER,)), template_kwargs={"a": 1}),
    ],
)
@pytest.mark.parametrize("add_special_tokens", [True, False])
async def test_a_prompt_is_tokenized_by_the_models_own_stage(
    server: FakeTritonServer, client: TritonClient, prompt: Prompt, add_special_tokens: bool
) -> None:
    server.tokenizer_answer = TokenizeAnswer((5, 6), ("Ġé", "\ufffd"))
    answer = await client.tokenize("demo", prompt, add_special_tokens=add_special_tokens, sender="a", has_strings=True)
    assert answer == server.tokenizer_answer
    assert server.tokenized == [("demo__tokenizer", TokenizeRequest(prompt, add_special_tokens, "a"))]
    await client.tokenize("demo", prompt, add_special_tokens=add_special_tokens)
    assert server.tokenized[1:] == [("demo__tokenizer", TokenizeRequest(prompt, add_special_tokens, has_strings=False))]


async def test_a_request_is_checked_by_the_models_own_stage(server: FakeTritonServer, client: TritonClient) -> None:
    server.tokenizer_answer = ENCODED
    request = replace(REQUEST, request_id="a/1")
    await client.check("demo", [(3, request)])
    assert server.tokenized == [("demo__tokenizer", RequestBatch("", ((3, request),)))]
    message = PromptTooLong("the prompt has 9 tokens", "text_input").message()
    for refusal in (EngineRequestBatch("", ((0, message),)), message):  # an item, or of the whole batch
        server.tokenizer_answer = refusal
        with pytest.raises(errors.ContextLengthExceeded, match=r"^prompt: the prompt has 9 tokens"):
            await client.check("demo", [(3, request)])


async def test_the_error_of_a_check_has_the_number_of_the_request(
    server: FakeTritonServer, client: TritonClient
) -> None:
    refused = PromptTooLong("the prompt has 9 tokens", "text_input").message()
    server.tokenizer_answer = EngineRequestBatch("", (*ENCODED.items, (3, refused)))
    with pytest.raises(errors.ContextLengthExceeded) as caught:
        await client.check("demo", [(0, REQUEST), (3, REQUEST)])
    assert caught.value.index == 3


async def test_many_requests_are_checked_in_few_calls(server: FakeTritonServer, client: TritonClient) -> None:
    server.tokenizer_answer = EngineRequestBatch("", ENCODED.items * MAX_BATCH_REQUESTS)
    numbered = [(number, REQUEST) for number in range(4 * MAX_BATCH_REQUESTS)]
    await client.check("demo", numbered)
    batches = [RequestBatch("", batch) for batch in itertools.batched(numbered, MAX_BATCH_REQUESTS)]
    assert server.tokenized == [("demo__tokenizer", batch) for batch in batches]


@pytest.mark.parametrize(
    "answer",
    [infer_response(ENGINE_REQUESTS, b"\xc1"), EngineRequestBatch("", ()), EngineRequestBatch("", ENCODED.items * 2)],
)
async def test_a_check_that_is_answered_with_garbage_has_failed(
    server: FakeTritonServer, client: TritonClient, answer: Any
) -> None:
    server.tokenizer_answer = answer
    with pytest.raises(errors.BadAnswer):
        await client.check("demo", [(0, REQUEST)])


async def test_vectors_come_from_the_engine_itself(server: FakeTritonServer, client: TritonClient) -> None:
    """Behind an ensemble, it did not see that a frontend was gone."""
    server.configs = {"demo": ("ensemble", served_model("demo", pooling="mean").parameters.to_config())}
    await client.snapshot()
    vector = VectorChunk(embedding=bytes(8), usage=Usage(num_input_tokens=1, num_output_tokens=0))
    server.script = [GenerationChunk(text=""), vector]
    async with client.generations.running("demo", REQUEST) as attempt:
        assert await attempt.get() == vector
    assert set().union(*server.models_called) == {"demo__engine", "demo__requests"}


@pytest.mark.parametrize("has_special_tokens", [True, False])
async def test_token_ids_are_detokenized_by_the_models_own_stage(
    server: FakeTritonServer, client: TritonClient, has_special_tokens: bool
) -> None:
    server.tokenizer_answer = infer_response(TEXT, "é🙂".encode())
    assert await client.detokenize("demo", [5, 6], has_special_tokens=has_special_tokens, sender="a") == "é🙂"
    assert server.tokenized == [("demo__tokenizer", DetokenizeRequest((5, 6), has_special_tokens, "a"))]


async def test_token_ids_that_are_refused_are_the_clients_mistake(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.tokenizer_answer = InvalidRequest("9 is no token", "detokenize").message()
    with pytest.raises(errors.InvalidRequest, match=r"^tokens: 9 is no token"):
        await client.detokenize("demo", [9], has_special_tokens=True)


async def test_a_stage_that_ends_without_an_answer_has_failed(server: FakeTritonServer, client: TritonClient) -> None:
    server.is_detokenizer_silent = True
    with pytest.raises(errors.EngineFailed):
        await client.check_detokenizer("demo")
