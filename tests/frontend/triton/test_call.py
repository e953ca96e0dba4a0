"""The frontend's call to a model: opened once, shared by all requests, and what becomes of each request alone."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from msgspec.structs import replace

from frontend import errors
from frontend.triton import call
from frontend.triton.chunk_queue import Announced
from frontend.triton.client import TritonClient
from model_repository.contract.output import Announcement, FinishReason, GenerationChunk, Timing, Usage
from model_repository.contract.request import (
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    StructuredOutput,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.errors import InvalidRequest, Overloaded, Unloading
from tests.fakes import chunks, served_model
from tests.frontend.bodies import USER, WEATHER
from tests.frontend.triton.generating import (
    CANCEL,
    REQUEST,
    WHOLE,
    completion_of,
    endless,
    failure_of,
    generated,
    running,
    text,
    the_stream,
    with_params,
)
from tests.frontend.triton.server import FakeTritonServer, Script
from tests.frontend.triton.test_failures import DOWN
from tests.waiting import DEADLINE_S, wait_until

# --- opening ----------------------------------------------------------------------------------------------------------


async def test_after_many_output_batches_the_next_request_opens_another_stream_and_the_others_keep_theirs(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Triton keeps of each response of a request it keeps until the request ends."""
    monkeypatch.setattr(call, "MAX_KEPT_BYTES", 10_000)
    async with running(server, client, 1) as others:
        [first] = server.streams.values()
        server.script = list(chunks("a"))
        num_opened = []
        for _ in range(5):  # two batches have come: that of the opening, and the first chunk
            assert await completion_of(client) == chunks("a")
            num_opened.append(server.num_opened)
        assert num_opened == [1, 1, 1, 2, 2]
        assert not others[0].done()
        client.generations.abort("demo__engine", errors.EngineFailed("lost"))  # which ends both
        assert (await others[0]).message == "lost"
        await asyncio.wait_for(first.ended.wait(), DEADLINE_S)


@pytest.mark.parametrize("refusal", ["", Overloaded("full").message()])
async def test_a_call_of_which_triton_keeps_much_is_closed_by_its_last_reader(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Triton keeps more of an error than of an output batch: refused requests alone filled its memory."""
    monkeypatch.setattr(call, "MAX_KEPT_BYTES", 15_000)
    server.script, server.refusal = list(chunks("a")), refusal
    num_requests = 0
    while server.num_opened < 2:
        await (failure_of(client) if refusal else completion_of(client))
        num_requests += 1
    assert num_requests == (2 if refusal else 8)
    await asyncio.wait_for(server.half_closed.wait(), DEADLINE_S)
    for stream in server.streams.values():
        stream.end()  # as the engine does without sequences; else the client waits for it when it closes


async def test_each_model_has_a_stream_of_its_own(server: FakeTritonServer, client: TritonClient) -> None:
    server.script = list(chunks("a"))
    for ensemble in ("one", "two", "one"):
        assert [chunk async for chunk in generated(client, ensemble=ensemble)] == chunks("a")
    assert server.num_opened == 2
    assert [batch.model_name for batch in server.batches] == ["one__requests", "two__requests", "one__requests"]


async def test_a_stream_that_cannot_be_opened_fails_those_that_wait_and_the_next_one_tries_again(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.opening = [Overloaded("full").message()]
    failures = await asyncio.gather(*(failure_of(client) for _ in range(2)))
    assert [type(failure) for failure in failures] == [errors.QueueFull] * 2
    server.opening, server.script = [], list(chunks("a"))
    assert await completion_of(client) == chunks("a")
    assert (server.num_opened, len(server.requests), server.controls.qsize()) == (2, 1, 0)


async def test_a_stage_that_the_opening_finds_dead_is_reported(server: FakeTritonServer, client: TritonClient) -> None:
    """Nothing else asks the detokenizer: it stayed dead."""
    server.opening = [DOWN.format("demo__detokenizer")]
    failure = await failure_of(client)
    assert isinstance(failure, errors.StageUnhealthy)
    assert failure.stage == "demo__detokenizer"


async def test_a_reader_that_leaves_while_the_stream_opens_leaves_it_to_the_others(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.script = list(chunks("a"))
    is_open = asyncio.Event()
    server.opening = [is_open]
    leaves, stays = (asyncio.create_task(completion_of(client)) for _ in range(2))
    await asyncio.wait_for(server.opened.wait(), DEADLINE_S)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    is_open.set()
    assert await stays == chunks("a")
    assert (server.num_opened, server.controls.qsize()) == (1, 0)  # the engine never got the other request


async def test_an_engine_that_is_lost_while_the_stream_opens_fails_those_that_wait(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.opening = [asyncio.Event()]
    waiting = asyncio.create_task(failure_of(client))
    await asyncio.wait_for(server.opened.wait(), DEADLINE_S)
    client.generations.abort("demo__engine", errors.EngineFailed("lost"))
    assert (await asyncio.wait_for(waiting, DEADLINE_S)).message == "lost"


# --- which requests share a message -----------------------------------------------------------------------------------


async def test_requests_that_arrive_together_share_one_message(server: FakeTritonServer, client: TritonClient) -> None:
    server.script = list(chunks("a"))
    for num_requests in (5, 3):  # the first ones wait together for the stream
        completions = await asyncio.gather(*(completion_of(client) for _ in range(num_requests)))
        assert completions == [chunks("a")] * num_requests
    assert [batch.numbers for batch in server.batches] == [[1, 2, 3, 4, 5], [6, 7, 8]]
    assert [batch.message_id for batch in server.batches] == ["1-5", "6-8"]
    assert (server.requests, server.num_opened) == ([REQUEST] * 8, 1)


@pytest.mark.parametrize("heard", ["a chunk", "a refusal", "a refusal of the message"])
async def test_requests_that_come_before_the_last_message_is_heard_of_share_the_next_one(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch, heard: str
) -> None:
    monkeypatch.setattr(call, "MAX_HELD_S", 10 * DEADLINE_S)
    refusal = InvalidRequest("9 is too much", "max_tokens").message()
    server.script = [refusal] if heard == "a refusal" else list(chunks("a"))
    server.refusal = refusal if heard == "a refusal of the message" else ""
    server.take.clear()
    tasks = [asyncio.create_task(completion_of(client))]
    await asyncio.wait_for(server.started.wait(), DEADLINE_S)
    for _ in range(3):
        tasks.append(asyncio.create_task(completion_of(client)))
        await asyncio.sleep(0.01)
    assert [batch.numbers for batch in server.batches] == [[1]]
    server.take.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [batch.numbers for batch in server.batches] == [[1], [2, 3, 4]]


async def test_no_request_waits_long_for_the_last_message(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "MAX_HELD_S", 0.01)
    server.script = endless()
    server.take.clear()
    async with asyncio.timeout(DEADLINE_S):
        tasks = [asyncio.create_task(completion_of(client))]
        await server.started.wait()
        tasks.append(asyncio.create_task(completion_of(client)))
        await asyncio.to_thread(wait_until, lambda: len(server.batches) == 2, "the second message comes")
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize(
    ("runtime", "num_running", "numbers"),
    [("synthetic", 7, [8, 9]), ("synthetic", 6, [7]), ("llama_cpp", 7, [8])],
    ids=["many", "few", "no step is known"],
)
async def test_while_many_run_a_message_waits_for_others(
    server: FakeTritonServer,
    client: TritonClient,
    monkeypatch: pytest.MonkeyPatch,
    runtime: str,
    num_running: int,
    numbers: list[int],
) -> None:
    server.configs = {"demo": ("ensemble", served_model("demo", runtime=runtime).parameters.to_config())}
    await client.snapshot()
    async with running(server, client, num_running):
        [opened] = client.generations._calls["demo"]
        monkeypatch.setattr(opened, "_pause_s", opened._pause_s and 0.5)
        opened._sent_s = time.monotonic()
        tasks = []
        for _ in range(2):
            tasks.append(asyncio.create_task(completion_of(client)))
            await asyncio.sleep(0.05)
        await asyncio.to_thread(wait_until, lambda: len(server.batches) > num_running, "the message comes")
        assert server.batches[num_running].numbers == numbers
        client.generations.end_all(errors.EngineFailed("over"))
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("step_ms", "num_tokens"), [(2, 5), (2, 1), (50, 5)])
async def test_the_pause_between_messages_is_no_longer_than_a_step(
    server: FakeTritonServer, client: TritonClient, step_ms: int, num_tokens: int
) -> None:
    step_ns, start_ns = step_ms * 1_000_000, 10**9
    timing = Timing(
        arrival_time_ns=start_ns,
        first_scheduled_time_ns=start_ns,
        first_token_time_ns=start_ns + step_ns,
        last_token_time_ns=start_ns + num_tokens * step_ns,
    )
    usage = Usage(num_input_tokens=1, num_output_tokens=num_tokens)
    server.script = [GenerationChunk(text="a", finish_reason=FinishReason.STOP, usage=usage, timing=timing)]
    for _ in range(20):
        await completion_of(client)
    longest_s = min(step_ms / 1000, call.MAX_PAUSE_S)
    [opened] = client.generations._calls["demo"]
    assert 0.8 * longest_s < opened._pause_s <= longest_s


async def test_a_message_has_a_largest_number_of_requests(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "MAX_BATCH_REQUESTS", 2)
    server.script = list(chunks("a"))
    assert await asyncio.gather(*(completion_of(client) for _ in range(5))) == [chunks("a")] * 5
    assert [batch.numbers for batch in server.batches] == [[1, 2], [3, 4], [5]]


LONG = "a" * 8001
NOT_LONG = {
    "a text": replace(REQUEST, prompt=TextPrompt(LONG[:5000])),
    "tokens": replace(REQUEST, prompt=TokenPrompt((1,) * 4000)),
    "a chat": replace(REQUEST, prompt=ChatPrompt(messages=(USER, {"role": "assistant", "content": None}))),
}
SLOW = {
    "tools": replace(REQUEST, prompt=ChatPrompt(messages=(USER,), tool_use=ToolUse(tools=(WEATHER,)))),
    "structured output": with_params(structured_output=StructuredOutput(OutputFormat.JSON_OBJECT)),
    "a long text": replace(REQUEST, prompt=TextPrompt(LONG)),
    "a long suffix": replace(REQUEST, prompt=TextPrompt("a", LONG)),
    "a long chat": replace(REQUEST, prompt=ChatPrompt(messages=({"role": "user", "content": LONG[:4001]},) * 2)),
    "many tokens": replace(REQUEST, prompt=TokenPrompt((1,) * 8001)),
}


@pytest.mark.parametrize("request_", NOT_LONG.values(), ids=NOT_LONG)
async def test_other_requests_share_a_message(
    server: FakeTritonServer, client: TritonClient, request_: GenerationRequest
) -> None:
    server.script = list(chunks("a"))
    await asyncio.gather(*(completion_of(client, request_) for _ in range(2)))
    assert [batch.numbers for batch in server.batches] == [[1, 2]]


@pytest.mark.parametrize("slow", SLOW.values(), ids=SLOW)
async def test_a_request_that_is_slow_to_encode_travels_alone(
    server: FakeTritonServer, client: TritonClient, slow: GenerationRequest
) -> None:
    server.script = list(chunks("a"))
    requests = [REQUEST, WHOLE, slow, slow, REQUEST, WHOLE]
    completions = await asyncio.gather(*(completion_of(client, request) for request in requests))
    assert completions == [chunks("a")] * 6
    assert [batch.numbers for batch in server.batches] == [[1, 2], [3], [4], [5, 6]]
    assert server.requests == requests


# --- what ends a request alone ----------------------------------------------------------------------------------------


async def test_an_error_of_a_message_fails_exactly_its_requests(server: FakeTritonServer, client: TritonClient) -> None:
    async with running(server, client, 1) as others:
        server.refusal = Overloaded("full").message()
        failures = await asyncio.gather(*(failure_of(client) for _ in range(3)))
        assert [type(failure) for failure in failures] == [errors.QueueFull] * 3
        assert [batch.numbers for batch in server.batches] == [[1], [2, 3, 4]]
        server.refusal = InvalidRequest("9 is too much", "max_tokens").message()
        assert (await failure_of(client)).param == "max_tokens"
        assert not others[0].done()
        assert server.controls.empty()  # the engine took none of them
        server.refusal, server.script = "", list(chunks("a"))
        assert await completion_of(client) == chunks("a")
        assert server.num_opened == 1
        the_stream(server).end()


async def test_the_places_of_an_announcement_come_before_the_chunks(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.script = [Announcement(ignored_keywords=("schema.not",)), text("a"), *chunks("b")]
    announced, *rest = await completion_of(client, WHOLE)
    assert isinstance(announced, Announced) and announced.ignored_keywords == ("schema.not",)
    assert "".join(chunk.text for chunk in rest) == "ab"


async def test_a_refusal_in_an_output_batch_fails_its_request_alone(
    server: FakeTritonServer, client: TritonClient
) -> None:
    refusal = InvalidRequest("9 is too much", "max_tokens").message()

    def script(request: GenerationRequest) -> Script:
        return [refusal] if request.params.max_tokens == 9 else [text("a"), *chunks("b")]

    server.script = script
    before, failure, after = await asyncio.gather(
        completion_of(client, WHOLE), failure_of(client, with_params(max_tokens=9)), completion_of(client, WHOLE)
    )
    assert ["".join(chunk.text for chunk in each) for each in (before, after)] == ["ab", "ab"]
    assert (failure.status, failure.param) == (400, "max_tokens")
    assert [batch.numbers for batch in server.batches] == [[1, 2, 3]]
    assert server.controls.empty()


async def test_a_request_that_is_taken_after_its_reader_has_left_is_cancelled_again(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """The engine remembers a cancel that overtakes its request, but not for ever."""
    server.script = [GenerationChunk(text=""), asyncio.Event()]
    server.take.clear()
    leaves = asyncio.create_task(completion_of(client))
    await asyncio.wait_for(server.started.wait(), DEADLINE_S)
    leaves.cancel()
    assert await asyncio.wait_for(server.controls.get(), DEADLINE_S) == CANCEL
    server.take.set()
    assert await asyncio.wait_for(server.controls.get(), DEADLINE_S) == CANCEL


async def test_a_request_that_the_engine_has_survives_the_tokenizer(
    server: FakeTritonServer, client: TritonClient
) -> None:
    is_over = asyncio.Event()
    server.script = [text(""), is_over, *chunks("a")]  # the first chunk says that the request waits for its turn
    waits = asyncio.create_task(completion_of(client))
    await asyncio.wait_for(server.started.wait(), DEADLINE_S)
    server.script = list(chunks("b"))
    assert await completion_of(client) == chunks("b")  # in a later output batch
    assert client.generations.abort("demo__tokenizer", errors.EngineFailed()) == 0
    is_over.set()
    assert await waits == chunks("a")


# --- cancels ----------------------------------------------------------------------------------------------------------


async def leave(server: FakeTritonServer, client: TritonClient, num: int) -> None:
    """Begin generations, and leave them all at once."""
    server.script, num_before = endless(), len(server.requests)
    tasks = [asyncio.create_task(completion_of(client, with_params(cancel_key=f"{number}"))) for number in range(num)]
    await asyncio.to_thread(wait_until, lambda: len(server.requests) >= num_before + num, "all are sent")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def cancelled(server: FakeTritonServer, num: int) -> list[list[str]]:
    """Return the keys in each of the next messages, which have a number of keys in all."""
    messages: list[list[str]] = []
    while sum(map(len, messages)) < num:
        _, message = await asyncio.wait_for(server.controls.get(), DEADLINE_S)
        messages.append(message["cancel_keys"])
    return messages


async def test_many_cancels_travel_in_one_message_on_the_open_call(
    server: FakeTritonServer, client: TritonClient
) -> None:
    """Each was a call of its own: a thousand at once killed Triton."""
    await leave(server, client, 1000)
    messages = await cancelled(server, 1000)
    while len(set(itertools.chain(*messages))) < 1000:
        messages += await cancelled(server, 1)
    assert (len(messages) <= 4, server.num_calls) == (True, 2 + 1)  # the third asked for the engine's epoch


async def test_outputs_come_on_a_call_without_other_messages(server: FakeTritonServer, client: TritonClient) -> None:
    """A message to a model that was just unloaded, beside outputs on the same call, aborted Triton."""
    await leave(server, client, 1)
    await cancelled(server, 1)
    assert {"demo__outputs"} in server.models_called
    assert {"demo__requests", "demo__engine"} in server.models_called


async def test_a_sequence_that_an_unload_ended_is_not_cancelled(server: FakeTritonServer, client: TritonClient) -> None:
    server.script = [text("a"), Unloading("").message()]
    assert isinstance(await failure_of(client), errors.ModelUnloaded)
    await leave(server, client, 1)
    assert await cancelled(server, 1) == [["0"]]


async def test_one_message_of_cancels_waits_for_the_answer_to_the_last_one(
    server: FakeTritonServer, client: TritonClient
) -> None:
    server.script = list(chunks("a"))
    await completion_of(client)
    server.answers_controls.clear()
    for _ in range(3):
        await leave(server, client, 2)
    assert len(await cancelled(server, 2)) == 1
    server.script = list(chunks("a"))
    assert await completion_of(client) == chunks("a")  # requests go on meanwhile
    assert server.controls.empty()
    server.answers_controls.set()
    assert len(await cancelled(server, 4)) == 1


async def test_requests_that_are_not_sent_when_their_readers_leave_are_forgotten(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "MAX_BATCH_REQUESTS", 1)
    server.script = list(chunks("a"))
    await completion_of(client)
    tasks = [asyncio.create_task(completion_of(client)) for _ in range(50)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await completion_of(client, WHOLE) == chunks("a")
    assert (len(server.requests) < 10, server.requests[-1]) == (True, WHOLE)


async def test_no_call_with_a_request_is_cancelled_when_readers_leave(
    server: FakeTritonServer, client: TritonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "MAX_KEPT_BYTES", 0)  # each call takes one request, and then another call
    await leave(server, client, 1)
    assert await cancelled(server, 1) == [["0"]]
    await asyncio.wait_for(server.half_closed.wait(), DEADLINE_S)
    the_stream(server).end()  # as the engine does without sequences
    await asyncio.to_thread(wait_until, lambda: server.num_ended == server.num_calls, "the calls end")
    assert server.num_cancelled == 0
