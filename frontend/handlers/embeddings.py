"""The endpoint of embeddings."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from frontend.handlers.call import Call
from frontend.handlers.generation import answer_each
from frontend.protocol.embeddings import EmbeddingRequest
from frontend.request_context import FACTS
from frontend.translate.embeddings import EmbeddingReply, embedding_to_requests


async def embed(call: Call[EmbeddingRequest]) -> web.StreamResponse:
    """POST /v1/embeddings: each input is a prompt of its own, in a place of its own."""
    body = call.body
    to_requests = partial(embedding_to_requests, body, call.name, call.request[FACTS].request_id)
    return await answer_each(call, len(body.input), to_requests, EmbeddingReply(body, call.name))
