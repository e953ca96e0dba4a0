"""Streamed requests of gRPC clients of the public ensemble."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from model_repository.contract.tensors import model_id_to_ensemble
from tests.grpc_messages import infer_request, tensors_from_response
from tests.workshop.load.load import Load, Target, prompts
from tests.workshop.load.stream_record import StreamRecord

_NUM_CHANNELS = 4


@dataclass(slots=True)
class GrpcExchange:
    """One request and the responses to it; times are of time.monotonic()."""

    sent_s: float
    ended_s: float = 0.0
    responses: list[tuple[float, Any]] = field(default_factory=list)
    error: str = ""

    @property
    def has_failed(self) -> bool:
        return bool(self.error)


class GrpcClient:
    """Sends the requests of a load to a Triton, each in a call of its own."""

    def __init__(self, load: Load, target: Target) -> None:
        host, port = target.address
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(f"{host}:{port}", options) for _ in range(_NUM_CHANNELS)]
        self._stubs = itertools.cycle([service_pb2_grpc.GRPCInferenceServiceStub(each) for each in self._channels])
        self._messages = _messages(load, target)
        self._num_tokens = load.num_tokens

    async def connect(self) -> None:
        for channel in self._channels:
            await channel.channel_ready()

    async def exchange(self, timeout_s: float) -> GrpcExchange:
        """Send the next request, and read its stream to the end."""
        exchange = GrpcExchange(time.monotonic())
        call = next(self._stubs).ModelStreamInfer(iter((next(self._messages),)), timeout=timeout_s)
        try:
            async for message in call:
                if message.error_message:
                    exchange.error = message.error_message
                elif message.infer_response.outputs:
                    exchange.responses.append((time.monotonic(), message.infer_response))
        except grpc.aio.AioRpcError as exc:
            exchange.error = str(exc.details())
        exchange.ended_s = time.monotonic()
        return exchange

    def record(self, exchange: GrpcExchange) -> StreamRecord:
        tensors = [(time_s, tensors_from_response(response)) for time_s, response in exchange.responses]
        texts = [(time_s, each["text_output"].item().decode()) for time_s, each in tensors if "text_output" in each]
        num_tokens = int(tensors[-1][1]["num_output_tokens"].item()) if tensors and not exchange.error else 0
        wrong = "" if num_tokens == self._num_tokens else f"{num_tokens} tokens, {self._num_tokens} requested"
        return StreamRecord(
            sent_s=exchange.sent_s,
            ended_s=exchange.ended_s,
            chunk_times_s=tuple(time_s for time_s, _ in texts),
            chunk_chars=tuple(len(text) for _, text in texts),
            num_tokens=num_tokens,
            error=exchange.error or wrong,
        )


def _messages(load: Load, target: Target) -> Iterator[Any]:
    """Yield endless requests with the prompts of the load."""
    ensemble = model_id_to_ensemble(target.model)
    fixed = {
        "max_tokens": np.array([[load.num_tokens]], np.int32),
        "temperature": np.array([[0.0]], np.float32),
        "stream": np.array([[True]]),
        "ignore_eos": np.array([[load.ignores_eos]]),
    }
    for prompt in prompts(load):
        yield infer_request(ensemble, {"text_input": np.array([[prompt.encode()]], object), **fixed})
