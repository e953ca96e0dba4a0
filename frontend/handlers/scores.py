"""The endpoints of models that score: rerank, score and classify."""

from __future__ import annotations

from aiohttp import web

from frontend.handlers.call import Call
from frontend.handlers.generation import answer_each
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest
from frontend.request_context import FACTS
from frontend.translate.embeddings import inputs_to_requests, place_of_input
from frontend.translate.scores import ClassifyReply, RerankReply, ScoreReply, rerank_to_requests, score_to_requests


async def rerank(call: Call[RerankRequest]) -> web.StreamResponse:
    """POST /v1/rerank: documents by their relevance for a query."""
    requests = rerank_to_requests(call.body, call.name, call.request[FACTS].request_id)
    return await answer_each(call, requests, RerankReply(call.body, call.name), "documents[{}]".format)


async def score(call: Call[ScoreRequest]) -> web.StreamResponse:
    """POST /v1/score: a score for each pair."""
    requests = score_to_requests(call.body, call.name, call.request[FACTS].request_id)
    return await answer_each(call, requests, ScoreReply(call.body, call.name), "text_2[{}]".format)


async def classify(call: Call[ClassifyRequest]) -> web.StreamResponse:
    """POST /v1/classify: a label for each input."""
    body = call.body
    requests = inputs_to_requests(body, call.name, call.request[FACTS].request_id)
    reply = ClassifyReply(body, call.name)
    return await answer_each(call, requests, reply, lambda index: place_of_input(body.input, index))
