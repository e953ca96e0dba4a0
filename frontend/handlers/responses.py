"""The endpoints of OpenAI's Responses API."""

from __future__ import annotations

import time

from aiohttp import web

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
    reply = ResponsesReply(call.body, chat.body, call.name, int(time.time()))
    return await answer_chat(chat, reply, _max_prompt_tokens(call))


async def count_input_tokens(call: Call[InputTokensRequest]) -> web.Response:
    """POST /v1/responses/input_tokens."""
    chat = await _chat_call(call)
    num_tokens = await num_prompt_tokens(chat, _max_prompt_tokens(call))
    answer: InputTokens = {"object": "response.input_tokens", "input_tokens": num_tokens}
    return json_response(answer, headers=call.headers)


async def _chat_call(call: Call[InputTokensRequest] | Call[ResponsesRequest]) -> Call[ChatCompletionRequest]:
    chat = await work_on_body(call.request, responses_to_chat, call.body, call.name, call.places)
    return Call(call.request, call.app, chat, call.name, call.headers, call.ignored, call.places)


def _max_prompt_tokens(call: Call[InputTokensRequest] | Call[ResponsesRequest]) -> int | None:
    """Return the room that the answer leaves in the context window; None: the conversation is not truncated."""
    if call.body.truncation != "auto":
        return None
    window = call.name.model.parameters.context_window
    limit = call.body.max_output_tokens if isinstance(call.body, ResponsesRequest) else None
    return max(window - (limit or window // _SHARE_OF_ANSWER), 0)
