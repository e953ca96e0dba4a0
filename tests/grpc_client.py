"""A client of Triton's gRPC API: an engine's stats, any model's tensors, and a stream that is read late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import grpc
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from model_repository.contract.codec import message_tensor, payload_of, tensor
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import CONTROL, INPUTS, STATS, model_id_to_ensemble, stage_name
from tests.grpc_messages import infer_request, tensors_from_response
from tests.waiting import DEADLINE_S, wait_until

_WINDOW_BYTES = 65_536  # that a client takes without reading: the least of HTTP/2


@dataclass(frozen=True, slots=True)
class LateRead:
    """A stream that was read after the end of its computation."""

    num_bytes: int
    errors: tuple[str, ...]
    text: str
    whole_text: str  # of the same request without a stream

    @property
    def is_whole(self) -> bool:
        """Whether it had more than Triton and the client keep for a reader, and all of it came."""
        return self.num_bytes > 2 * _WINDOW_BYTES and not self.errors and self.text == self.whole_text


@dataclass(frozen=True, slots=True)
class GrpcClient:
    """A connection to a Triton with this project's models."""

    endpoint: str  # host and port
    grpc_stub: Any

    @classmethod
    @contextmanager
    def connected(cls, endpoint: str, *fields: Any, options: Sequence[tuple[str, int]] = ()) -> Iterator[Self]:
        """Connect to a host and port.

        Args:
            fields: of a subclass.
            options: of the channel.
        """
        with grpc.insecure_channel(endpoint, options) as channel:
            yield cls(endpoint, service_pb2_grpc.GRPCInferenceServiceStub(channel), *fields)

    def stats(self, model: str, **order: str) -> EngineStats:
        """Have a model's engine follow an order, if there is one, and return its stats."""
        engine = stage_name(model_id_to_ensemble(model), "engine")
        [answer] = self.infer(engine, message_tensor(CONTROL, msgspec.json.encode(order)))
        return msgspec.json.decode(payload_of(answer, STATS), type=EngineStats)

    def infer(self, triton_name: str, tensors: dict[str, Any]) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Call a model and return the outputs of every response."""
        answers = []
        for response in self.stream(triton_name, tensors):
            assert not response.error_message, response.error_message
            answers.append(tensors_from_response(response.infer_response))
        return answers

    def stream(self, triton_name: str, tensors: dict[str, Any]) -> Any:
        """Call a model and return the gRPC call, an iterator of ModelStreamInferResponse."""
        message = infer_request(triton_name, tensors)
        return self.grpc_stub.ModelStreamInfer(iter((message,)), timeout=DEADLINE_S)

    def read_late(self, model: str) -> LateRead:
        """Read a model's stream only after its computation has ended."""
        ensemble = model_id_to_ensemble(model)
        request = generation(max_tokens=500, return_log_probs=True, top_logprobs=20)
        whole_text = _text(self.infer(ensemble, request))
        num_finished = self.stats(model).num_finished
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", _WINDOW_BYTES)]
        with GrpcClient.connected(self.endpoint, options=options) as reader:
            call = reader.stream(ensemble, request | generation(stream=True))
            wait_until(lambda: self.stats(model).num_finished > num_finished, "all is computed, and nothing read")
            read = list(call)
        return LateRead(
            num_bytes=sum(each.ByteSize() for each in read),
            errors=tuple(each.error_message for each in read if each.error_message),
            text=_text(tensors_from_response(each.infer_response) for each in read),
            whole_text=whole_text,
        )


def generation(**values: Any) -> dict[str, Any]:
    """Return the tensors of a greedy completion without an end token."""
    fields = {"text_input": "The capital of France is", "temperature": 0.0, "ignore_eos": True} | values
    return {name: tensor(INPUTS[name], value) for name, value in fields.items()}


def _text(answers: Iterable[dict[str, np.ndarray[Any, Any]]]) -> str:
    return b"".join(each["text_output"].item() for each in answers if "text_output" in each).decode()
