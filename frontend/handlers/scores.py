"""The endpoints of models that score: rerank, score and classify."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from frontend.handlers.call import Call
from frontend.handlers.generation import answer_each
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest
from frontend.request_context import FACTS
from frontend.translate.scores import (
    ClassifyReply,
    RerankReply,
    ScoreReply,
    pairs_to_requests,
    texts_to_requests,
)


async def rerank(call: Call[RerankRequest]) -> web.StreamResponse:
    """POST /v1/rerank: documents by their relevance for a query."""
    return await _answer_pairs(call, RerankReply(call.body, call.name))


async def score(call: Call[ScoreRequest]) -> web.StreamResponse:
    """POST /v1/score: a score for each pair."""
    return await _answer_pairs(call, ScoreReply(call.body, call.name))


async def _answer_pairs(
    call: Call[RerankRequest] | Call[ScoreRequest], reply: RerankReply | ScoreReply
) -> web.StreamResponse:
    to_requests = partial(pairs_to_requests, call.body, call.name, call.request[FACTS].request_id)
    return await answer_each(call, len(call.body.pairs()), to_requests, reply)


async def classify(call: Call[ClassifyRequest]) -> web.StreamResponse:
    """POST /v1/classify: a label for each input."""
    body = call.body
    to_requests = partial(texts_to_requests, body, call.name, call.request[FACTS].request_id)
    return await answer_each(call, len(body.input), to_requests, ClassifyReply(body, call.name))
