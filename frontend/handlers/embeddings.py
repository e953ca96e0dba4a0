"""The endpoint of embeddings."""

from __future__ import annotations

from aiohttp import web

from frontend.errors import InvalidRequest
from frontend.handlers.call import Call
from frontend.handlers.generation import Generation, admitted_to
from frontend.protocol.embeddings import EmbeddingRequest
from frontend.request_context import FACTS
from frontend.translate.embeddings import EmbeddingReply, embedding_to_requests, place_of_input


async def embed(call: Call[EmbeddingRequest]) -> web.StreamResponse:
    """POST /v1/embeddings: each input is a prompt of its own, in a place of its own."""
    generations = embedding_to_requests(call.body, call.name, call.request[FACTS].request_id)
    async with admitted_to(call, generations) as admitted:
        try:
            return await Generation(call, admitted, EmbeddingReply(call.body, call.name)).whole()
        except InvalidRequest as exc:
            exc.blame("prompt", place_of_input(call.body, exc.index))
            raise
