"""Triton's door to the engine stage: passes requests to the engine and answers `control`."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import threading
import time
from typing import Any

import msgspec

from model_repository import python_backend
from model_repository.contract import cancel_channel, engine_file
from model_repository.contract.cancel_channel import CancelReceiver, CancelSender, key_to_number
from model_repository.contract.codec import Tensors, message_tensor, payload_of, unpack
from model_repository.contract.request import EngineRequestBatch
from model_repository.contract.signature import Signature
from model_repository.contract.tensors import (
    CONTROL,
    CONTROL_MESSAGES,
    ENGINE_REQUESTS,
    KEY_VARIABLE,
    OPEN_STREAM,
    STATS,
    stage_name,
)
from model_repository.engine.adapter_control import AdapterControl
from model_repository.engine.inbox import CancelKey, EndStream, FailRunning, FailStreams, OpenStream, Submit
from model_repository.engine.loader import load_engine
from model_repository.engine.metrics import DEVICE_FAMILIES, FAMILIES, EngineMetrics
from model_repository.errors import InvalidRequest, KeyRefused, StageError
from model_repository.model_facts import Task

_POLL_S = 0.02
_MAX_STEP_S = 60.0  # an engine with a longer step hangs


class TritonPythonModel:
    """Decoupled: the engine's thread answers, batch by batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and start the engine's thread."""
        with python_backend.loading(args) as parameters:
            ensemble = parameters.ensemble
            self.signature = Signature(ensemble)
            engine_file.begin_load(ensemble)
            self.engine = load_engine(parameters)
        self.engine.start()
        self.freeing, self.is_leaving = threading.Lock(), False
        self.key = os.environ.get(KEY_VARIABLE, "")
        self.adapters = AdapterControl(self.engine, parameters.adapter_root)
        self.is_last = parameters.task is not Task.GENERATE  # no detokenizer follows
        self.cancel_receiver = CancelReceiver(ensemble, self._hear)
        self.cancel_sender = CancelSender(stage_name(ensemble, "tokenizer"))
        custom = [python_backend.CustomMetric(family, parameters) for family in FAMILIES]
        of_devices = {
            name: [python_backend.CustomMetric(family, parameters, device=name) for family in DEVICE_FAMILIES]
            for name in parameters.devices
        }
        self.metrics = EngineMetrics(self.engine.stats, custom, of_devices)
        self.metrics.start()
        engine_file.note_state(engine_file.READY)

    def execute(self, requests: list[Any]) -> None:
        """Queue the requests of each batch, open an output stream, or execute a control message."""
        for request in requests:
            responder = python_backend.TritonResponder(request)
            if self.is_last:
                responder = python_backend.VectorResponder(request, self._end_stream)
            try:
                self._serve(python_backend.read_tensors(request), responder)
            except Exception as exc:
                responder.fail(exc)

    def _hear(self, number: int) -> None:
        match number:
            case cancel_channel.LEAVE if self.is_leaving:
                pass
            case cancel_channel.LEAVE:
                self.is_leaving = True
                threading.Thread(target=self._leave, name="leave", daemon=True).start()
            case cancel_channel.END_REQUESTS:
                with contextlib.suppress(StageError):  # of an engine that has ended
                    self.engine.post(FailRunning())
            case _:
                self._end_stream(number)

    def _leave(self) -> None:
        """Let the requests end, then free the memory: Triton itself takes a second until it calls `finalize`."""
        with contextlib.suppress(StageError):  # of an engine that has ended
            while (stats := self.engine.stats()).num_active + stats.num_waiting:
                if stats.step_age_ms > 1000 * _MAX_STEP_S:  # the frontends no longer check it
                    os._exit(1)
                time.sleep(_POLL_S)
            self.engine.post(FailStreams())  # Triton unloads no stage that has one
        self._free()
        engine_file.note_state(engine_file.LEFT)

    def _free(self) -> None:
        with self.freeing:
            self.metrics.close()
            self.engine.close()

    def _end_stream(self, number: int) -> None:
        self.engine.inbox.put(EndStream(number))

    def _serve(self, tensors: Tensors, responder: python_backend.TritonResponder) -> None:
        if CONTROL.name in tensors:
            self._control(payload_of(tensors, CONTROL), responder)
        elif OPEN_STREAM.name in tensors:
            key = payload_of(tensors, OPEN_STREAM).decode("utf-8", "replace")
            if not key:
                raise InvalidRequest("the key is empty", OPEN_STREAM.name)
            self.engine.post(OpenStream(key, responder))
        elif ENGINE_REQUESTS.name in tensors:
            payload = self.signature.verified(payload_of(tensors, ENGINE_REQUESTS), ENGINE_REQUESTS.name)
            batch = unpack(EngineRequestBatch, payload, ENGINE_REQUESTS.name)
            self.engine.post(Submit(batch, responder))
        else:
            raise InvalidRequest("expected `control`, `open_stream` or `engine_requests`")

    def _control(self, payload: bytes, responder: python_backend.TritonResponder) -> None:
        has_key = False

        def done() -> None:
            stats = self.engine.stats(has_marks=has_key)
            responder.close_with(message_tensor(STATS, msgspec.json.encode(stats)))

        try:
            message = json.loads(payload)
        except ValueError as exc:
            raise InvalidRequest(f"not JSON ({exc})", CONTROL.name) from exc
        if isinstance(message, dict):
            given = str(message.pop("key", "")).encode()
            has_key = bool(self.key) and hmac.compare_digest(given, self.key.encode())
            is_open = not self.key or message.keys() <= {"cancel_keys"}
            if not (is_open or has_key):
                raise KeyRefused(f"this message needs Triton's key ({KEY_VARIABLE})", CONTROL.name)
        match message:
            case {"cancel_keys": [*keys]} if all(isinstance(key, str) and key for key in keys) and len(message) == 1:
                for key in keys:
                    self.engine.post(CancelKey(key))
                self.cancel_sender.cancel(*map(key_to_number, keys))  # they may wait in the tokenizer
            case {"fail": "running"} if len(message) == 1:
                self.engine.post(FailRunning())
            case {"fail": "streams"} if len(message) == 1:
                self.engine.post(FailStreams())
            case {"drain": bool(is_draining)} if len(message) == 1:
                self.engine.is_draining = is_draining
            case {"load_adapter": str(name), "source": str(source)} if len(message) == 2:
                return self.adapters.load(name, source, done, responder.fail)
            case {"unload_adapter": str(name)} if len(message) == 1:
                return self.adapters.unload(name, done, responder.fail)
            case {} if message == {}:
                pass
            case _:
                raise InvalidRequest(f"expected {CONTROL_MESSAGES}", CONTROL.name)
        done()

    def is_ready(self) -> bool:
        """Return whether the model is ready. Only newer servers call this."""
        try:
            self.engine.stats()
        except StageError:
            return False
        return True

    def finalize(self) -> None:
        """End the running requests and free the model."""
        self.cancel_receiver.close()
        self.cancel_sender.close()
        self._free()
