"""The frontend's side of the gRPC connection to Triton; the only importer of tritonclient and grpc."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from frontend import errors
from frontend.errors import APIError
from frontend.models import ModelSnapshot, ServedModel
from frontend.triton.deliveries import ID_MARK, DeliveryCall
from frontend.triton.failures import error_from_rpc
from frontend.triton.mailbox import Mailbox
from frontend.triton.messages import Tensors, infer_request, tensors_from_response
from frontend.triton.one_response import one_response
from model_repository import contract
from model_repository.chunk_tensors import tensors_to_chunk
from model_repository.generation import FinishReason, GenerationChunk, GenerationRequest, Prompt, Usage
from model_repository.model_parameters import ModelParameters
from model_repository.request_tensors import prompt_inputs, request_to_tensors
from model_repository.stage_messages import EngineStats, Release, ReleaseDetails, TokenizeOptions
from model_repository.tensors import array

logger = logging.getLogger(__name__)

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # When Triton comes back it is noticed within a second; grpc's own waits grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # which is also how long one attempt may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    # A name is resolved again whenever a connection is lost. Its addresses are taken one at a time, since a stream and
    # the control of its engine must meet the same server; which one is first is drawn by lot, so that the frontends
    # spread over them.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.service_config", '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'),
    ("grpc.enable_http_proxy", 0),  # Triton is a neighbour; a proxy in the environment is not meant for it
)
_RPC_TIMEOUT_S = 5.0
_CANCEL_TIMEOUT_S = 5.0
_EPOCH_TIMEOUT_S = 1.0
_LOAD_TIMEOUT_S = 1800.0  # a large engine takes minutes to load


class TritonClient:
    """One Triton endpoint. Made inside a running event loop, closed with `close`.

    Args:
        endpoint: its gRPC host:port.
        credentials: for TLS; None: the connection is not encrypted.
        on_late: told a model's slug and a request's id when something comes after the completion's finish.
    """

    def __init__(
        self,
        endpoint: str,
        credentials: grpc.ChannelCredentials | None = None,
        on_late: Callable[[str, str], None] = lambda slug, request_id: None,
    ) -> None:
        self.on_stage_down: Callable[[str, float], None] = lambda stage, since: None
        self._on_late = on_late
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._calls: dict[str, list[DeliveryCall]] = {}  # by slug; the last one gets the next request
        self._background: set[asyncio.Task[None]] = set()

    async def generate(self, slug: str, request: GenerationRequest) -> AsyncGenerator[GenerationChunk, None]:
        """Yield the completion; the last chunk carries the finish reason.

        Leaving it early, for any reason, cancels the engine's sequence by its cancel key.

        Raises:
            APIError: the request was refused, or failed.
        """
        started_at = time.monotonic()
        mailbox: Mailbox | None = None
        is_finished = False
        is_generating = True  # as far as is known here
        try:
            try:
                mailbox = await self._send(slug, request)
                await mailbox.ready()
            except errors.DeliveriesNotOpen:  # it was loaded anew: nothing has come, so nothing is lost
                if mailbox is not None:
                    mailbox.leave()
                mailbox = None
                mailbox = await self._send(slug, request)
            while not is_finished:
                chunk = await mailbox.get()
                is_finished = chunk.finish_reason is not None
                yield chunk
        except (errors.InvalidRequest, errors.NotFound):
            is_generating = False  # refused before the engine saw it
            raise
        except errors.TritonUnreachable as exc:
            if mailbox is None or mailbox.is_waiting:
                raise errors.NotTaken() from exc
            raise
        except errors.StageUnhealthy as exc:
            # Triton holds each call of a dead stage for a second: the engine must not get one per stream.
            is_generating = exc.stage != contract.stage_name(slug, "engine")
            self.on_stage_down(exc.stage, started_at)
            raise
        except errors.Overloaded as exc:
            is_generating = type(exc) is not errors.Overloaded  # the queue was full: the engine did not take it
            raise
        finally:
            if mailbox is not None:
                mailbox.leave()
                if is_generating and not is_finished and not mailbox.is_engine_lost:
                    self._cancel_sequence(slug, request.cancel_key)

    async def _send(self, slug: str, request: GenerationRequest) -> Mailbox:
        """Send a request on the model's call, which is opened if there is none.

        Raises:
            APIError: it could not be opened.
        """
        calls = self._calls.setdefault(slug, [])
        if not calls or calls[-1].is_worn:
            call = DeliveryCall(
                self._stub,
                slug,
                on_end=calls.remove,
                on_stray=functools.partial(self._cancel_sequence, slug),
                on_late=functools.partial(self._on_late, slug),
                ask_epoch=functools.partial(self._epoch, slug),
            )
            calls.append(call)
            self._spawn(call.run())
        call = calls[-1]
        await call.opened()
        return call.send(request)

    def abort(self, stage: str, error: APIError, *, spared_epoch: int | None = None) -> int:
        """End the running generations that need a lost stage, by its Triton name; return how many there were.

        The requests that wait for a dead stage do fail by themselves, but one after the other, a second each.

        Args:
            spared_epoch: those that were begun on an engine of this epoch go on; None: none do.
        """
        slug = contract.slug_of_stage(stage)
        calls = list(self._calls.get(slug, ()))
        if stage == contract.stage_name(slug, "tokenizer"):
            return sum(call.fail_waiting(error) for call in calls)
        is_engine_lost = stage == contract.stage_name(slug, "engine")
        calls = [call for call in calls if spared_epoch is None or call.epoch != spared_epoch]
        return sum(call.close(error, is_engine_lost=is_engine_lost) for call in calls)

    def end_all(self, error: APIError) -> int:
        """End every running generation; return how many there were."""
        return sum(call.close(error) for calls in self._calls.values() for call in list(calls))

    async def snapshot(self) -> ModelSnapshot:
        """Return what Triton serves at this moment: the ensembles that carry our parameters.

        Raises:
            APIError: Triton did not answer.
        """
        index = await self._unary(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest())
        ensembles = [entry for entry in index.models if contract.slug_of_stage(entry.name) == entry.name]
        ready = [entry.name for entry in ensembles if entry.state == "READY"]
        served = await asyncio.gather(*map(self._served_model, ready))
        return ModelSnapshot(
            ready={model.id: model for model in served if model is not None},
            unready={
                contract.slug_to_model_id(entry.name): entry.state.lower()
                for entry in ensembles
                if entry.state not in ("READY", "")  # "": never loaded, so nobody means to serve it
            },
        )

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
        with _understood("of a tokenizer"):
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
        return tensors_to_chunk(await self._one_response(contract.stage_name(slug, "detokenizer"), inputs)).text

    async def engine_stats(self, slug: str, timeout_s: float) -> EngineStats:
        """Ask a model's engine how it is.

        Raises:
            APIError: it did not answer.
        """
        return await self._control(slug, {}, timeout_s)

    async def unload(self, stage: str) -> None:
        """Unload a stage, by its Triton name.

        Raises:
            APIError: Triton did not do it.
        """
        request = service_pb2.RepositoryModelUnloadRequest(model_name=stage)
        await self._unary(self._stub.RepositoryModelUnload, request)

    async def load(self, slug: str, stage: str) -> None:
        """Load a stage and the ensembles that stand on it; return when the model is ready.

        Raises:
            APIError: Triton did not do it.
        """
        for name in (stage, slug, contract.stage_name(slug, contract.DELIVERIES)):
            request = service_pb2.RepositoryModelLoadRequest(model_name=name)
            await self._unary(self._stub.RepositoryModelLoad, request, timeout_s=_LOAD_TIMEOUT_S)

    async def repository(self) -> set[str]:
        """Return the slugs of all models that Triton could load.

        Raises:
            APIError: Triton did not answer.
        """
        index = await self._unary(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest())
        return {entry.name for entry in index.models if contract.slug_of_stage(entry.name) == entry.name}

    async def fail_running(self, slug: str) -> None:
        """Have a model's engine end everything that it works on with an error, whoever asked for it.

        Raises:
            APIError: it did not answer.
        """
        await self._control(slug, {"fail": "running"}, _RPC_TIMEOUT_S)

    async def drain(self, slug: str) -> None:
        """Have a model's engine tell every frontend that looks at it to send requests elsewhere.

        Raises:
            APIError: it did not answer.
        """
        await self._control(slug, {"drain": True}, _RPC_TIMEOUT_S)

    async def close(self) -> None:
        """Let go of the connection, once the cancellations under way have been told."""
        self.end_all(errors.TritonUnreachable())
        if self._background:
            await asyncio.wait(self._background, timeout=_CANCEL_TIMEOUT_S)
        await self._channel.close()

    async def _served_model(self, slug: str) -> ServedModel | None:
        """Return an ensemble as the model that it serves; None for what is not ours, or is gone already."""
        with contextlib.suppress(errors.NotFound, errors.ModelNotReady):
            answer = await self._unary(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=slug))
            return _served_model(slug, answer.config)
        return None

    def _cancel_sequence(self, slug: str, cancel_key: str) -> None:
        self._spawn(self._tell_engine_to_cancel(slug, cancel_key))

    async def _tell_engine_to_cancel(self, slug: str, cancel_key: str) -> None:
        try:
            await self._control(slug, {"cancel_key": cancel_key}, _CANCEL_TIMEOUT_S)
        except APIError as exc:
            # Nothing to free where the engine is gone; where it only hangs, the watch reloads it.
            logger.info("cancel not delivered to the engine of %s: %s", slug, exc.code)

    async def _ask_tokenizer(self, slug: str, inputs: Tensors, request_id: str = "") -> Tensors:
        message = infer_request(contract.stage_name(slug, "tokenizer"), inputs, request_id)
        answer = await self._unary(self._stub.ModelInfer, message)
        with _understood("of a tokenizer"):
            return tensors_from_response(answer)

    async def _control(self, slug: str, command: Mapping[str, str | bool], timeout_s: float) -> EngineStats:
        inputs = {contract.CONTROL.name: array(contract.CONTROL, json.dumps(command))}
        tensors = await self._one_response(contract.stage_name(slug, "engine"), inputs, timeout_s)
        with _understood("of an engine"):
            return EngineStats.from_json(tensors[contract.STATS.name].item())

    async def _epoch(self, slug: str) -> int | None:
        with contextlib.suppress(APIError):
            return (await self.engine_stats(slug, _EPOCH_TIMEOUT_S)).epoch
        return None

    async def _one_response(self, stage: str, inputs: Tensors, timeout_s: float = _RPC_TIMEOUT_S) -> Tensors:
        return await one_response(self._stub, infer_request(stage, inputs), timeout_s)

    async def _unary(self, method: Callable[..., Any], request: Any, timeout_s: float = _RPC_TIMEOUT_S) -> Any:
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            raise error_from_rpc(exc) from exc

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


@contextlib.contextmanager
def _understood(what: str) -> Iterator[None]:
    """Answer nonsense from Triton as a failure of the server, which it is."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        logger.exception("Triton's answer %s makes no sense", what)
        raise errors.BadAnswer() from exc


def _served_model(slug: str, config: Any) -> ServedModel | None:
    if config.platform != "ensemble":
        return None
    texts = {name: value.string_value for name, value in config.parameters.items()}
    parameters = ModelParameters.from_parameters(texts)
    return None if parameters is None else ServedModel(slug=slug, parameters=parameters)
