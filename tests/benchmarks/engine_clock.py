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

from frontend.triton.messages import infer_request
from model_repository import contract
from model_repository.generation import SamplingParams
from model_repository.stage_messages import EngineRequest
from model_repository.tensors import array
from tests.benchmarks.measures import Floats

_DEADLINE_S = 30.0
_NUM_IDLE_CALLS = 20


class EngineClock:
    """Asks one engine for single tokens, straight."""

    def __init__(self, stub: Any, model: str) -> None:
        request = EngineRequest(
            prompt_token_ids=(1,), max_tokens=1, sampling=SamplingParams(), ignore_eos=True, is_stream=True
        )
        tensors = {
            contract.PROMPT_TOKEN_IDS.name: array(contract.PROMPT_TOKEN_IDS, *request.prompt_token_ids),
            contract.ENGINE_PARAMS.name: array(contract.ENGINE_PARAMS, request.params_json()),
        }
        engine = contract.stage_name(contract.model_id_to_slug(model), "engine")
        self._message = infer_request(engine, tensors)
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
