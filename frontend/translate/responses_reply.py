"""The answer to a request of OpenAI's Responses API, whole or event by event."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from typing import Any

from frontend.errors import APIError
from frontend.json_pieces import lazy_list
from frontend.output_parser.deltas import ArgumentsDelta, CallBegin, CallEnd, OutputDelta, ReasoningDelta, TextDelta
from frontend.protocol.body import Body
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.response_objects import Response, ResponseError, ResponseStatus, ResponseUsage, TextLogprob
from frontend.protocol.responses import ResponsesRequest, ResponseTool, sealed_thinking
from frontend.translate.logprobs import chat_logprobs
from frontend.translate.reply import Event, Keep, Reply, chat_parsers
from frontend.triton.models import ModelName
from model_repository.contract.output import FinishReason, GenerationChunk, Usage
from model_repository.model_parameters import API_SAMPLING


@dataclass(frozen=True, slots=True)
class _Form:
    """How an item is written.

    Args:
        item: its type.
        prefix: of its id.
        events: the prefix of the events with pieces of its text.
        text: the field with its text, in the last of these events and in an item without parts.
        part: the type of its only part; empty: it has none.
        parts: the field with its parts.
        part_events: the prefix of the events of a part.
        part_index: the field with the number of the part.
    """

    item: str
    prefix: str
    events: str
    text: str = "text"
    part: str = ""
    parts: str = "content"
    part_events: str = "response.content_part"
    part_index: str = "content_index"


_MESSAGE = _Form("message", "msg", "response.output_text", part="output_text")
_THINKING = _Form("reasoning", "rs", "response.reasoning_text", part="reasoning_text")
# Many clients show a summary alone, so one who asks for it gets the whole thinking as its text.
_SUMMARY = _Form(
    "reasoning",
    "rs",
    "response.reasoning_summary_text",
    part="summary_text",
    parts="summary",
    part_events="response.reasoning_summary_part",
    part_index="summary_index",
)
_FUNCTION_CALL = _Form("function_call", "fc", "response.function_call_arguments", "arguments")
_CUSTOM_CALL = _Form("custom_tool_call", "ctc", "response.custom_tool_call_input", "input")
_ITEM = ("added", "done")  # events of an item
_EMPTY_MESSAGE: Mapping[str, Any] = {"role": "assistant", "content": []}
_FUNCTION: dict[str, Any] = {"description": None, "parameters": None, "strict": None}


class ResponsesReply(Reply):
    """Writes the answer to one request.

    Args:
        body: the request. The answer repeats its fields.
        chat: the request as a chat.
        name: the model, by the client's name.
        created: unix seconds.
        keep: stores a complete answer, and returns whether it is stored; None: it is not stored.
        made: the first items of the output.
        identity: of an answer in the background, which is stored before it begins; empty: a new one.
        clock: unix seconds, for the time of the end.
    """

    num_per_prompt, has_names, has_done, is_numbered, has_whole = 1, True, False, True, True

    def __init__(
        self,
        body: ResponsesRequest,
        chat: ChatCompletionRequest,
        name: ModelName,
        created: int,
        keep: Keep | None = None,
        made: Sequence[dict[str, Any]] = (),
        *,
        identity: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.id = identity or f"resp_{secrets.token_hex(16)}"
        [self._parser] = chat_parsers(chat, name)
        self._thinking = _SUMMARY if body.summary else _THINKING
        self._namespaces = {called: (space, tool.name) for called, space, tool, _ in body.offered_tools() if space}
        self._is_sealed = body.has_encrypted_content
        self._has_no_text = chat.must_call()
        self._has_logprobs = bool(chat.logprobs)
        self._is_plain = not (chat.may_call() or self._has_logprobs)
        self._frame = _frame(body, chat, self.id, name, created)
        self._is_queued = bool(identity)
        self._frame["background"] = self._is_queued
        self._frame["store"] = keep is not None or self._is_queued
        self._keep, self._clock = keep, clock
        self.ended: Response | None = None  # the answer at its end
        self._last: Sequence[Event] | None = None  # the events of the last chunk, once they are made
        self._made = made
        self._output: list[dict[str, Any]] = [*made]
        self._open: _Form | None = None  # the last item's while it is open
        self._pieces: list[str] = []  # texts of the open item
        self._logprobs: list[bytes] = []  # of its tokens, packed
        self._unsent: list[bytes] = []  # of tokens whose text is not sent yet

    def opening(self, first: GenerationChunk) -> Sequence[Event]:
        """Return the events before the content."""
        if self._is_queued:
            return [self._of_whole(name, self._empty("queued")) for name in ("created", "queued")]
        return [self._of_whole("created", self._empty("in_progress")), *self.begin()]

    def begin(self) -> Sequence[Event]:
        """Return the events that say that the answer is begun, with the first items."""
        events = [self._of_whole("in_progress", self._empty("in_progress"))]
        for index, item in enumerate(self._made):
            events += [{"type": f"response.output_item.{name}", "output_index": index, "item": item} for name in _ITEM]
        return events

    def plain_part(self, index: int, chunk: GenerationChunk) -> str | None:
        """See Reply."""
        part = self._parser.plain_part(chunk) if self._is_plain and chunk.text else None
        if part is None or self._open is not (_MESSAGE if part == "content" else self._thinking):
            return None
        self._pieces.append(chunk.text)
        return f"{part} {len(self._output)}"

    def plain_events(self, index: int, sample: GenerationChunk) -> Sequence[Event]:
        """See Reply."""
        return [self._delta(sample.text)]

    def events(self, index: int, chunk: GenerationChunk) -> Sequence[Event]:
        """Return the events of a chunk."""
        if self._last is not None:
            return self._last
        is_thinking = 0 < sum(chunk.spans[::2]) == len(chunk.text)
        if self._has_logprobs and not is_thinking:
            self._unsent += chunk.logprobs
        events = [event for parsed in self._parser.read(chunk) for event in self._events_of(parsed)]
        if chunk.finish_reason is not None:
            if len(self._output) == len(self._made):
                events += self._opening(_MESSAGE, _EMPTY_MESSAGE)
            is_cut = chunk.finish_reason is FinishReason.LENGTH
            events += self._closing(is_complete=self._is_text and not is_cut)
            status = "incomplete" if is_cut else "completed"
            events += self._end(status, self._response(status, chunk.usage))
        return events

    def cancelled(self) -> Sequence[Event]:
        """Return the event that ends an answer that the client stops."""
        self._close_item("incomplete")
        return self._end("cancelled", self._response("cancelled"))

    def so_far(self, status: ResponseStatus) -> Response:
        """Return the answer so far. No chunk may follow."""
        self._close_item("in_progress")
        return self._response(status)

    async def finish(self, index: int, chunk: GenerationChunk) -> None:
        """See Reply."""
        if self._keep is not None:
            events = self.events(index, chunk)
            response = events[-1]["response"]
            response["store"] = await self._keep(response)
            self._last = events

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
            *self._end("failed", self._response("failed", error=error)),
        ]

    def _empty(self, status: ResponseStatus) -> Response:
        response = self._response(status)
        response["output"] = []
        return response

    def _of_whole(self, name: str, response: Response) -> Event:
        return {"type": f"response.{name}", "response": response}

    def _end(self, name: str, response: Response) -> Sequence[Event]:
        self.ended = response
        return [self._of_whole(name, response)]

    def _response(self, status: Any, usage: Usage | None = None, error: APIError | None = None) -> Response:
        response = self._frame.copy()
        response["status"] = status
        response["output"] = [*self._output]  # type: ignore[list-item]
        if usage is not None:
            response["usage"] = _usage(usage)
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif status == "completed":
            response["completed_at"] = int(self._clock())
        if error is not None:
            response["error"] = _error(error)
        return response

    @property
    def _is_text(self) -> bool:
        """Whether a text or thinking is open. Only the parser says that a call is complete."""
        return self._open is not None and self._open.part != ""

    def _events_of(self, parsed: OutputDelta) -> Iterator[Event]:
        match parsed:
            case TextDelta(text):
                if not self._has_no_text:
                    yield from self._extended(_MESSAGE, text)
            case ReasoningDelta(text):
                yield from self._extended(self._thinking, text)
            case CallBegin(_, name):
                yield from self._closing(is_complete=self._is_text)
                form = _CUSTOM_CALL if parsed.is_custom else _FUNCTION_CALL
                space, own_name = self._namespaces.get(name, ("", name))
                call = {"call_id": self._next_id("call", 12), "name": own_name, form.text: ""}
                yield from self._opening(form, call | ({"namespace": space} if space else {}))
            case ArgumentsDelta(_, text):
                self._pieces.append(text)
                yield self._delta(text)
            case CallEnd():
                yield from self._closing(is_complete=True)

    def _extended(self, form: _Form, text: str) -> Iterator[Event]:
        """Add text to an item, the open one if it has this form."""
        if form is not self._open:
            yield from self._closing(is_complete=self._is_text)
            yield from self._opening(form, _EMPTY_MESSAGE if form is _MESSAGE else {"summary": [], "content": []})
        self._pieces.append(text)
        logprobs: list[bytes] = []
        if form is _MESSAGE:
            logprobs, self._unsent = self._unsent, []
            self._logprobs += logprobs
        yield self._delta(text, logprobs)

    def _opening(self, form: _Form, fields: Mapping[str, Any]) -> Iterator[Event]:
        """Begin an item."""
        self._open = form
        item = {"id": self._next_id(form.prefix, 16), "type": form.item, **fields}
        if form is not _CUSTOM_CALL:  # OpenAI's has no status
            item["status"] = "in_progress"
        self._output.append(item)
        yield {"type": "response.output_item.added", **self._index(), "item": {**item}}
        if form.part:
            yield {"type": f"{form.part_events}.added", **self._place(form), "part": self._part(form, "", [])}

    def _delta(self, text: str, logprobs: Sequence[bytes] = ()) -> Event:
        form = self._open
        assert form is not None, "text belongs to an item"
        event = {"type": f"{form.events}.delta", **self._place(form), "delta": text}
        return event | {"logprobs": lazy_list(partial(_short, logprobs))} if form is _MESSAGE else event

    def _closing(self, *, is_complete: bool) -> Iterator[Event]:
        """End the open item."""
        form = self._open
        if form is None:
            return
        text, logprobs = "".join(self._pieces), self._logprobs + self._unsent
        done = {"type": f"{form.events}.done", **self._place(form), form.text: text}
        yield done | {"logprobs": lazy_list(partial(_short, logprobs))} if form is _MESSAGE else done
        if form.part:
            yield {"type": f"{form.part_events}.done", **self._place(form), "part": self._part(form, text, logprobs)}
        self._close_item("completed" if is_complete else "incomplete")
        yield {"type": "response.output_item.done", **self._index(), "item": self._output[-1]}

    def _close_item(self, status: str) -> None:
        """Complete the open item with its text."""
        form = self._open
        if form is None:
            return
        item, text = self._output[-1], "".join(self._pieces)
        if form.part:
            item[form.parts] = [self._part(form, text, self._logprobs + self._unsent)]
        else:
            item[form.text] = text
        if form is self._thinking and self._is_sealed:
            item["encrypted_content"] = sealed_thinking(text)
        if "status" in item:
            item["status"] = status
        if form is not self._thinking:
            self._unsent = []
        self._open, self._pieces, self._logprobs = None, [], []

    def _next_id(self, prefix: str, num_bytes: int) -> str:
        """Return an id of the next item. The same chunks give the same ids, and the answer's own id is random."""
        name = f"{self.id} {prefix} {len(self._output)}".encode()
        return f"{prefix}_{blake2b(name, digest_size=num_bytes).hexdigest()}"

    def _index(self) -> dict[str, Any]:
        return {"output_index": len(self._output) - 1}

    def _place(self, form: _Form) -> dict[str, Any]:
        place = {"item_id": self._output[-1]["id"], **self._index()}
        return place | {form.part_index: 0} if form.part else place

    def _part(self, form: _Form, text: str, logprobs: Sequence[bytes]) -> dict[str, Any]:
        part = {"type": form.part, "text": text}
        if form is not _MESSAGE:
            return part
        return part | {"annotations": [], "logprobs": lazy_list(partial(chat_logprobs, logprobs))}


def _frame(
    body: ResponsesRequest, chat: ChatCompletionRequest, identity: str, name: ModelName, created: int
) -> Response:
    """Return the answer without its output."""
    choice, form = body.tool_choice, body.text_format
    sampling: dict[str, Any] = {**API_SAMPLING, **name.model.parameters.defaults_of(name.preset)}
    return {
        "id": identity,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": name.requested,
        "output": [],
        "usage": None,
        "store": False,
        "background": False,
        "previous_response_id": body.previous_response_id,
        "conversation": None if body.conversation is None else {"id": body.conversation.id},
        "frequency_penalty": sampling["frequency_penalty"],
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": sampling["presence_penalty"],
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.effort, "summary": body.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": chat.tier() or "default",
        "temperature": sampling["temperature"] if body.temperature is None else body.temperature,
        "text": {"format": _dumped(form) if form else {"type": "text"}},
        "tool_choice": "auto" if choice is None else choice.word or _dumped(choice),
        "tools": _tools(body.tools or ()),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling["top_p"] if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _tools(tools: Sequence[ResponseTool]) -> list[dict[str, Any]]:
    """Return those that are served. A function has each of its fields."""
    return [
        (_FUNCTION if tool.type == "function" else {})
        | _dumped(tool)
        | ({} if tool.tools is None else {"tools": _tools(tool.tools)})
        for tool in tools
        if not tool.is_skipped
    ]


def _dumped(body: Body) -> dict[str, Any]:
    """Return an object of the request without the fields that are unknown here."""
    return body.model_dump(by_alias=True, exclude_none=True, include=set(type(body).model_fields))


def _usage(usage: Usage) -> ResponseUsage:
    return {
        "input_tokens": usage.num_input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.num_cached_tokens,
            "cache_write_tokens": usage.num_input_tokens - usage.num_cached_tokens,
        },
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_input_tokens + usage.num_output_tokens,
    }


def _error(error: APIError) -> ResponseError:
    """Return an error by OpenAI's short list of codes."""
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return {"code": "rate_limit_exceeded", "message": error.message}
    return {"code": "server_error" if error.status >= 500 else "invalid_prompt", "message": error.message}


def _short(parts: Iterable[bytes]) -> Iterator[TextLogprob]:
    """Yield log probabilities as events have them: without bytes."""
    for item in chat_logprobs(parts):
        yield {
            "token": item["token"],
            "logprob": item["logprob"],
            "top_logprobs": [{"token": top["token"], "logprob": top["logprob"]} for top in item["top_logprobs"]],
        }
