"""Text to token ids and back, by the served model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from frontend.handlers.call import Call
from frontend.protocol.answers import Detokenization, Tokenization
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from frontend.request_context import TRITON, json_response, lock_of_sender, sender_of
from frontend.translate.requests import check_num_tokens, tokenize_to_prompt


async def tokenize(call: Call[TokenizeRequest]) -> web.Response:
    """POST /tokenize."""
    body, model = call.body, call.name.model
    answered = await call.request.app[TRITON].tokenize(
        model.id,
        tokenize_to_prompt(body, call.name),
        add_special_tokens=body.add_special_tokens is not False,
        sender=sender_of(call.request),
    )
    answer: Tokenization = {
        "count": len(answered.token_ids),
        "max_model_len": model.parameters.context_window,
        "tokens": list(answered.token_ids),
        "token_strs": list(answered.strings) if body.return_token_strs else None,
    }
    return json_response(answer, headers=call.headers)


async def detokenize(call: Call[DetokenizeRequest]) -> web.Response:
    """POST /detokenize."""
    tokens, model = call.body.tokens, call.name.model
    check_num_tokens(len(tokens), "tokens", model)
    answer: Detokenization = {"prompt": await detokenized(call.request, model.id, tokens, has_special_tokens=True)}
    return json_response(answer, headers=call.headers)


async def detokenized(
    request: web.Request, model_id: str, token_ids: Sequence[int], *, has_special_tokens: bool
) -> str:
    """Return the text of token ids. All streams wait while the detokenizer stage makes it.

    Raises:
        APIError: see `ReplicaPool.detokenize`.
    """
    async with lock_of_sender(request):
        return await request.app[TRITON].detokenize(model_id, token_ids, has_special_tokens=has_special_tokens)
