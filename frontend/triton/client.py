"""One Triton, as the frontend asks it: the stages, its repository of models, and the generations."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Container, Mapping, Sequence

import msgspec

from frontend.errors import APIError
from frontend.triton.channel import RPC_TIMEOUT_S, Connection, TritonCredentials, unary
from frontend.triton.endpoints import ModelFilter
from frontend.triton.failures import error_from_message, understood
from frontend.triton.generations import Generations
from frontend.triton.messages import infer_request, payload_of
from frontend.triton.models import ModelSnapshot
from frontend.triton.one_response import one_response
from frontend.triton.repository import Repository
from model_repository.contract.codec import pack, unpack
from model_repository.contract.output import (
    ChunkBatch,
    DeltaDetails,
    EngineStats,
    GenerationChunk,
    OutputBatch,
    TokenDelta,
)
from model_repository.contract.request import (
    EngineRequestBatch,
    GenerationRequest,
    Prompt,
    RequestBatch,
    TokenizeAnswer,
    TokenizeRequest,
)
from model_repository.contract.spec import TensorSpec
from model_repository.contract.tensors import (
    CHUNK_BATCH,
    CONTROL,
    ENGINE_REQUESTS,
    OUTPUT_BATCH,
    REQUEST_BATCH,
    STATS,
    TOKENIZE,
    TOKENS,
    stage_name,
)

_CANCEL_TIMEOUT_S = 5.0
_EPOCH_TIMEOUT_S = 1.0
_ADAPTER_TIMEOUT_S = 120.0  # its files are read from wherever they are, and the engine ends its step first


class TritonClient:
    """One Triton endpoint. Made inside a running event loop, closed with `close`.

    Args:
        endpoint: its gRPC host:port.
        credentials: for TLS; None: the connection is not encrypted.
        server_name: that its certificate must have; empty: the endpoint's host.
        key: to its restricted APIs; empty: they stay closed.
        on_late: told a model's slug and a request's id when something comes after the completion's finish.
        offered: ids of the models that there are; what else the endpoint has is not seen.
    """

    def __init__(
        self,
        endpoint: str,
        credentials: TritonCredentials | None = None,
        server_name: str = "",
        on_late: Callable[[str, str], None] = lambda slug, request_id: None,
        offered: Container[str] | None = None,
        key: str = "",
    ) -> None:
        self._key = key
        self._connection = Connection(endpoint, credentials, server_name, key)
        self._repository = Repository(self._connection, ModelFilter() if offered is None else offered)
        self._adapters: dict[str, tuple[str, ...]] = {}  # by slug: as its engine said the last time
        self._generations = Generations(self._connection, cancel=self._cancel, ask_epoch=self._epoch, on_late=on_late)

    @property
    def on_stage_down(self) -> Callable[[str, float], None]:
        """Told the Triton name of a stage whose process is gone, and when the request began that found it."""
        return self._generations.on_stage_down

    @on_stage_down.setter
    def on_stage_down(self, told: Callable[[str, float], None]) -> None:
        self._generations.on_stage_down = told

    def generate(self, slug: str, request: GenerationRequest) -> AsyncGenerator[GenerationChunk, None]:
        """Yield the completion, as `Generations.generate`."""
        return self._generations.generate(slug, request)

    def abort(self, stage: str, error: APIError, *, spared_epoch: int | None = None) -> int:
        """End the running generations that need a lost stage, as `Generations.abort`."""
        return self._generations.abort(stage, error, spared_epoch=spared_epoch)

    def end_all(self, error: APIError) -> int:
        """End every running generation; return how many there were."""
        return self._generations.end_all(error)

    def stalled_stages(self, slug: str, fair_s: float, limit_s: float) -> set[str]:
        """Return the stages through which nothing comes, as `Generations.stalled_stages`."""
        return self._generations.stalled_stages(slug, fair_s, limit_s)

    async def snapshot(self) -> ModelSnapshot:
        """Return what Triton serves at this moment, as `Repository.snapshot`."""
        return await self._repository.snapshot(self._adapters)

    async def repository(self) -> set[str]:
        """Return the slugs of all models that Triton could load, as `Repository.slugs`."""
        return await self._repository.slugs()

    async def unload(self, stage: str) -> None:
        """Unload a stage, as `Repository.unload`."""
        await self._repository.unload(stage)

    async def load(self, slug: str, stage: str) -> None:
        """Load a stage and the ensembles that stand on it, as `Repository.load`."""
        await self._repository.load(slug, stage)

    async def check(self, slug: str, request: GenerationRequest) -> None:
        """Have the tokenizer stage check a request, without generating anything.

        Raises:
            APIError: the request would be refused, or Triton did not answer.
        """
        payload = pack(RequestBatch("", ((0, request),)))
        answer = await self._ask_tokenizer(slug, REQUEST_BATCH, payload, ENGINE_REQUESTS)
        with understood("of a tokenizer"):
            [(_, item)] = unpack(EngineRequestBatch, answer, ENGINE_REQUESTS.name).items
        if isinstance(item, str):
            raise error_from_message(item)

    async def tokenize(self, slug: str, prompt: Prompt, *, add_special_tokens: bool) -> TokenizeAnswer:
        """Return a prompt's tokens.

        Raises:
            APIError: the prompt was refused, or Triton did not answer.
        """
        payload = pack(TokenizeRequest(prompt, add_special_tokens))
        answer = await self._ask_tokenizer(slug, TOKENIZE, payload, TOKENS)
        with understood("of a tokenizer"):
            return unpack(TokenizeAnswer, answer, TOKENS.name)

    async def detokenize(self, slug: str, token_ids: Sequence[int], *, has_special_tokens: bool) -> str:
        """Return the text of token ids; special tokens are left out unless asked for.

        Raises:
            APIError: the ids were refused, or Triton did not answer.
        """
        details = DeltaDetails(has_special_tokens=has_special_tokens)
        batch = OutputBatch(0, 0, False, ((0, TokenDelta(token_ids=tuple(token_ids), details=details)),))
        payload = await self._one_response(stage_name(slug, "detokenizer"), OUTPUT_BATCH, pack(batch), CHUNK_BATCH)
        with understood("of a detokenizer"):
            [(_, chunk)] = unpack(ChunkBatch, payload, CHUNK_BATCH.name).items
            if isinstance(chunk, str):
                raise ValueError("an error in place of a text")
            return chunk.text

    async def engine_stats(self, slug: str, timeout_s: float) -> EngineStats:
        """Ask a model's engine how it is.

        Raises:
            APIError: it did not answer.
        """
        return await self._control(slug, {}, timeout_s)

    async def fail_running(self, slug: str) -> None:
        """Have a model's engine end everything that it works on with an error, whoever asked for it.

        Raises:
            APIError: it did not answer.
        """
        await self._control(slug, {"fail": "running"}, RPC_TIMEOUT_S)

    async def fail_streams(self, slug: str) -> None:
        """Have a model's engine do the same, and end every output stream: its batches arrive nowhere.

        Raises:
            APIError: it did not answer.
        """
        await self._control(slug, {"fail": "streams"}, RPC_TIMEOUT_S)

    async def drain(self, slug: str, *, is_draining: bool) -> None:
        """Have a model's engine tell every frontend that looks at it to send requests elsewhere, or not any more.

        Raises:
            APIError: it did not answer.
        """
        await self._control(slug, {"drain": is_draining}, RPC_TIMEOUT_S)

    async def load_adapter(self, slug: str, name: str, source: str) -> EngineStats:
        """Have a model's engine load a LoRA adapter from below its root of adapters, and offer it under a name.

        Raises:
            APIError: it refused, or did not answer.
        """
        return await self._control(slug, {"load_adapter": name, "source": source}, _ADAPTER_TIMEOUT_S)

    async def unload_adapter(self, slug: str, name: str) -> EngineStats:
        """Have a model's engine offer a LoRA adapter no more; requests under way keep it.

        Raises:
            APIError: it has none of that name, refused, or did not answer.
        """
        return await self._control(slug, {"unload_adapter": name}, _ADAPTER_TIMEOUT_S)

    async def close(self) -> None:
        """Let go of the connection, once the cancellations under way have been told."""
        await self._generations.close()
        await self._connection.close()

    async def _ask_tokenizer(self, slug: str, question: TensorSpec, payload: bytes, answer: TensorSpec) -> bytes:
        message = infer_request(stage_name(slug, "tokenizer"), question, payload)
        response = await unary(self._connection.stub.ModelInfer, message)
        with understood("of a tokenizer"):
            return payload_of(response, answer)

    async def _cancel(self, slug: str, cancel_key: str) -> None:
        await self._control(slug, {"cancel_key": cancel_key}, _CANCEL_TIMEOUT_S)

    async def _epoch(self, slug: str) -> int | None:
        with contextlib.suppress(APIError):
            return (await self.engine_stats(slug, _EPOCH_TIMEOUT_S)).epoch
        return None

    async def _control(self, slug: str, command: Mapping[str, str | bool], timeout_s: float) -> EngineStats:
        key = {"key": self._key} if self._key else {}
        message = json.dumps({**command, **key}).encode()
        payload = await self._one_response(stage_name(slug, "engine"), CONTROL, message, STATS, timeout_s)
        with understood("of an engine"):
            stats = msgspec.json.decode(payload, type=EngineStats)
        self._adapters[slug] = tuple(stats.adapters)
        return stats

    async def _one_response(
        self, stage: str, question: TensorSpec, payload: bytes, answer: TensorSpec, timeout_s: float = RPC_TIMEOUT_S
    ) -> bytes:
        response = await one_response(self._connection.stub, infer_request(stage, question, payload), timeout_s)
        with understood(f"of {stage}"):
            return payload_of(response, answer)
