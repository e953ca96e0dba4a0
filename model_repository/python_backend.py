"""Common code of the three model.py: parameters, tensors, responses and errors.

The only importer of Triton's Python backend module.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from model_repository.ascii_path import ascii_path
from model_repository.contract.codec import Tensors, chunk_to_tensors, message_tensor, pack
from model_repository.contract.output import ChunkBatch, GenerationChunk, OutputBatch, TokenDelta, VectorChunk
from model_repository.contract.rules import printable_id
from model_repository.contract.tensors import CHUNK_BATCH, OUTPUT_BATCH
from model_repository.errors import LOAD_FAILURE, StageError, stage_error
from model_repository.metric_family import MetricFamily
from model_repository.model_parameters import ModelParameters
from model_repository.system.log_time import TimedFormatter

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def starting(args: Mapping[str, str]) -> Iterator[None]:
    """Log in one line why a stage does not load: Triton hides that. The stage's shared memory is closed to others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TimedFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        _close_shared_memory()
        yield
    except Exception as exc:
        reason = exc.text if isinstance(exc, StageError) else f"{type(exc).__name__}: {exc}"
        logger.error("%s %s %s", args["model_name"], LOAD_FAILURE, reason)
        raise


@contextlib.contextmanager
def loading(args: Mapping[str, str]) -> Iterator[ModelParameters]:
    """Yield the parameters of a stage's model; see `starting`."""
    with starting(args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        texts = {name: value["string_value"] for name, value in parameters.items()}
        yield ModelParameters.from_config(texts, ascii_path)


def _close_shared_memory() -> None:
    """Let no other user open the memory through which requests pass: Triton makes it readable for everybody."""
    for path in set(re.findall(r"/dev/shm/\S+$", Path("/proc/self/maps").read_text(), re.MULTILINE)):
        os.chmod(path, 0o600)


class TritonRefused(Exception):
    """Triton did not do what a stage has asked for."""


def load(name: str) -> None:
    """Load a stage or an ensemble with its stages; return when it is ready. A loaded one stays as it is.

    Raises:
        TritonRefused: it failed.
    """
    try:
        pb_utils.load_model(model_name=name)
    except pb_utils.TritonModelException as exc:
        raise TritonRefused(str(exc)) from exc


def unload(name: str) -> None:
    """Have Triton unload a stage or an ensemble; return at once. Its process ends after its last request.

    Raises:
        TritonRefused: it failed.
    """
    try:
        pb_utils.unload_model(model_name=name)
    except pb_utils.TritonModelException as exc:
        raise TritonRefused(str(exc)) from exc


def read_tensors(request: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs that the request carries, by name, shape [1, *spec.shape]."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def request_id(request: Any) -> str:
    """Return the name of a request in logs."""
    return printable_id(request.request_id())


class CustomMetric:
    """One metric on Triton's metrics port, labelled with model and replica. It must not be used after `finalize`."""

    def __init__(self, family: MetricFamily, parameters: ModelParameters, **labels: str) -> None:
        kind = pb_utils.MetricFamily.COUNTER if family.is_counter else pb_utils.MetricFamily.GAUGE
        # Triton drops a metric together with its family, so both are kept.
        self._family = pb_utils.MetricFamily(name=family.name, description=family.meaning, kind=kind)
        own = {"model": parameters.model_id, "replica": str(parameters.replica)}
        self._metric = self._family.Metric(labels=own | labels)

    def set(self, value: float) -> None:
        self._metric.set(value)

    def increment(self, value: float) -> None:
        self._metric.increment(value)


def response(tensors: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return a Triton response with these outputs, if any."""
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])


def chunk_tensors(batch: ChunkBatch, *, is_single: bool) -> Tensors | None:
    """Return the outputs for a frontend, or the public outputs for a single request; None: nothing is to be sent."""
    if not is_single:
        return message_tensor(CHUNK_BATCH, pack(batch))
    [(_, chunk)] = batch.items or batch.vectors or [(0, "")]
    return chunk_to_tensors(chunk) if isinstance(chunk, GenerationChunk | VectorChunk) else None


def error_response(exc: BaseException, request_id: str = "") -> Any:
    """Return a Triton response for a failed request, and log the failure."""
    error = stage_error(exc, request_id)
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError(error.message(), getattr(pb_utils.TritonError, error.triton_code))
    )


def only_response_sender(request: Any) -> Callable[[Any], None]:
    """Return a function that sends the response of a stage that is not decoupled; `execute` returns None for it.

    Any thread may call it, also after `execute` has returned.
    """
    sender = request.get_response_sender()
    return lambda answer: sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonResponder:
    """Answers one request of a decoupled stage."""

    def __init__(self, request: Any) -> None:
        self._request_id = request_id(request)
        self._sender = request.get_response_sender()

    def send(self, batch: OutputBatch) -> None:
        """Send an output batch; more may follow."""
        if (tensors := self._tensors(batch)) is not None:
            self._sender.send(response(tensors))

    def close(self, batch: OutputBatch | None = None) -> None:
        """Close the stream, with or without a last batch."""
        self.close_with(None if batch is None else self._tensors(batch))

    def close_with(self, tensors: Tensors | None) -> None:
        """Close the stream, with or without a last response. Without one, a client sees neither response nor error."""
        responses = () if tensors is None else (response(tensors),)
        self._sender.send(*responses, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def fail(self, error: Exception) -> None:
        """Send an error and close the stream."""
        self._sender.send(error_response(error, self._request_id), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _tensors(self, batch: OutputBatch) -> Tensors | None:
        return message_tensor(OUTPUT_BATCH, pack(batch))


class VectorResponder(TritonResponder):
    """Answers one request of an engine without a detokenizer: its batches have no tokens.

    Args:
        end_stream: called with the number of a stream after its client has hung up.
    """

    def __init__(self, request: Any, end_stream: Callable[[int], None]) -> None:
        super().__init__(request)
        self._end_stream = end_stream

    def _tensors(self, batch: OutputBatch) -> Tensors | None:
        if batch.is_disconnect_check and self._sender.is_cancelled():
            self._end_stream(batch.stream)
            return None
        accepted = GenerationChunk(text="")
        items = ((number, accepted if isinstance(item, TokenDelta) else item) for number, item in batch.items)
        return chunk_tensors(ChunkBatch(batch.serial, tuple(items), batch.vectors), is_single=batch.is_single)
