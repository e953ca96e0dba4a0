"""A chat's stream of events, and its choices put together as a client does it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter

from frontend.protocol.answers import ChatCompletion, ChatCompletionChunk
from frontend.translate.chat_reply import ChatReply
from frontend.triton.models import ModelName
from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import FinishReason, GenerationChunk, TokenLogprob
from tests.fakes import USAGE, served_model
from tests.frontend.answers import written
from tests.frontend.bodies import chat

_ANSWER, _EVENT = TypeAdapter(ChatCompletion), TypeAdapter(ChatCompletionChunk)


def reply_to(tool_call_format: str = "hermes", **fields: Any) -> ChatReply:
    """Return the reply to a chat with a model that writes tool calls in this format."""
    name = ModelName(requested="gpt-4o", model=served_model(tool_call_format=tool_call_format))
    return ChatReply(chat(**fields), name, 1)


def pieces_of(texts: Sequence[str], reason: FinishReason = FinishReason.STOP) -> list[GenerationChunk]:
    """Return a completion in these pieces, each one token with a log probability."""
    return [
        GenerationChunk(
            text=text,
            token_ids=(number,),
            logprobs=pack_logprobs([TokenLogprob(number, text.encode(), -1.0)]),
            finish_reason=reason if number == len(texts) - 1 else None,
            usage=USAGE if number == len(texts) - 1 else None,
        )
        for number, text in enumerate(texts)
    ]


def events_of(reply: ChatReply, pieces: Iterable[tuple[int, GenerationChunk]]) -> list[ChatCompletionChunk]:
    """Return every event of a stream; each has the shape that is promised."""
    pieces = list(pieces)
    opening = reply.opening(pieces[0][1] if pieces else GenerationChunk(text=""))
    events = [written(event) for event in opening]
    events += [written(event) for index, chunk in pieces for event in reply.events(index, chunk)]
    for event in events:
        _EVENT.validate_python(event, strict=True)
    return events


def whole(reply: ChatReply, *chunks: GenerationChunk) -> ChatCompletion:
    """Return the whole answer; it has the shape that is promised."""
    return _ANSWER.validate_python(written(reply.whole(chunks)), strict=True)


def put_together(events: Iterable[ChatCompletionChunk], index: int = 0) -> dict[str, Any]:
    """Return message, finish reason, log probabilities and token ids of a choice. Content that is empty is none."""
    message: dict[str, Any] = {"role": "", "content": ""}
    choice: dict[str, Any] = {"message": message, "finish_reasons": [], "logprobs": [], "token_ids": []}
    for piece in (each for event in events for each in event["choices"] if each["index"] == index):
        delta = piece["delta"]
        message["role"] += delta.get("role", "")
        message["content"] += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if "id" in call:
                assert call["index"] == len(calls)
                kind = call["type"]
                calls.append({"id": call["id"], "type": kind, kind: {**call[kind]}})
            elif "custom" in call:
                calls[call["index"]]["custom"]["input"] += call["custom"]["input"]
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        if "function_call" in delta:
            function = message.setdefault("function_call", {"arguments": ""})
            function |= {"name": delta["function_call"].get("name", function.get("name"))}
            function["arguments"] += delta["function_call"]["arguments"]
        if piece["logprobs"] is not None:
            choice["logprobs"] += piece["logprobs"]["content"]
        choice["token_ids"] += piece.get("token_ids", ())
        if piece["finish_reason"] is not None:
            choice["finish_reasons"].append(piece["finish_reason"])
    message["content"] = message["content"] or None
    return choice
