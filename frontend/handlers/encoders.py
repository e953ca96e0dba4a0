"""The endpoints of models that embed or score."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from frontend.handlers.call import Call
from frontend.handlers.generation import Generation, admit
from frontend.handlers.large_answers import LARGE_ANSWERS
from frontend.protocol.embeddings import EncoderBody
from frontend.request_context import FACTS
from frontend.translate.reply import WholeReply
from frontend.triton.models import ModelName
from model_repository.contract.output import VectorChunk
from model_repository.contract.request import GenerationRequest


def encoding[Request: EncoderBody](
    to_requests: Callable[[Request, ModelName, str], Sequence[GenerationRequest]],
    reply: Callable[[Request, ModelName], WholeReply[VectorChunk]],
) -> Callable[[Call[Request]], Awaitable[web.StreamResponse]]:
    """Return the handler of an endpoint. Each prompt of a body is a request of its own, in a place of its own."""

    async def answer(call: Call[Request]) -> web.StreamResponse:
        request, body, name = call.request, call.body, call.name
        # The requests are larger than the body, so they have memory first.
        await call.app[LARGE_ANSWERS].expect_vectors(request, name, body.num_prompts)
        async with await admit(call, to_requests(body, name, request[FACTS].request_id)) as admitted:
            return await Generation(call, admitted, reply(body, name)).whole()

    return answer
