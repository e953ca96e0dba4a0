"""Text to token ids and back, by the served model's own tokenizer."""

from __future__ import annotations

from aiohttp import web

from frontend.handlers.context import TRITON, find_model, json_response, read_body
from frontend.handlers.limited import count_request
from frontend.protocol.answers import Detokenization, Tokenization
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from frontend.translate.requests import tokenize_to_prompt


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize."""
    body, headers = await read_body(request, TokenizeRequest)
    model = (await find_model(request, body.model)).model
    await count_request(request, model.id)
    token_ids, strings = await request.app[TRITON].tokenize(
        model.slug, tokenize_to_prompt(body), add_special_tokens=body.add_special_tokens is not False
    )
    answer: Tokenization = {
        "count": len(token_ids),
        "max_model_len": model.context_window,
        "tokens": token_ids,
        "token_strs": strings if body.return_token_strs else None,
    }
    return json_response(answer, headers=headers)


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize."""
    body, headers = await read_body(request, DetokenizeRequest)
    model = (await find_model(request, body.model)).model
    await count_request(request, model.id)
    text = await request.app[TRITON].detokenize(model.slug, body.tokens, has_special_tokens=True)
    answer: Detokenization = {"prompt": text}
    return json_response(answer, headers=headers)
