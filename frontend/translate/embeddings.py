"""Embeddings requests to generation requests, and vectors to the answer."""

from __future__ import annotations

import base64
import itertools
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import orjson
from msgspec.structs import replace

from frontend.errors import UnsupportedValue
from frontend.json_pieces import lazy_list
from frontend.protocol.answers import Embedding, EmbeddingList, EncoderAnswer
from frontend.protocol.embeddings import EmbeddingRequest, EncoderBody
from frontend.protocol.scores import ClassifyRequest
from frontend.translate.reply import WholeReply
from frontend.translate.requests import check_prompt_size
from frontend.triton.models import ModelName
from model_repository.contract.output import VectorChunk
from model_repository.contract.request import GenerationRequest, Params, Prompt, TextPrompt, TokenPrompt


def embedding_to_requests(body: EmbeddingRequest, name: ModelName, request_id: str = "") -> list[GenerationRequest]:
    """Return a request for each input.

    Args:
        request_id: for logs.

    Raises:
        UnsupportedValue: the model was not trained for vectors that are so short.
        ContextLengthExceeded: an input is longer than the context window.
    """
    _check_dimensions(body.dimensions, name)
    return inputs_to_requests(body, name, request_id)


def inputs_to_requests(
    body: EmbeddingRequest | ClassifyRequest, name: ModelName, request_id: str = ""
) -> list[GenerationRequest]:
    """Return a request for each input.

    Raises:
        ContextLengthExceeded: an input is longer than the context window.
    """
    requests = []
    for index, text_or_ids in enumerate(body.input):
        if body.truncate_prompt_tokens is None:
            check_prompt_size(text_or_ids, place_of("input", body.input, index), name.model)
        prompt = TextPrompt(text_or_ids) if isinstance(text_or_ids, str) else TokenPrompt(tuple(text_or_ids))
        requests.append(prompt_to_request(prompt, body.truncate_prompt_tokens, request_id))
    return requests


def prompt_to_request(prompt: Prompt, truncate_prompt_tokens: int | None, request_id: str) -> GenerationRequest:
    """Return the request of a prompt that is embedded or scored."""
    params = Params(
        max_tokens=1,  # charged by an estimate; there is no completion
        truncate_prompt_tokens=truncate_prompt_tokens,
        cancel_key=secrets.token_hex(16),
        has_timing=True,
    )
    return GenerationRequest(prompt=prompt, params=params, request_id=request_id)


def place_of(field: str, values: Sequence[object], index: int) -> str:
    """Return the place of a value in the body; the only one may be the field itself."""
    return f"{field}[{index}]" if len(values) > 1 else field


class EncoderReply[Request: EncoderBody](WholeReply[VectorChunk]):
    """Writes the answer to one request without a completion.

    Args:
        prefix: of the answer's id.
    """

    num_per_prompt = 1

    def __init__(self, body: Request, name: ModelName, prefix: str) -> None:
        self.id = f"{prefix}-{secrets.token_hex(16)}"
        self._body = body
        self._name = name

    def _shared(self, chunks: Sequence[VectorChunk]) -> EncoderAnswer:
        """Return the fields that all answers have, with the token counts of all prompts together."""
        num_tokens = sum(chunk.usage.num_input_tokens for chunk in chunks)
        answer: EncoderAnswer = {
            "id": self.id,
            "model": self._name.requested,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
        if (tier := self._body.tier()) is not None:
            answer["service_tier"] = tier
        return answer


def _check_dimensions(dimensions: int | None, name: ModelName) -> None:
    smallest = name.model.parameters.min_dimensions
    if dimensions is not None and dimensions < smallest:
        rule = f"the vectors of {name.requested} have at least {smallest} values"
        raise UnsupportedValue(f"dimensions={dimensions}: {rule}", param="dimensions")


class EmbeddingReply(EncoderReply[EmbeddingRequest]):
    """Writes the answer to one embeddings request."""

    def __init__(self, body: EmbeddingRequest, name: ModelName) -> None:
        super().__init__(body, name, "embd")

    def kept(self, index: int, chunk: VectorChunk) -> VectorChunk:
        """Return a chunk with its vector in the length that the client wants.

        Raises:
            UnsupportedValue: the model's vectors are shorter than wanted, or cannot be cut.
        """
        if self._body.dimensions is None:
            return chunk
        vector = self._shortened(np.frombuffer(chunk.embedding, "<f4"), self._body.dimensions)
        return replace(chunk, embedding=vector.tobytes())

    def whole(self, chunks: Sequence[VectorChunk]) -> EmbeddingList:
        """Return the vectors in the order of the inputs."""
        data = lazy_list(lambda: itertools.starmap(self._written, enumerate(chunks)))
        return {**self._shared(chunks), "object": "list", "data": data}

    def _written(self, index: int, chunk: VectorChunk) -> Embedding:
        """Return a vector in the form that the client wants; a number has as many digits as its type needs."""
        if self._body.encoding_format == "base64":
            written = b'"%b"' % base64.b64encode(chunk.embedding)
        else:
            written = orjson.dumps(np.frombuffer(chunk.embedding, "<f4"), option=orjson.OPT_SERIALIZE_NUMPY)
        return {"object": "embedding", "index": index, "embedding": orjson.Fragment(written)}

    def _shortened(self, vector: npt.NDArray[np.float32], length: int) -> npt.NDArray[np.float32]:
        is_whole_only = self._name.model.parameters.min_dimensions == 0
        if length > len(vector) or (is_whole_only and length < len(vector)):
            rule = f"the vectors of {self._name.requested} have {len(vector)} values"
            if is_whole_only:
                rule += ", always: the model has no Matryoshka training"
            raise UnsupportedValue(f"dimensions={length}: {rule}", param="dimensions")
        return vector[:length] / (np.linalg.norm(vector[:length]) or 1.0)
