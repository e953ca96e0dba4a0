"""The answer to a request of Anthropic's Messages API, whole or event by event, and its errors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from frontend.errors import APIError
from frontend.output_parser.deltas import ArgumentsDelta, CallBegin, CallEnd, OutputDelta, ReasoningDelta, TextDelta
from frontend.protocol.answers import (
    ContentBlock,
    Message,
    MessageDelta,
    MessageEnd,
    MessageError,
    MessageErrorType,
    MessageStopReason,
    MessageUsage,
)
from frontend.protocol.chat import ChatCompletionRequest
from frontend.translate.reply import Event, Reply, chat_parsers
from frontend.triton.models import ModelName
from model_repository.contract.output import FinishReason, GenerationChunk, Usage

_SIGNATURE = "conch"  # of each thinking block; none is checked
# The kind of an answer's part, as the parser names it, to the type of its block.
_BLOCK_TYPES = {"content": "text", "reasoning": "thinking"}


class MessageReply(Reply):
    """Writes the answer to one request.

    Args:
        chat: the request as a chat.
        name: the model, by the client's name.
        request_id: for errors.
    """

    num_per_prompt, has_names, has_done = 1, True, False

    def __init__(self, chat: ChatCompletionRequest, name: ModelName, request_id: str) -> None:
        self.id = f"msg_{secrets.token_hex(12)}"
        self._name = name
        self._request_id = request_id
        [self._parser] = chat_parsers(chat, name)
        self._has_no_text = chat.must_call()
        self._is_plain = not chat.may_call()
        self._is_kept = chat.keep_s > 0
        self._num_blocks = 0
        self._open_type = ""  # the open block's; empty: none is open

    def opening(self, first: GenerationChunk) -> Sequence[Event]:
        """Return the events before the content."""
        return ({"type": "message_start", "message": self._message(first.usage)}, {"type": "ping"})

    def plain_part(self, index: int, chunk: GenerationChunk) -> str | None:
        """See Reply."""
        part = self._parser.plain_part(chunk) if self._is_plain and chunk.text else None
        is_open = part is not None and _BLOCK_TYPES[part] == self._open_type
        return f"{part} {self._num_blocks}" if is_open else None

    def events(self, index: int, chunk: GenerationChunk) -> Sequence[Event]:
        """Return the events of a chunk."""
        events = [event for parsed in self._parser.read(chunk) for event in self._block_events(parsed)]
        if chunk.finish_reason is not None:
            events += [*self._closing(), self._end(chunk), {"type": "message_stop"}]
        return events

    def whole(self, chunks: Sequence[GenerationChunk]) -> Message:
        """Return the answer without a stream, from its only chunk."""
        [chunk] = chunks
        message = self._message(chunk.usage)
        blocks: list[Any] = message["content"]
        for event in self.events(0, chunk):
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"]})
            elif event["type"] == "content_block_delta":
                _, (key, more) = event["delta"].items()
                blocks[-1][key] = blocks[-1].get(key, "") + more
            elif event["type"] == "message_delta":
                message |= event["delta"]
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = _json_object(block.pop("partial_json", ""))
        return message

    def failure(self, error: APIError) -> Sequence[Event]:
        """Return the events that end a stream with an error."""
        return (message_error(error, self._request_id),)

    def _message(self, usage: Usage | None) -> Message:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._name.requested,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(usage),
        }

    def _block_events(self, parsed: OutputDelta) -> Iterator[Event]:
        match parsed:
            case TextDelta(text):
                if not self._has_no_text:
                    yield from self._opening({"type": "text", "text": ""})
                    yield self._delta("text_delta", "text", text)
            case ReasoningDelta(text):
                yield from self._opening({"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta("thinking_delta", "thinking", text)
            case CallBegin(_, name):
                yield from self._closing()
                yield from self._opening(
                    {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": name, "input": {}}
                )
            case ArgumentsDelta(_, text):
                yield self._delta("input_json_delta", "partial_json", text)
            case CallEnd():
                yield from self._closing()

    def _opening(self, block: ContentBlock) -> Iterator[Event]:
        """Begin a block, unless one of its type is open."""
        if block["type"] != self._open_type:
            yield from self._closing()
            self._open_type = block["type"]
            self._num_blocks += 1
            yield {"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block}

    def _closing(self) -> Iterator[Event]:
        """End the open block."""
        if self._open_type == "thinking":
            yield self._delta("signature_delta", "signature", _SIGNATURE)
        if self._open_type:
            yield {"type": "content_block_stop", "index": self._num_blocks - 1}
        self._open_type = ""

    def _delta(self, kind: str, key: str, text: str) -> Event:
        return {"type": "content_block_delta", "index": self._num_blocks - 1, "delta": {"type": kind, key: text}}

    def _end(self, chunk: GenerationChunk) -> MessageDelta:
        reason: MessageStopReason = "end_turn"
        sequence = chunk.stop_reason if isinstance(chunk.stop_reason, str) else None
        if chunk.finish_reason is FinishReason.LENGTH:
            reason = "max_tokens"
        elif self._parser.has_called:
            reason = "tool_use"
        elif sequence is not None:
            reason = "stop_sequence"
        end: MessageEnd = {"stop_reason": reason, "stop_sequence": sequence}
        return {"type": "message_delta", "delta": end, "usage": self._usage(chunk.usage)}

    def _usage(self, usage: Usage | None) -> MessageUsage:
        usage = usage or Usage(num_input_tokens=0, num_output_tokens=0)
        num_computed = usage.num_input_tokens - usage.num_cached_tokens
        return {
            "input_tokens": 0 if self._is_kept else num_computed,
            "cache_creation_input_tokens": num_computed if self._is_kept else 0,
            "cache_read_input_tokens": usage.num_cached_tokens,
            "output_tokens": usage.num_output_tokens,
            "output_tokens_details": {"thinking_tokens": usage.num_reasoning_tokens},
        }


def _json_object(text: str) -> dict[str, Any]:
    """Return the arguments of a call; empty if the call was cut."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


_OVERLOADED = 529  # Anthropic's status in place of 503
_RETRIED = (408, 409, 429)  # and all of the server's errors

_ERROR_TYPES: dict[int, MessageErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def message_error(error: APIError, request_id: str) -> MessageError:
    """Return an error in Anthropic's form."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id}


def message_error_head(error: APIError, request_id: str) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of an error in Anthropic's form."""
    is_retried = error.status in _RETRIED or error.status >= 500
    headers = {"x-should-retry": str(is_retried).lower(), "request-id": request_id, **error.headers}
    return _OVERLOADED if error.status == 503 else error.status, headers
