"""Text to token ids and back, by the served model's own tokenizer."""

from __future__ import annotations

from aiohttp import web

from frontend.handlers.bodies import ignored_header, read_body
from frontend.protocol.answers import Detokenization, Tokenization
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from frontend.request_context import LIMITS, TRITON, find_model, json_response
from frontend.translate.requests import check_num_tokens, ignored_fields, tokenize_to_prompt


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize."""
    body, ignored = await read_body(request, TokenizeRequest)
    name = await find_model(request, body.model)
    headers, model = ignored_header(request, ignored + ignored_fields(body, name)), name.model
    await _count_request(request, model.id)
    answered = await request.app[TRITON].tokenize(
        model.ensemble, tokenize_to_prompt(body, name), add_special_tokens=body.add_special_tokens is not False
    )
    answer: Tokenization = {
        "count": len(answered.token_ids),
        "max_model_len": model.parameters.context_window,
        "tokens": list(answered.token_ids),
        "token_strs": list(answered.strings) if body.return_token_strs else None,
    }
    return json_response(answer, headers=headers)


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize."""
    body, ignored = await read_body(request, DetokenizeRequest)
    headers = ignored_header(request, ignored)
    model = (await find_model(request, body.model)).model
    await _count_request(request, model.id)
    check_num_tokens(len(body.tokens), "tokens", model)
    text = await request.app[TRITON].detokenize(model.ensemble, body.tokens, has_special_tokens=True)
    answer: Detokenization = {"prompt": text}
    return json_response(answer, headers=headers)


async def _count_request(request: web.Request, model: str) -> None:
    if (limits := request.app.get(LIMITS)) is not None:
        await limits.count_request(request, model)
