"""The endpoints of OpenAI's Responses API."""

from __future__ import annotations

import time
from dataclasses import replace

from aiohttp import web

from frontend.errors import ContextLengthExceeded
from frontend.handlers.bodies import work_on_body
from frontend.handlers.call import Call
from frontend.handlers.completions import answer_chat, num_prompt_tokens
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.response_objects import InputTokens
from frontend.protocol.responses import InputTokensRequest, ResponsesRequest
from frontend.request_context import json_response
from frontend.translate.responses_chat import responses_to_chat
from frontend.translate.responses_reply import ResponsesReply

_SHARE_OF_ANSWER = 4  # a quarter of the context window, if the request has no max_output_tokens


async def create_response(call: Call[ResponsesRequest]) -> web.StreamResponse:
    """POST /v1/responses."""
    chat = await _chat_call(call)
    return await answer_chat(chat, ResponsesReply(call.body, chat.body, call.name, int(time.time())))


async def count_input_tokens(call: Call[InputTokensRequest]) -> web.Response:
    """POST /v1/responses/input_tokens."""
    chat = await _chat_call(call)
    answer: InputTokens = {"object": "response.input_tokens", "input_tokens": await num_prompt_tokens(chat)}
    return json_response(answer, headers=call.headers)


async def _chat_call(call: Call[InputTokensRequest] | Call[ResponsesRequest]) -> Call[ChatCompletionRequest]:
    body = await work_on_body(call.request, responses_to_chat, call.body, call.name)
    chat = Call(call.request, body, call.name, call.headers, call.ignored)
    if call.body.truncation != "auto":
        return chat
    window = call.name.model.parameters.context_window
    limit = call.body.max_output_tokens if isinstance(call.body, ResponsesRequest) else None
    return await _truncated(chat, window - (limit or window // _SHARE_OF_ANSWER))


async def _truncated(call: Call[ChatCompletionRequest], max_tokens: int) -> Call[ChatCompletionRequest]:
    """Leave out as few of the oldest turns as make the prompt fit into so many tokens; the last turn stays.

    A turn begins with a message of the user. The instructions before the first one stay.
    """
    chat = call.body
    starts = [index for index, message in enumerate(chat.messages) if message.role == "user"]

    def from_turn(number: int) -> Call[ChatCompletionRequest]:
        messages = chat.messages[: starts[0]] + chat.messages[starts[number] :]
        return replace(call, body=chat.model_copy(update={"messages": messages}))

    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2 if low else 0  # most conversations fit
        try:
            fits = await num_prompt_tokens(from_turn(middle)) <= max_tokens
        except ContextLengthExceeded:
            fits = False
        low, high = (low, middle) if fits else (middle + 1, high)
    return from_turn(low) if starts else call
