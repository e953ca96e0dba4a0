"""When the engine makes its tokens, seen from outside: the steps that an added latency is counted from.

All running sequences take part in every step of an engine. So a request straight to the engine's stage, for one token,
that runs beside the measured stream gets its answer from the same step as the stream's next token, and first tokens
never wait in the emitter. It arrives late itself, by the way from the engine to a gRPC client: less than the round trip
of such a request to an idle engine, which is measured too.
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
from model_repository.contract.request import EngineRequest, EngineRequestBatch, Params
from model_repository.contract.tensors import ENGINE_REQUESTS, model_id_to_slug, stage_name
from tests.benchmarks.measures import Floats
from tests.grpc_messages import infer_request

_DEADLINE_S = 30.0
_NUM_IDLE_CALLS = 20


class EngineClock:
    """Asks one engine for single tokens, straight."""

    def __init__(self, stub: Any, model: str) -> None:
        request = EngineRequest(
            prompt_token_ids=(1,), max_tokens=1, params=Params(max_tokens=1, ignore_eos=True, is_stream=True)
        )
        engine = stage_name(model_id_to_slug(model), "engine")
        payload = pack(EngineRequestBatch("", ((0, request),)))
        self._message = infer_request(engine, message_tensor(ENGINE_REQUESTS, payload))
        self._stub = stub
        self._steps_s: list[float] = []

    @classmethod
    @contextmanager
    def of(cls, endpoint: str, model: str) -> Iterator[EngineClock]:
        """Connect to a Triton's gRPC endpoint."""
        with grpc.insecure_channel(endpoint) as channel:
            yield cls(service_pb2_grpc.GRPCInferenceServiceStub(channel), model)

    def idle_round_trip_s(self, itl_s: float) -> float:
        """Return the median time that an idle engine takes to answer: one whose last step is `itl_s` ago."""
        times_s = []
        for _ in range(_NUM_IDLE_CALLS):
            time.sleep(itl_s)
            sent_s = time.monotonic()
            times_s.append(self._one_token() - sent_s)
        return float(np.median(times_s))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take note of the engine's steps meanwhile; they are in `steps_s` afterwards."""
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
        """When the answers came, of time.monotonic(), in order."""
        return np.array(self._steps_s)

    def _one_token(self) -> float:
        """Return when the first response was there."""
        arrival_s = 0.0
        for response in self._stub.ModelStreamInfer(iter((self._message,)), timeout=_DEADLINE_S):
            arrival_s = arrival_s or time.monotonic()
            if response.error_message:
                raise RuntimeError(f"the engine stage: {response.error_message}")
        return arrival_s
