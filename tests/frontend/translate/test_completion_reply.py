"""The answer to a completions request, whole or event by event."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import TypeAdapter

from frontend.protocol.answers import TextCompletion
from frontend.translate.completion_reply import CompletionReply
from frontend.triton.models import ModelName
from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import FinishReason, GenerationChunk, TokenLogprob, Usage
from tests.fakes import DEMO, USAGE, chunks, counted
from tests.frontend.answers import written
from tests.frontend.bodies import completion

NAME = ModelName(requested="gpt-4o", model=DEMO)
ANSWER = TypeAdapter(TextCompletion)
(LAST,) = chunks("c", finish_reason=FinishReason.LENGTH)


def reply_to(prompt_num_chars: Any = (), **fields: Any) -> CompletionReply:
    return CompletionReply(completion(**fields), NAME, 1, prompt_num_chars)


def drawn(text: str, *logprobs: float, usage: Usage = USAGE) -> GenerationChunk:
    """Return a whole completion, a character a token."""
    items = pack_logprobs(TokenLogprob(1, char.encode(), value) for char, value in zip(text, logprobs, strict=False))
    return GenerationChunk(text=text, logprobs=items, finish_reason=FinishReason.STOP, usage=usage)


def events_of(reply: CompletionReply, *pieces: tuple[int, GenerationChunk]) -> list[TextCompletion]:
    events = [written(event) for index, chunk in pieces for event in reply.events(index, chunk)]
    for event in events:
        ANSWER.validate_python(event, strict=True)
    return [*reply.opening(GenerationChunk(text="")), *events]


def whole(reply: CompletionReply, *chunks: GenerationChunk) -> TextCompletion:
    kept = [reply.kept(index, chunk) for index, chunk in enumerate(chunks)]
    return ANSWER.validate_python(written(reply.whole(kept)), strict=True)


def test_a_length_limited_completion_reports_length() -> None:
    reply = reply_to()
    answer = whole(reply, LAST)
    assert answer["choices"] == [
        {"index": 0, "text": "c", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert (answer["object"], answer["created"], answer["id"]) == ("text_completion", 1, reply.id)
    assert (answer["model"], answer["system_fingerprint"]) == ("gpt-4o", "fp_demo")
    assert reply.id.startswith("cmpl-")
    assert reply_to().id != reply.id


@pytest.mark.parametrize("stop_reason", ["END", 7, None])
def test_the_stop_reason_is_passed_on(stop_reason: Any) -> None:
    last = replace(LAST, finish_reason=FinishReason.STOP, stop_reason=stop_reason)
    (event,) = events_of(reply_to(stream=True), (0, last))
    for choice in (event["choices"][0], whole(reply_to(), last)["choices"][0]):
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop_reason)


def test_a_stream_without_options_has_usage_on_its_last_chunk() -> None:
    first, last = events_of(reply_to(stream=True), (0, GenerationChunk(text="a")), (0, LAST))
    assert first["usage"] is None
    assert last["usage"] == whole(reply_to(), LAST)["usage"]
    assert [event["choices"][0]["finish_reason"] for event in (first, last)] == [None, "length"]


def test_a_first_token_without_bytes_is_an_event_only_if_each_has_the_counts() -> None:
    first, running = counted("", 7, 1), {"stream_options": {"continuous_usage_stats": True}}
    events = [reply_to(stream=True, **fields).events(0, first) for fields in ({}, running)]
    assert list(map(len, events)) == [0, 1]


def test_every_event_may_have_the_counts_so_far_of_the_prompts_that_have_begun() -> None:
    pieces = [
        (0, counted("a", 7, 1)),
        (1, counted("b", 3, 2)),
        (1, replace(counted("", 3, 3), finish_reason=FinishReason.STOP)),
        (0, replace(counted("c", 7, 2), finish_reason=FinishReason.LENGTH)),
    ]
    options = {"continuous_usage_stats": True}
    events = events_of(reply_to(prompt=["x", "y"], stream=True, stream_options=options), *pieces)
    usages = [event["usage"] for event in events]
    assert [usage and usage["prompt_tokens"] for usage in usages] == [7, 10, 10, 10]
    assert [usage and usage["completion_tokens"] for usage in usages] == [1, 3, 4, 5]


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"include_usage": None}])
def test_any_stream_options_switch_to_openais_rule(options: dict[str, Any]) -> None:
    events = events_of(reply_to(stream=True, stream_options=options), (0, GenerationChunk(text="a")), (0, LAST))
    assert all("usage" not in event for event in events)


def test_include_usage_brings_null_on_all_chunks_and_one_chunk_of_its_own() -> None:
    reply = reply_to(stream=True, stream_options={"include_usage": True}, n=2)
    *events, closing = events_of(reply, (1, LAST), (0, GenerationChunk(text="a")), (0, LAST))
    assert all(event["usage"] is None for event in events)
    assert closing["choices"] == []
    assert closing["usage"] == whole(reply_to(n=2), LAST, LAST)["usage"]
    assert {(event["id"], event["created"], event["object"]) for event in (*events, closing)} == {
        (reply.id, 1, "text_completion")
    }


def test_the_best_of_each_prompt_are_shown_and_all_are_counted() -> None:
    candidates = [drawn("a", -3.0), drawn("b", -1.0), drawn("c", -2.0), drawn("d", -0.5), drawn("e", -9.0), drawn("f")]
    answer = whole(reply_to(prompt=["p", "q"], n=2, best_of=3), *candidates)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "b"),
        (1, "c"),
        (2, "d"),
        (3, "e"),
    ]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    usage = answer["usage"]
    assert usage is not None
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (14, 30)


@pytest.mark.parametrize(("echo", "offsets"), [(False, [[4], [5], [7], [4]]), (True, [[0], [1], [0], [1]])])
def test_offsets_begin_behind_each_prompt_unless_it_is_echoed(echo: bool, offsets: list[list[int]]) -> None:
    reply = reply_to(prompt=["four", "seven77"], logprobs=0, echo=echo, stream=True, prompt_num_chars=[4, 7])
    pieces = [(0, "a"), (0, "b"), (1, "c"), (1, "d")] if echo else [(0, "a"), (0, "b"), (1, "c")]
    events = events_of(reply, *((index, drawn(text, -1.0)) for index, text in pieces))
    seen = [event["choices"][0]["logprobs"] for event in events]
    assert [item["text_offset"] for item in seen if item] == offsets[: len(pieces)]


@pytest.mark.parametrize("asked", [True, False])
def test_token_ids_are_there_on_request(asked: bool) -> None:
    chunk = replace(LAST, token_ids=(5, 6))
    (event,) = events_of(reply_to(return_token_ids=asked, stream=True), (0, chunk))
    for choice in (event["choices"][0], whole(reply_to(return_token_ids=asked), chunk)["choices"][0]):
        assert choice.get("token_ids") == ([5, 6] if asked else None)


def test_each_choice_has_the_prompts_token_ids_as_in_vllm() -> None:
    chunk = replace(LAST, token_ids=(1, 2, 5), num_prompt_tokens=2, prompt_token_ids=(1, 2))
    fields = {"return_token_ids": True, "echo": True}
    (event,) = events_of(reply_to(stream=True, **fields), (0, chunk))
    for choice in (event["choices"][0], whole(reply_to(**fields), chunk)["choices"][0]):
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([1, 2], [5])


def test_each_choice_has_the_log_probabilities_of_its_prompt_as_in_vllm() -> None:
    scored = replace(
        drawn("a", -3.0),
        prompt_logprobs=pack_logprobs([TokenLogprob(5, b"a", None), TokenLogprob(6, b"b", -1.0, (), 3)]),
    )
    other = replace(scored, prompt_logprobs=pack_logprobs([TokenLogprob(5, b"a", None)]))
    best = drawn("b", -1.0)
    fields = {"prompt": ["p", "q"], "n": 1, "best_of": 2, "prompt_logprobs": 0}
    answer = whole(reply_to(**fields), scored, best, other, best)
    assert [(choice["text"], choice["prompt_logprobs"]) for choice in answer["choices"]] == [
        ("b", [None, {"6": {"logprob": -1.0, "rank": 3, "decoded_token": "b"}}]),
        ("b", [None]),
    ]
    assert "prompt_logprobs" not in whole(reply_to(), LAST)["choices"][0]
