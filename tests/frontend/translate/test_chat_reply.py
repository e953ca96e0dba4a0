"""The answer to a chat, whole or event by event."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import FinishReason, GenerationChunk, TokenLogprob
from tests.fakes import chunks, counted
from tests.frontend.translate.chat_events import events_of, pieces_of, put_together, reply_to, whole

(LAST,) = chunks("c", finish_reason=FinishReason.LENGTH)


def one_choice(*pieces: GenerationChunk, **fields: Any) -> list[Any]:
    return events_of(reply_to(stream=True, **fields), [(0, piece) for piece in pieces])


def test_a_chat_completion_has_openais_shape() -> None:
    reply = reply_to()
    answer = whole(reply, LAST)
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "c", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert (answer["object"], answer["created"], answer["id"]) == ("chat.completion", 1, reply.id)
    assert (answer["model"], answer["system_fingerprint"]) == ("gpt-4o", "fp_demo")
    assert reply.id.startswith("chatcmpl-")
    assert reply_to().id != reply.id
    assert whole(reply_to(), *chunks(""))["choices"][0]["message"]["content"] == ""


def test_a_stream_opens_with_the_role_of_each_choice() -> None:
    openings = reply_to(stream=True, n=3).opening(GenerationChunk(text=""))
    assert [event["choices"] for event in openings] == [
        [
            {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ]
        for index in range(3)
    ]
    assert all("usage" not in event for event in openings)
    assert {event["object"] for event in openings} == {"chat.completion.chunk"}


def test_tokens_without_text_are_events_on_request() -> None:
    token = GenerationChunk(text="", token_ids=(5,), logprobs=pack_logprobs([TokenLogprob(5, b"\xe2", -1.0)]))
    assert put_together(one_choice(token, LAST, logprobs=True))["logprobs"][0]["bytes"] == [0xE2]
    assert put_together(one_choice(token, LAST, return_token_ids=True))["token_ids"] == [5]


def test_include_usage_brings_null_on_all_chunks_and_one_chunk_of_its_own() -> None:
    for pieces in ([LAST], [GenerationChunk(text="a"), LAST]):
        *events, closing = one_choice(*pieces, stream_options={"include_usage": True})
        assert all(event["usage"] is None for event in events)
        assert closing["choices"] == []
        assert closing["usage"] == whole(reply_to(), LAST)["usage"]
    for options in (None, {}, {"include_usage": False}):
        assert all("usage" not in event for event in one_choice(LAST, stream_options=options))


def test_every_event_may_have_the_counts_so_far() -> None:
    pieces = [
        (0, counted("a", 7, 1)),
        (1, counted("b", 7, 1)),
        (0, counted("c", 7, 3)),
        (0, replace(counted("", 7, 4), finish_reason=FinishReason.STOP)),
        (1, replace(counted("d", 7, 2), finish_reason=FinishReason.LENGTH)),
    ]
    options = {"continuous_usage_stats": True}
    events = events_of(reply_to(stream=True, n=2, stream_options=options), pieces)
    assert [event["usage"]["completion_tokens"] for event in events if event["usage"]] == [0, 0, 1, 2, 4, 5, 6]
    assert all(event["usage"] and event["usage"]["prompt_tokens"] == 7 for event in events)
    *same, closing = events_of(reply_to(stream=True, n=2, stream_options=options | {"include_usage": True}), pieces)
    assert [event["usage"] for event in same] == [event["usage"] for event in events]
    assert (closing["choices"], closing["usage"]) == ([], same[-1]["usage"])


def test_choices_interleave_and_each_ends_once() -> None:
    reply = reply_to(stream=True, n=3, stream_options={"include_usage": True})
    texts = {0: ["a", "b", "c"], 1: ["d"], 2: ["e", "f"]}
    pieces = {index: pieces_of(text) for index, text in texts.items()}
    order = [(2, 0), (0, 0), (1, 0), (0, 1), (2, 1), (0, 2)]
    events = events_of(reply, [(index, pieces[index][number]) for index, number in order])
    for index, text in texts.items():
        choice = put_together(events, index)
        assert choice["message"] == {"role": "assistant", "content": "".join(text)}
        assert choice["finish_reasons"] == ["stop"]
        of_choice = [each for event in events for each in event["choices"] if each["index"] == index]
        assert "role" in of_choice[0]["delta"]
        assert all("role" not in piece["delta"] for piece in of_choice[1:])
        assert of_choice[-1]["finish_reason"] == "stop"
    assert [event["usage"] is None for event in events] == [True] * (len(events) - 1) + [False]
    assert len({(event["id"], event["created"], event["model"], event["system_fingerprint"]) for event in events}) == 1


def test_log_probabilities_are_there_on_request() -> None:
    pieces = pieces_of(["é", "b"])
    for asked in (True, False):
        (choice,) = whole(reply_to(logprobs=asked), pieces[-1])["choices"]
        assert (choice["logprobs"] is not None) == asked
    content = put_together(one_choice(*pieces, logprobs=True))["logprobs"]
    assert [item["bytes"] for item in content] == [[0xC3, 0xA9], [0x62]]
    assert put_together(one_choice(*pieces))["logprobs"] == []


@pytest.mark.parametrize("asked", [True, False])
def test_token_ids_are_there_on_request(asked: bool) -> None:
    pieces = pieces_of(["a", "b"])
    assert put_together(one_choice(*pieces, return_token_ids=asked))["token_ids"] == ([0, 1] if asked else [])
    (choice,) = whole(reply_to(return_token_ids=asked), pieces[-1])["choices"]
    assert choice.get("token_ids") == ([1] if asked else None)


def test_the_prompts_token_ids_are_there_once_as_in_vllm() -> None:
    first = GenerationChunk(text="a", token_ids=(5,), prompt_token_ids=(1, 2))
    reply = reply_to(return_token_ids=True, stream=True, n=2)
    events = [*reply.opening(first), *reply.events(1, first), *reply.events(0, first)]
    assert [event.get("prompt_token_ids") for event in events] == [[1, 2], None, None, None]
    last = replace(LAST, token_ids=(5,), prompt_token_ids=(1, 2))
    assert whole(reply_to(return_token_ids=True), last)["prompt_token_ids"] == [1, 2]
    assert "prompt_token_ids" not in whole(reply_to(), LAST)


def test_the_prompts_log_probabilities_are_at_the_top_as_in_vllm() -> None:
    scored = replace(
        LAST, prompt_logprobs=pack_logprobs([TokenLogprob(5, b"a", None), TokenLogprob(6, b"b", -1.0, (), 3)])
    )
    answer = whole(reply_to(n=2, prompt_logprobs=0), scored, LAST)
    assert answer["prompt_logprobs"] == [None, {"6": {"logprob": -1.0, "rank": 3, "decoded_token": "b"}}]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["c", "c"]
    assert "prompt_logprobs" not in whole(reply_to(), LAST)
