"""Text to token ids and back, by the served model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from frontend.handlers.bodies import ignored_header, read_body
from frontend.protocol.answers import Detokenization, Tokenization
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from frontend.request_context import LIMITS, TRITON, find_model, json_response, lock_of_sender, sender_of
from frontend.translate.requests import check_num_tokens, ignored_fields, tokenize_to_prompt


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize."""
    body, ignored = await read_body(request, TokenizeRequest)
    name = await find_model(request, body.model)
    headers, model = ignored_header(request, ignored + ignored_fields(body, name)), name.model
    await _count_request(request, model.id)
    answered = await request.app[TRITON].tokenize(
        model.ensemble,
        tokenize_to_prompt(body, name),
        add_special_tokens=body.add_special_tokens is not False,
        sender=sender_of(request),
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
    text = await detokenized(request, model.ensemble, body.tokens, has_special_tokens=True)
    answer: Detokenization = {"prompt": text}
    return json_response(answer, headers=headers)


async def detokenized(
    request: web.Request, ensemble: str, token_ids: Sequence[int], *, has_special_tokens: bool
) -> str:
    """Return the text of token ids. All streams wait while the detokenizer stage makes it.

    Raises:
        APIError: see `ReplicaPool.detokenize`.
    """
    async with lock_of_sender(request):
        return await request.app[TRITON].detokenize(ensemble, token_ids, has_special_tokens=has_special_tokens)


async def _count_request(request: web.Request, model: str) -> None:
    if (limits := request.app.get(LIMITS)) is not None:
        await limits.count_request(request, model)
