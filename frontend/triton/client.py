"""One Triton, as the frontend asks it: the stages, its repository of models, and the generations."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Container, Mapping, Sequence

import numpy as np

from frontend.errors import APIError
from frontend.triton.channel import RPC_TIMEOUT_S, Connection, TritonCredentials, unary
from frontend.triton.deliveries import ID_MARK
from frontend.triton.endpoints import ModelFilter
from frontend.triton.failures import understood
from frontend.triton.generations import Generations
from frontend.triton.messages import Tensors, infer_request, tensors_from_response
from frontend.triton.models import ModelSnapshot
from frontend.triton.one_response import one_response
from frontend.triton.repository import Repository
from model_repository import contract
from model_repository.chunk_tensors import tensors_to_chunk
from model_repository.generation import FinishReason, GenerationChunk, GenerationRequest, Prompt, Usage
from model_repository.request_tensors import prompt_inputs, request_to_tensors
from model_repository.stage_messages import EngineStats, Release, ReleaseDetails, TokenizeOptions
from model_repository.tensors import array

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
        """Have the tokenizer stage look at a request, without generating anything.

        Raises:
            APIError: the request would be refused, or Triton did not answer.
        """
        await self._ask_tokenizer(slug, request_to_tensors(request), f"check{ID_MARK}{request.request_id}")

    async def tokenize(self, slug: str, prompt: Prompt, *, add_special_tokens: bool) -> tuple[list[int], list[str]]:
        """Return a prompt's token ids, and each token as the vocabulary writes it.

        Raises:
            APIError: the prompt was refused, or Triton did not answer.
        """
        options = TokenizeOptions(add_special_tokens=add_special_tokens)
        inputs = {spec.name: array(spec, *elements) for spec, elements in prompt_inputs(prompt)}
        inputs[contract.TOKENIZE.name] = array(contract.TOKENIZE, options.to_json())
        outputs = await self._ask_tokenizer(slug, inputs)
        with understood("of a tokenizer"):
            strings = outputs[contract.TOKEN_STRINGS.name].reshape(-1).tolist()
            token_ids: list[int] = outputs[contract.PROMPT_TOKEN_IDS.name].reshape(-1).tolist()
            return token_ids, [item.decode("utf-8", "replace") for item in strings]

    async def detokenize(self, slug: str, token_ids: Sequence[int], *, has_special_tokens: bool) -> str:
        """Return the text of token ids; special tokens are left out unless asked for.

        Raises:
            APIError: the ids were refused, or Triton did not answer.
        """
        release = Release(
            sequence=0,
            token_ids=tuple(token_ids),
            finish_reason=FinishReason.STOP,
            usage=Usage(num_input_tokens=0, num_output_tokens=0),
        )
        details = ReleaseDetails(has_special_tokens=has_special_tokens)
        inputs = {
            contract.RELEASE.name: release.to_array()[np.newaxis],
            contract.RELEASE_DETAILS.name: array(contract.RELEASE_DETAILS, details.to_json()),
        }
        outputs = await self._one_response(contract.stage_name(slug, "detokenizer"), inputs)
        with understood("of a detokenizer"):
            return tensors_to_chunk(outputs).text

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
        """Have a model's engine do the same, and end every stream of deliveries: what it sends arrives nowhere.

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

    async def _ask_tokenizer(self, slug: str, inputs: Tensors, request_id: str = "") -> Tensors:
        message = infer_request(contract.stage_name(slug, "tokenizer"), inputs, request_id)
        answer = await unary(self._connection.stub.ModelInfer, message)
        with understood("of a tokenizer"):
            return tensors_from_response(answer)

    async def _cancel(self, slug: str, cancel_key: str) -> None:
        await self._control(slug, {"cancel_key": cancel_key}, _CANCEL_TIMEOUT_S)

    async def _epoch(self, slug: str) -> int | None:
        with contextlib.suppress(APIError):
            return (await self.engine_stats(slug, _EPOCH_TIMEOUT_S)).epoch
        return None

    async def _control(self, slug: str, command: Mapping[str, str | bool], timeout_s: float) -> EngineStats:
        key = {"key": self._key} if self._key else {}
        inputs = {contract.CONTROL.name: array(contract.CONTROL, json.dumps({**command, **key}))}
        tensors = await self._one_response(contract.stage_name(slug, "engine"), inputs, timeout_s)
        with understood("of an engine"):
            stats = EngineStats.from_json(tensors[contract.STATS.name].item())
            self._adapters[slug] = tuple(stats.adapters)
            return stats

    async def _one_response(self, stage: str, inputs: Tensors, timeout_s: float = RPC_TIMEOUT_S) -> Tensors:
        return await one_response(self._connection.stub, infer_request(stage, inputs), timeout_s)
