"""Text to token ids and back, by the served model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from frontend.handlers.call import Call
from frontend.handlers.documents import with_documents
from frontend.handlers.large_answers import LARGE_ANSWERS
from frontend.protocol.answers import Detokenization, Tokenization
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from frontend.request_context import TRITON, lock_of_sender, sender_of
from frontend.translate.requests import check_num_tokens, tokenize_to_prompt


async def tokenize(call: Call[TokenizeRequest]) -> web.StreamResponse:
    """POST /tokenize."""
    call = await with_documents(call)
    body, model, memory = call.body, call.name.model, call.app[LARGE_ANSWERS]
    await memory.expect_tokens(call.request, has_strings=bool(body.return_token_strs))
    triton, sender = call.app[TRITON], sender_of(call.request)
    async with triton.held(model.id, sender):
        answered = await triton.tokenize(
            model.id,
            tokenize_to_prompt(body, call.name),
            add_special_tokens=body.add_special_tokens is not False,
            sender=sender,
            has_strings=bool(body.return_token_strs),
        )
    answer: Tokenization = {
        "count": len(answered.token_ids),
        "max_model_len": model.parameters.context_window,
        "tokens": list(answered.token_ids),
        "token_strs": list(answered.strings) if body.return_token_strs else None,
    }
    return await memory.answer(call.request, answer, call.headers)


async def detokenize(call: Call[DetokenizeRequest]) -> web.StreamResponse:
    """POST /detokenize."""
    tokens, model = call.body.tokens, call.name.model
    check_num_tokens(len(tokens), "tokens", model)
    async with call.app[TRITON].held(model.id, sender_of(call.request)):
        text = await detokenized(call.request, model.id, tokens, has_special_tokens=True)
    answer: Detokenization = {"prompt": text}
    return await call.app[LARGE_ANSWERS].answer(call.request, answer, call.headers)


async def detokenized(
    request: web.Request, model_id: str, token_ids: Sequence[int], *, has_special_tokens: bool
) -> str:
    """Return the text of token ids. The model is held.

    Raises:
        APIError: see `ReplicaPool.detokenize`.
    """
    async with lock_of_sender(request):
        return await request.app[TRITON].detokenize(
            model_id, token_ids, has_special_tokens=has_special_tokens, sender=sender_of(request)
        )
