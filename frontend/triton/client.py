"""The client of one Triton endpoint: its stages, its repository of models, and its generations."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

import grpc.aio
import msgspec
from msgspec.structs import replace
from tritonclient.grpc import service_pb2

from frontend import errors, loop_time
from frontend.errors import APIError
from frontend.triton.channel import RPC_TIMEOUT_S, TritonChannel, TritonCredentials, unary
from frontend.triton.endpoints import ModelFilter
from frontend.triton.failures import error_from_message, error_from_rpc, understood
from frontend.triton.generations import Generations
from frontend.triton.messages import infer_request, payload_of
from frontend.triton.models import ModelSnapshot
from frontend.triton.repository import Repository
from model_repository.contract.arbiter import ArbiterAnswer, ArbiterRequest, State
from model_repository.contract.codec import pack, unpack
from model_repository.contract.output import EngineStats, OutputBatch
from model_repository.contract.request import (
    MAX_BATCH_REQUESTS,
    DetokenizeRequest,
    EngineRequestBatch,
    GenerationRequest,
    Prompt,
    RequestBatch,
    TokenizeAnswer,
    TokenizeRequest,
)
from model_repository.contract.signature import SIGNATURE_BYTES
from model_repository.contract.spec import TensorSpec
from model_repository.contract.tensors import (
    ARBITER,
    ARBITER_ANSWER,
    ARBITER_REQUEST,
    CHUNK_BATCH,
    CONTROL,
    DETOKENIZE,
    ENGINE_REQUESTS,
    OUTPUT_BATCH,
    REQUEST_BATCH,
    STATS,
    TEXT,
    TOKENIZE,
    TOKENS,
    stage_name,
)
from model_repository.model_parameters import ModelParameters

_CANCEL_TIMEOUT_S = 5.0
_EPOCH_TIMEOUT_S = 1.0
_ADAPTER_TIMEOUT_S = 120.0  # its files are read from wherever they are, and the engine ends its step first
_ASLEEP = (State.UNLOADED, State.LOADING, State.UNLOADING)  # states of a model that a request may wait for


class TritonClient:
    """One Triton endpoint. Made inside a running event loop, closed with `close`.

    Args:
        endpoint: the gRPC host:port.
        credentials: for TLS; None: the connection is not encrypted.
        server_name: the name in the server's certificate; empty: the endpoint's host.
        offered: the model ids that this client sees; None: all.
        key: for Triton's restricted APIs; empty: they stay closed.
    """

    def __init__(
        self,
        endpoint: str,
        credentials: TritonCredentials | None = None,
        server_name: str = "",
        offered: Container[str] | None = None,
        key: str = "",
    ) -> None:
        self._key = key
        self._connection = TritonChannel(endpoint, credentials, server_name, key)
        self.repository = Repository(self._connection, ModelFilter() if offered is None else offered)
        self._adapters: dict[str, tuple[str, ...]] = {}  # names from the engine's last answer, by ensemble
        self._parameters: dict[str, ModelParameters] = {}  # by ensemble
        self.generations = Generations(
            self._connection, cancel=self._cancel, fetch_epoch=self._epoch, parameters=self._parameters
        )

    async def snapshot(self) -> ModelSnapshot:
        """Return the models that Triton serves now, with the adapters that their engines named last.

        Raises:
            APIError: Triton did not answer.
        """
        snapshot = await self.repository.snapshot(self._adapters)
        self._parameters |= {name: model.parameters for name, model in snapshot.by_ensemble.items()}
        return snapshot

    async def check(self, ensemble: str, requests: Sequence[tuple[int, GenerationRequest]]) -> None:
        """Have the tokenizer stage check numbered requests without generating a token.

        Raises:
            APIError: one of them would be refused, or Triton did not answer.
        """
        for batch in itertools.batched(requests, MAX_BATCH_REQUESTS):
            payload = pack(RequestBatch("", batch))
            answer = await self._call_tokenizer(ensemble, REQUEST_BATCH, payload, ENGINE_REQUESTS)
            with understood("of a tokenizer"):
                answered = unpack(EngineRequestBatch, answer[SIGNATURE_BYTES:], ENGINE_REQUESTS.name)
                if len(answered.items) != len(batch):
                    raise ValueError("another number of requests")
            for number, item in answered.items:
                if isinstance(item, str):
                    error = error_from_message(item)
                    error.index = number
                    raise error

    async def tokenize(
        self, ensemble: str, prompt: Prompt, *, add_special_tokens: bool, sender: str = "", has_strings: bool = False
    ) -> TokenizeAnswer:
        """Return a prompt's tokens, as strings too if they are wanted: to read these takes longest.

        Raises:
            APIError: the prompt was refused, or Triton did not answer.
        """
        payload = pack(TokenizeRequest(prompt, add_special_tokens, sender, has_strings))
        answer = await self._call_tokenizer(ensemble, TOKENIZE, payload, TOKENS)
        with understood("of a tokenizer"):
            return unpack(TokenizeAnswer, answer, TOKENS.name)

    async def detokenize(
        self, ensemble: str, token_ids: Sequence[int], *, has_special_tokens: bool, sender: str = ""
    ) -> str:
        """Return the text of token ids; special tokens are left out unless requested.

        Raises:
            APIError: the ids were refused, or Triton did not answer.
        """
        payload = pack(DetokenizeRequest(tuple(token_ids), has_special_tokens, sender))
        answer = await self._call_tokenizer(ensemble, DETOKENIZE, payload, TEXT)
        with understood("of a tokenizer"):
            return answer.decode()

    async def check_detokenizer(self, ensemble: str) -> None:
        """Have a detokenizer answer a batch without tokens.

        Raises:
            APIError: Triton did not answer.
        """
        batch = pack(OutputBatch(0, 0, is_single=False))
        await self._one_response(stage_name(ensemble, "detokenizer"), OUTPUT_BATCH, batch, CHUNK_BATCH)

    async def num_executions(self, stage: str) -> int:
        """Return how often a stage, by its Triton name, has executed requests since it was loaded.

        Raises:
            APIError: Triton did not answer, or the stage is not loaded.
        """
        request = service_pb2.ModelStatisticsRequest(name=stage)
        answer = await unary(self._connection.stub.ModelStatistics, request)
        return sum(each.execution_count for each in answer.model_stats)

    async def engine_stats(self, ensemble: str, timeout_s: float) -> EngineStats:
        """Return the statistics of a model's engine.

        Raises:
            APIError: it did not answer.
        """
        return await self._control(ensemble, {}, timeout_s)

    async def fail_running(self, ensemble: str) -> None:
        """Have a model's engine end all its requests with an error, those of other clients too.

        Raises:
            APIError: it did not answer.
        """
        await self._control(ensemble, {"fail": "running"}, RPC_TIMEOUT_S)

    async def fail_streams(self, ensemble: str) -> None:
        """Have a model's engine end all its requests and all output streams, whose batches no longer arrive.

        Raises:
            APIError: it did not answer.
        """
        await self._control(ensemble, {"fail": "streams"}, RPC_TIMEOUT_S)

    async def drain(self, ensemble: str, *, is_draining: bool) -> None:
        """Have a model's engine tell all frontends, in its statistics, to send it no more requests; or take that back.

        Raises:
            APIError: it did not answer.
        """
        await self._control(ensemble, {"drain": is_draining}, RPC_TIMEOUT_S)

    async def load_adapter(self, ensemble: str, name: str, source: str) -> EngineStats:
        """Have a model's engine load a LoRA adapter from its adapter root, and offer it under a name.

        Raises:
            APIError: it refused, or did not answer.
        """
        return await self._control(ensemble, {"load_adapter": name, "source": source}, _ADAPTER_TIMEOUT_S)

    async def unload_adapter(self, ensemble: str, name: str) -> EngineStats:
        """Have a model's engine stop offering a LoRA adapter. Running requests keep it.

        Raises:
            APIError: the engine has no such adapter, or did not answer.
        """
        return await self._control(ensemble, {"unload_adapter": name}, _ADAPTER_TIMEOUT_S)

    async def ask_arbiter(self, request: ArbiterRequest) -> ArbiterAnswer:
        """Return the answer of the arbiter of models.

        Raises:
            APIError: Triton did not answer, has no arbiter, or refuses our key.
        """
        payload = msgspec.json.encode(replace(request, key=self._key))
        message = infer_request(ARBITER, ARBITER_REQUEST, payload)
        response = await unary(self._connection.stub.ModelInfer, message)
        with understood("of the arbiter"):
            return msgspec.json.decode(payload_of(response, ARBITER_ANSWER), type=ArbiterAnswer)

    async def asleep(self) -> list[str]:
        """Return the ids of models that are not loaded, and that a request loads.

        Raises:
            TritonUnreachable or TritonTimeout: Triton did not answer.
        """
        try:
            statuses = (await self.ask_arbiter(ArbiterRequest())).statuses
        except (errors.TritonUnreachable, errors.TritonTimeout):
            raise
        except APIError:  # it has no arbiter, or refuses our key
            return []
        return [model_id for model_id, status in statuses.items() if status.state in _ASLEEP]

    async def close(self) -> None:
        """Send the outstanding cancellations, then close the connection."""
        await self.generations.close()
        await self._connection.close()

    async def _call_tokenizer(self, ensemble: str, given: TensorSpec, payload: bytes, wanted: TensorSpec) -> bytes:
        message = infer_request(stage_name(ensemble, "tokenizer"), given, payload)
        response = await unary(self._connection.stub.ModelInfer, message)
        with understood("of a tokenizer"):
            return payload_of(response, wanted)

    async def _cancel(self, ensemble: str, cancel_keys: list[str]) -> None:
        await self._control(ensemble, {"cancel_keys": cancel_keys}, _CANCEL_TIMEOUT_S)

    async def _epoch(self, ensemble: str) -> int | None:
        with contextlib.suppress(APIError):
            return (await self.engine_stats(ensemble, _EPOCH_TIMEOUT_S)).epoch
        return None

    async def _control(
        self, ensemble: str, command: Mapping[str, str | bool | list[str]], timeout_s: float
    ) -> EngineStats:
        key = {"key": self._key} if self._key else {}
        message = json.dumps({**command, **key}).encode()
        payload = await self._one_response(stage_name(ensemble, "engine"), CONTROL, message, STATS, timeout_s)
        with understood("of an engine"):
            stats = msgspec.json.decode(payload, type=EngineStats)
        self._adapters[ensemble] = tuple(stats.adapters)
        return stats

    async def _one_response(
        self,
        stage: str,
        given: TensorSpec,
        payload: bytes,
        wanted: TensorSpec,
        timeout_s: float = RPC_TIMEOUT_S,
    ) -> bytes:
        """Call a decoupled stage that answers once. Such a stage can only be called through a stream."""
        call = self._connection.stub.ModelStreamInfer(iter((infer_request(stage, given, payload),)))
        try:
            response = await loop_time.within(timeout_s, _only_response(call))
        except TimeoutError as exc:
            raise errors.TritonTimeout() from exc
        finally:
            call.cancel()
        with understood(f"of {stage}"):
            return payload_of(response, wanted)


async def _only_response(call: Any) -> Any:
    response = await _read(call)
    if response is None:
        raise errors.EngineFailed("The model's pipeline did not answer.")
    # Never cancelled: Triton might then count the request as running for ever, and unloads no model with a request.
    with contextlib.suppress(APIError):
        await _read(call)
    return response


async def _read(call: Any) -> Any:
    """Return the next response, None at the end."""
    try:
        response = await call.read()
    except grpc.aio.AioRpcError as exc:
        raise error_from_rpc(exc) from exc
    if response is grpc.aio.EOF:
        return None
    if response is None:  # grpc could not read it
        raise errors.BadAnswer()
    if response.error_message:
        raise error_from_message(response.error_message)
    return response.infer_response
