"""Anthropic's endpoints."""

from __future__ import annotations

from aiohttp import web

from frontend.handlers.bodies import work_on_body
from frontend.handlers.call import Call
from frontend.handlers.completions import answer_chat, num_prompt_tokens
from frontend.protocol.answers import MessageTokens
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.messages import CountTokensRequest, MessagesRequest
from frontend.request_context import FACTS, SETTINGS, json_response
from frontend.translate.message_chat import messages_to_chat
from frontend.translate.message_reply import MessageReply


async def create_message(call: Call[MessagesRequest]) -> web.StreamResponse:
    """POST /v1/messages."""
    chat = await _chat_call(call)
    return await answer_chat(chat, MessageReply(chat.body, call.name, call.request[FACTS].request_id))


async def count_tokens(call: Call[CountTokensRequest]) -> web.Response:
    """POST /v1/messages/count_tokens."""
    chat = await _chat_call(call)
    answer: MessageTokens = {"input_tokens": await num_prompt_tokens(chat)}
    return json_response(answer, headers=chat.headers)


async def _chat_call(call: Call[CountTokensRequest] | Call[MessagesRequest]) -> Call[ChatCompletionRequest]:
    request = call.request
    has_billing_header = call.app[SETTINGS].keep_billing_header
    chat = await work_on_body(request, messages_to_chat, call.body, call.name, has_billing_header, call.places)
    headers = {**call.headers, "request-id": request[FACTS].request_id}
    return Call(request, call.app, chat, call.name, headers, call.ignored, call.places)
