"""Framed bytes are the events of the reply, byte for byte, however they were made."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend import sse
from frontend.translate.completion_reply import CompletionReply
from frontend.translate.framing import Framer
from frontend.translate.reply import Reply
from frontend.triton.models import ModelName
from model_repository.contract.output import FinishReason, GenerationChunk
from tests.fakes import DEMO, USAGE
from tests.frontend.bodies import WEATHER, completion
from tests.frontend.translate.chat_events import pieces_of, reply_to

TEXTS = ("a", 'é\n"', "\u2028", "🙂 {}", "", "\0")
LAST = GenerationChunk(text="end", finish_reason=FinishReason.STOP, usage=USAGE)


def completion_reply(**fields: Any) -> CompletionReply:
    return CompletionReply(completion(stream=True, **fields), ModelName(asked='a "model"', model=DEMO), 1)


def framed(reply: Reply, chunks: Sequence[tuple[int, GenerationChunk]]) -> bytes:
    framer = Framer(reply)
    return framer.opening(GenerationChunk(text="")) + b"".join(framer.frame(index, chunk) for index, chunk in chunks)


def told(reply: Reply, chunks: Sequence[tuple[int, GenerationChunk]]) -> bytes:
    events = [
        *reply.opening(GenerationChunk(text="")),
        *(event for index, chunk in chunks for event in reply.events(index, chunk)),
    ]
    return b"".join(map(sse.event, events))


@pytest.mark.parametrize(
    "reply",
    [
        reply_to(stream=True),
        reply_to(stream=True, n=2, stream_options={"include_usage": True}),
        completion_reply(),
        completion_reply(n=2, stream_options={"include_usage": True}),
        completion_reply(prompt=["x", "y"], stream_options={"include_usage": False}),
    ],
)
@given(texts=st.lists(st.tuples(st.integers(0, 1), st.text() | st.sampled_from(TEXTS)), max_size=6))
def test_plain_replies_are_framed_as_their_events(reply: Reply, texts: list[tuple[int, str]]) -> None:
    assert reply.is_plain
    num_choices = 2 if len(reply.opening(GenerationChunk(text=""))) == 2 or isinstance(reply, CompletionReply) else 1
    chunks = [(index % num_choices, GenerationChunk(text=text)) for index, text in texts]
    chunks += [(index, LAST) for index in range(num_choices)]
    assert framed(copy.deepcopy(reply), chunks) == told(copy.deepcopy(reply), chunks)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [WEATHER]},
        {"logprobs": True},
        {"return_token_ids": True},
        {"stream_options": {"include_obfuscation": True}},
    ],
)
def test_a_reply_whose_events_tell_more_than_text_is_not_plain(fields: dict[str, Any]) -> None:
    reply = reply_to(stream=True, **fields)
    assert not reply.is_plain
    chunks = [(0, chunk) for chunk in pieces_of(["a", "b"])]
    assert framed(reply, chunks).count(b"data: ") >= 3


def test_text_that_a_parser_holds_back_is_nothing() -> None:
    assert Framer(reply_to(stream=True, tools=[WEATHER])).frame(0, GenerationChunk(text="<tool_c")) == b""
