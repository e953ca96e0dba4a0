"""The times of the engine's steps, seen from outside. The added latency of a token counts from its step.

All running sequences are part of every step of an engine. A request of one token, straight to the engine's stage,
therefore gets its answer from the same step as the next token of the measured stream, and first tokens never wait in
the emitter. That answer is late by the way from the engine to a gRPC client: less than the round trip of such a request
to an idle engine, which is measured too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from model_repository.contract.codec import message_tensor, pack
from model_repository.contract.request import GenerationRequest, Params, RequestBatch, TokenPrompt
from model_repository.contract.tensors import ENGINE_REQUESTS, REQUEST_BATCH, model_id_to_ensemble, stage_name
from tests.grpc_messages import infer_request, tensors_from_response
from tests.workshop.load.measures import Floats

_DEADLINE_S = 30.0
_NUM_IDLE_CALLS = 20


class EngineClock:
    """Requests single tokens of one engine stage."""

    def __init__(self, stub: Any, model: str) -> None:
        request = GenerationRequest(
            prompt=TokenPrompt((1,)), params=Params(max_tokens=1, ignore_eos=True, is_stream=True)
        )
        tokenizer, engine = (stage_name(model_id_to_ensemble(model), stage) for stage in ("tokenizer", "engine"))
        payload = pack(RequestBatch("", ((0, request),)))
        signed = tensors_from_response(
            stub.ModelInfer(infer_request(tokenizer, message_tensor(REQUEST_BATCH, payload)), timeout=_DEADLINE_S)
        )
        self._message = infer_request(engine, {ENGINE_REQUESTS.name: signed[ENGINE_REQUESTS.name]})
        self._stub = stub
        self._steps_s: list[float] = []

    @classmethod
    @contextmanager
    def of(cls, endpoint: str, model: str) -> Iterator[EngineClock]:
        """Connect to a Triton's gRPC endpoint."""
        with grpc.insecure_channel(endpoint) as channel:
            yield cls(service_pb2_grpc.GRPCInferenceServiceStub(channel), model)

    def idle_round_trip_s(self, itl_s: float) -> float:
        """Return the median round trip to an idle engine, whose last step is `itl_s` ago."""
        times_s = []
        for _ in range(_NUM_IDLE_CALLS):
            time.sleep(itl_s)
            sent_s = time.monotonic()
            times_s.append(self._one_token() - sent_s)
        return float(np.median(times_s))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the engine's steps in the block, into `steps_s`."""
        is_over = threading.Event()
        self._steps_s = []

        def watch() -> None:
            while not is_over.is_set():
                self._steps_s.append(self._one_token())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    @property
    def steps_s(self) -> Floats:
        """The times of the answers, of time.monotonic(), in order."""
        return np.array(self._steps_s)

    def _one_token(self) -> float:
        """Return the time of the first response."""
        arrival_s = 0.0
        for response in self._stub.ModelStreamInfer(iter((self._message,)), timeout=_DEADLINE_S):
            arrival_s = arrival_s or time.monotonic()
            if response.error_message:
                raise RuntimeError(f"the engine stage: {response.error_message}")
        return arrival_s
