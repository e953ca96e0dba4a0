"""The endpoints of models that score: rerank, score and classify."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from frontend.handlers.call import Call
from frontend.handlers.generation import answer_each
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest
from frontend.request_context import FACTS
from frontend.translate.embeddings import place_of
from frontend.translate.reply import WholeReply
from frontend.translate.scores import (
    ClassifyReply,
    RerankReply,
    ScoreReply,
    pairs_to_requests,
    place_of_longer,
    place_of_second,
    texts_to_requests,
)


async def rerank(call: Call[RerankRequest]) -> web.StreamResponse:
    """POST /v1/rerank: documents by their relevance for a query."""
    return await _answer_pairs(call, RerankReply(call.body, call.name))


async def score(call: Call[ScoreRequest]) -> web.StreamResponse:
    """POST /v1/score: a score for each pair."""
    return await _answer_pairs(call, ScoreReply(call.body, call.name))


async def _answer_pairs(call: Call[RerankRequest] | Call[ScoreRequest], reply: WholeReply) -> web.StreamResponse:
    body = call.body
    to_requests, pairs = partial(pairs_to_requests, body, call.name, call.request[FACTS].request_id), body.pairs()
    return await answer_each(
        call,
        len(pairs),
        to_requests,
        reply,
        lambda index: place_of_longer(body, pairs[index], index),
        lambda index: place_of_second(body, index),
    )


async def classify(call: Call[ClassifyRequest]) -> web.StreamResponse:
    """POST /v1/classify: a label for each input."""
    body = call.body
    to_requests = partial(texts_to_requests, body, call.name, call.request[FACTS].request_id)
    reply = ClassifyReply(body, call.name)
    return await answer_each(
        call, len(body.input), to_requests, reply, lambda index: place_of("input", body.input, index)
    )
