"""Server-sent events: their bytes are the events of the reply, however they were made."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.protocol.responses import ResponsesRequest
from frontend.translate import sse
from frontend.translate.chat_reply import ChatReply
from frontend.translate.completion_reply import CompletionReply
from frontend.translate.message_reply import MessageReply
from frontend.translate.places import Places
from frontend.translate.reply import Reply
from frontend.translate.responses_chat import responses_to_chat
from frontend.translate.responses_reply import ResponsesReply
from frontend.triton.models import ModelName
from model_repository.contract.output import FinishReason, GenerationChunk
from tests.fakes import DEMO, USAGE, served_model
from tests.frontend.bodies import RESPONSE, WEATHER, chat, completion, read
from tests.frontend.translate.chat_events import pieces_of, reply_to

TEXTS = ("a", 'é\n"', "\u2028", "🙂 {}", "", "\0")
PLAIN = GenerationChunk(text="x")
LAST = GenerationChunk(text="end", finish_reason=FinishReason.STOP, usage=USAGE)


def completion_reply(**fields: Any) -> CompletionReply:
    return CompletionReply(completion(stream=True, **fields), ModelName(requested='a "model"', model=DEMO), 1)


def encoded(reply: Reply, chunks: Sequence[tuple[int, GenerationChunk]]) -> bytes:
    encoder = sse.EventEncoder(reply)
    pieces = (encoder.encode(*each) for each in chunks)
    return b"".join(each if isinstance(each, bytes) else b"".join(each) for each in pieces)


def responses_reply() -> ResponsesReply:
    body = read(ResponsesRequest, RESPONSE | {"stream": True})[0]
    name = ModelName(requested='a "model"', model=DEMO)
    return ResponsesReply(body, responses_to_chat(body, name, Places(body)), name, 1)


def events_of(reply: Reply, chunks: Sequence[tuple[int, GenerationChunk]]) -> bytes:
    opening = reply.opening(chunks[0][1])
    events = [*opening, *(event for each in chunks for event in reply.events(*each))]
    if reply.is_numbered:
        events = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    leads = (f"event: {event['type']}\ndata: ".encode() if reply.has_names else b"data: " for event in events)
    return b"".join(itertools.chain.from_iterable(map(sse.event, events, leads)))


@pytest.mark.parametrize(
    ("reply", "num_choices"),
    [
        (reply_to(stream=True), 1),
        (reply_to(stream=True, n=2, stream_options={"include_usage": True}), 2),
        (completion_reply(n=2), 2),
        (completion_reply(n=2, stream_options={"include_usage": True}), 2),
        (completion_reply(prompt=["x", "y"], stream_options={"include_usage": False}), 2),
        (responses_reply(), 1),
    ],
)
@given(texts=st.lists(st.tuples(st.integers(0, 1), st.text() | st.sampled_from(TEXTS)), max_size=6))
def test_plain_text_is_encoded_as_its_events(reply: Reply, num_choices: int, texts: list[tuple[int, str]]) -> None:
    chunks = [(index, PLAIN) for index in range(num_choices)]
    begun = copy.deepcopy(reply)
    events_of(begun, chunks)
    assert begun.plain_part(0, PLAIN) is not None
    chunks += [(index % num_choices, GenerationChunk(text=text)) for index, text in texts]
    chunks += [(index, LAST) for index in range(num_choices)]
    ids = re.compile(rb'msg_[0-9a-f]{32}|(?<="completed_at":)[0-9]+')
    ours, expected = encoded(copy.deepcopy(reply), chunks), events_of(copy.deepcopy(reply), chunks)
    assert ids.sub(b"id", ours) == ids.sub(b"id", expected)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [WEATHER]},
        {"logprobs": True},
        {"return_token_ids": True},
        {"stream_options": {"include_obfuscation": True}},
    ],
)
def test_a_reply_with_more_than_text_is_not_plain(fields: dict[str, Any]) -> None:
    reply = reply_to(stream=True, **fields)
    assert reply.plain_part(0, PLAIN) is None
    assert encoded(reply, [(0, chunk) for chunk in pieces_of(["a", "b"])]).count(b"data: ") >= 3


HEADS = [f"{lead}<|channel|>{name}<|message|>" for lead in ("", "<|end|>") for name in ("analysis", "final")]


@given(
    reasoning_format=st.sampled_from(["think", "harmony"]),
    thinking=st.lists(st.sampled_from(["a", " b", "c ", "\n", " <", "</think>", *HEADS]), max_size=8),
    answer=st.lists(st.sampled_from(["\n", " ", "x", " y ", *HEADS]), max_size=4),
)
def test_thinking_is_encoded_as_its_events(reasoning_format: str, thinking: list[str], answer: list[str]) -> None:
    model = ModelName(requested="r", model=served_model(reasoning_format=reasoning_format))
    reply = ChatReply(chat(stream=True), model, 1)
    places = range(len(thinking), 0, -1)
    spans = [(len(text),) if place > 1 else (len(text), 0) for place, text in zip(places, thinking, strict=True)]
    chunks = [(0, GenerationChunk(text=text, spans=each)) for text, each in zip(thinking, spans, strict=True)]
    chunks += [(0, GenerationChunk(text=text)) for text in answer]
    chunks.append((0, LAST))
    assert encoded(copy.deepcopy(reply), chunks) == events_of(copy.deepcopy(reply), chunks)


@given(texts=st.lists(st.tuples(st.booleans(), st.sampled_from(["a", " b", "\n", 'é"'])), max_size=6))
def test_text_and_thinking_of_messages_are_encoded_as_their_events(texts: list[tuple[bool, str]]) -> None:
    texts.sort(reverse=True)  # the thinking comes first
    chunks = [
        (0, GenerationChunk(text=text, spans=(len(text), 0) if is_thinking else ())) for is_thinking, text in texts
    ]
    chunks.append((0, LAST))
    reply = MessageReply(chat(stream=True), ModelName(requested="r", model=served_model(reasoning_format="think")), "q")
    assert encoded(copy.deepcopy(reply), chunks) == events_of(copy.deepcopy(reply), chunks)


def test_text_that_a_parser_holds_back_is_no_event() -> None:
    assert encoded(reply_to(stream=True, tools=[WEATHER]), [(0, GenerationChunk(text="<tool_c"))]).count(b"data: ") == 1


def test_an_event_is_one_data_line_whatever_lines_a_client_knows() -> None:
    assert b"".join(sse.event({"text": "é\n"})) == 'data: {"text":"é\\n"}\n\n'.encode()
    text = "a\u0085b\u2028c\u2029d"
    event = b"".join(sse.event({"text": text})).decode()
    assert len(event.strip().splitlines()) == 1
    assert json.loads(event.removeprefix("data: ")) == {"text": text}
