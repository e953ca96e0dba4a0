"""The answer to a request of OpenAI's Responses API, whole or event by event."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from frontend.errors import APIError
from frontend.output_parser.deltas import ArgumentsDelta, CallBegin, CallEnd, OutputDelta, ReasoningDelta, TextDelta
from frontend.protocol.answers import TokenLogprob
from frontend.protocol.body import Body
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.response_objects import Response, ResponseError, ResponseUsage, TextLogprob
from frontend.protocol.responses import ResponsesRequest, sealed_thinking
from frontend.translate.logprobs import chat_logprobs
from frontend.translate.reply import Event, Reply, chat_parser
from frontend.triton.models import ModelName
from model_repository.contract.output import FinishReason, GenerationChunk, Usage

# By the type of an item: the prefix of its id, and of its events, and the field with its text.
_KINDS: Mapping[str, tuple[str, str, str]] = {
    "message": ("msg", "response.output_text", "text"),
    "reasoning": ("rs", "response.reasoning_text", "text"),
    "function_call": ("fc", "response.function_call_arguments", "arguments"),
    "custom_tool_call": ("ctc", "response.custom_tool_call_input", "input"),
}
# The type of an item with parts to the type of its only part.
_PART_TYPES = {"message": "output_text", "reasoning": "reasoning_text"}
# The kind of an answer's part, as the parser names it, to the type of its item.
_ITEM_TYPES = {"content": "message", "reasoning": "reasoning"}


class ResponsesReply(Reply):
    """Writes the answer to one request.

    Args:
        body: the request, whose fields the answer repeats.
        chat: the request as a chat.
        name: the model, by the client's name.
        created: unix seconds.
    """

    num_per_prompt, has_names, has_done, is_numbered = 1, True, False, True

    def __init__(self, body: ResponsesRequest, chat: ChatCompletionRequest, name: ModelName, created: int) -> None:
        self.id = f"resp_{secrets.token_hex(16)}"
        self._parser = chat_parser(chat, name)
        self._is_sealed = body.has_encrypted_content
        self._has_no_text = chat.must_call()
        self._has_logprobs = bool(chat.logprobs)
        self._is_plain = not (chat.may_call() or self._has_logprobs)
        self._frame = _frame(body, chat, self.id, name.requested, created)
        self._output: list[dict[str, Any]] = []
        self._open_type = ""  # the last item's while it is open; empty: none is open
        self._pieces: list[str] = []  # texts of the open item
        self._logprobs: list[TokenLogprob] = []  # of its tokens
        self._unsent: list[TokenLogprob] = []  # of tokens whose text is not sent yet

    def opening(self, first: GenerationChunk) -> Sequence[Event]:
        """Return the events before the content."""
        response = self._response("in_progress")
        return [{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")]

    def plain_part(self, index: int, chunk: GenerationChunk) -> str | None:
        """See Reply."""
        part = self._parser.plain_part(chunk) if self._is_plain and chunk.text else None
        if part is None or _ITEM_TYPES[part] != self._open_type:
            return None
        self._pieces.append(chunk.text)
        return f"{part} {len(self._output)}"

    def plain_events(self, index: int, sample: GenerationChunk) -> Sequence[Event]:
        """See Reply."""
        return [self._delta(sample.text)]

    def events(self, index: int, chunk: GenerationChunk) -> Sequence[Event]:
        """Return the events of a chunk."""
        is_thinking = 0 < chunk.num_thinking_chars == len(chunk.text)
        if self._has_logprobs and not is_thinking:
            self._unsent += chat_logprobs(chunk.logprobs)["content"]
        events = [event for parsed in self._parser.read(chunk) for event in self._events_of(parsed)]
        if chunk.finish_reason is not None:
            if not self._output:
                events += self._opening("message", _message())
            is_cut = chunk.finish_reason is FinishReason.LENGTH
            events += self._closing(is_complete=self._is_text and not is_cut)
            status = "incomplete" if is_cut else "completed"
            events.append({"type": f"response.{status}", "response": self._response(status, chunk.usage)})
        return events

    def whole(self, chunks: Sequence[GenerationChunk]) -> Event:
        """Return the answer without a stream, from its only chunk."""
        [chunk] = chunks
        *_, last = self.events(0, chunk)
        response: Event = last["response"]
        return response

    def failure(self, error: APIError) -> Sequence[Event]:
        """Return the events that end a stream with an error."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        self._close_item("incomplete")
        return [
            {"type": "error", **fields},
            {"type": "response.failed", "response": self._response("failed", error=error)},
        ]

    def _response(self, status: Any, usage: Usage | None = None, error: APIError | None = None) -> Response:
        response = self._frame.copy()
        response["status"] = status
        response["output"] = [*self._output]  # type: ignore[list-item]
        if usage is not None:
            response["usage"] = _usage(usage)
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif status == "completed":
            response["completed_at"] = int(time.time())
        if error is not None:
            response["error"] = _error(error)
        return response

    @property
    def _is_text(self) -> bool:
        """Whether a text or thinking is open. Only the parser says that a call is complete."""
        return self._open_type in _PART_TYPES

    def _events_of(self, parsed: OutputDelta) -> Iterator[Event]:
        match parsed:
            case TextDelta(text):
                if not self._has_no_text:
                    yield from self._extended("message", text)
            case ReasoningDelta(text):
                yield from self._extended("reasoning", text)
            case CallBegin(_, name):
                yield from self._closing(is_complete=self._is_text)
                kind, field = ("custom_tool_call", "input") if parsed.is_custom else ("function_call", "arguments")
                call = {"call_id": f"call_{secrets.token_hex(12)}", "name": name, field: ""}
                yield from self._opening(kind, call)
            case ArgumentsDelta(_, text):
                self._pieces.append(text)
                yield self._delta(text)
            case CallEnd():
                yield from self._closing(is_complete=True)

    def _extended(self, kind: str, text: str) -> Iterator[Event]:
        """Add text to an item, the open one if it is of this type."""
        if kind != self._open_type:
            yield from self._closing(is_complete=self._is_text)
            yield from self._opening(kind, _message() if kind == "message" else {"summary": [], "content": []})
        self._pieces.append(text)
        logprobs: list[TokenLogprob] = []
        if kind == "message":
            logprobs, self._unsent = self._unsent, []
            self._logprobs += logprobs
        yield self._delta(text, logprobs)

    def _opening(self, kind: str, fields: Mapping[str, Any]) -> Iterator[Event]:
        """Begin an item."""
        self._open_type = kind
        item = {"id": f"{_KINDS[kind][0]}_{secrets.token_hex(16)}", "type": kind, **fields}
        if kind != "custom_tool_call":  # OpenAI's has no status
            item["status"] = "in_progress"
        self._output.append(item)
        yield {"type": "response.output_item.added", **self._index(), "item": {**item}}
        if kind in _PART_TYPES:
            yield {"type": "response.content_part.added", **self._place(), "part": self._part("", [])}

    def _delta(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Event:
        event = {"type": f"{_KINDS[self._open_type][1]}.delta", **self._place(), "delta": text}
        return event | {"logprobs": _short(logprobs)} if self._open_type == "message" else event

    def _closing(self, *, is_complete: bool) -> Iterator[Event]:
        """End the open item."""
        if not self._open_type:
            return
        _, prefix, field = _KINDS[self._open_type]
        text, logprobs = "".join(self._pieces), self._logprobs + self._unsent
        done = {"type": f"{prefix}.done", **self._place(), field: text}
        yield done | {"logprobs": _short(logprobs)} if self._open_type == "message" else done
        if self._is_text:
            yield {"type": "response.content_part.done", **self._place(), "part": self._part(text, logprobs)}
        place = self._index()
        item = self._close_item("completed" if is_complete else "incomplete")
        yield {"type": "response.output_item.done", **place, "item": item}

    def _close_item(self, status: str) -> dict[str, Any]:
        """Complete the open item with its text."""
        if not self._open_type:
            return {}
        item, text = self._output[-1], "".join(self._pieces)
        if self._is_text:
            item["content"] = [self._part(text, self._logprobs + self._unsent)]
            if self._open_type == "reasoning" and self._is_sealed:
                item["encrypted_content"] = sealed_thinking(text)
        else:
            item[_KINDS[self._open_type][2]] = text
        if "status" in item:
            item["status"] = status
        if self._open_type != "reasoning":
            self._unsent = []
        self._open_type, self._pieces, self._logprobs = "", [], []
        return item

    def _index(self) -> dict[str, Any]:
        return {"output_index": len(self._output) - 1}

    def _place(self) -> dict[str, Any]:
        place = {"item_id": self._output[-1]["id"], **self._index()}
        return place | {"content_index": 0} if self._is_text else place

    def _part(self, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        part = {"type": _PART_TYPES[self._open_type], "text": text}
        return part | {"annotations": [], "logprobs": [*logprobs]} if self._open_type == "message" else part


def _message() -> dict[str, Any]:
    return {"role": "assistant", "content": []}


def _frame(body: ResponsesRequest, chat: ChatCompletionRequest, identity: str, model: str, created: int) -> Response:
    """Return the answer without its output."""
    choice, form = body.tool_choice, body.text_format
    return {
        "id": identity,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        "store": False,
        "background": False,
        "previous_response_id": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": chat.tier() or "default",
        "temperature": body.temperature,
        "text": {"format": _dumped(form) if form else {"type": "text"}},
        "tool_choice": "auto" if choice is None else choice.word or _dumped(choice),
        "tools": [_dumped(tool) for tool in body.tools or () if not tool.is_skipped],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _dumped(body: Body) -> dict[str, Any]:
    """Return an object of the request without the fields that are unknown here."""
    return body.model_dump(by_alias=True, exclude_none=True, include=set(type(body).model_fields))


def _usage(usage: Usage) -> ResponseUsage:
    return {
        "input_tokens": usage.num_input_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_input_tokens + usage.num_output_tokens,
    }


def _error(error: APIError) -> ResponseError:
    """Return an error by OpenAI's short list of codes."""
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return {"code": "rate_limit_exceeded", "message": error.message}
    return {"code": "server_error" if error.status >= 500 else "invalid_prompt", "message": error.message}


def _short(logprobs: Iterable[TokenLogprob]) -> list[TextLogprob]:
    """Return log probabilities as events have them: without bytes."""
    return [
        {
            "token": item["token"],
            "logprob": item["logprob"],
            "top_logprobs": [{"token": top["token"], "logprob": top["logprob"]} for top in item["top_logprobs"]],
        }
        for item in logprobs
    ]
