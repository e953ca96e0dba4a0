"""Triton's door to the engine stage: hands requests to the engine and answers `control`."""

from __future__ import annotations

import hmac
import json
import os
from typing import Any

from model_repository import contract, triton_shell
from model_repository.cancel_channel import CancelReceiver, CancelSender, key_to_number
from model_repository.engine.adapter_control import AdapterControl
from model_repository.engine.adapter_root import AdapterRoot
from model_repository.engine.loader import load_engine
from model_repository.engine.metrics import FAMILIES, EngineMetrics
from model_repository.errors import InvalidRequest, KeyRefused, StageError
from model_repository.stage_messages import EngineRequest
from model_repository.tensors import array, text


class TritonPythonModel:
    """Decoupled: a request is answered by the engine's thread, as its tokens are released."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and start the engine's thread."""
        parameters = triton_shell.stage_parameters(args)
        with triton_shell.loading(args):
            self.engine = load_engine(parameters)
        self.engine.start()
        self.key = os.environ.get(contract.KEY_VARIABLE, "")
        self.adapters = AdapterControl(self.engine, AdapterRoot.from_parameters(parameters))
        self.cancel_receiver = CancelReceiver(parameters["ensemble"], self.engine.cancel_sequence)
        self.cancel_sender = CancelSender(contract.stage_name(parameters["ensemble"], "tokenizer"))
        custom = [triton_shell.CustomMetric(family, parameters["ensemble"]) for family in FAMILIES]
        self.metrics = EngineMetrics(self.engine.stats, custom)
        self.metrics.start()

    def execute(self, requests: list[Any]) -> None:
        """Queue each request, or carry out its control message."""
        for request in requests:
            responder = triton_shell.TritonResponder(request)
            try:
                self._serve(request, triton_shell.read_tensors(request), responder)
            except Exception as exc:
                responder.fail(exc)

    def _serve(self, request: Any, tensors: dict[str, Any], responder: triton_shell.TritonResponder) -> None:
        if contract.CONTROL.name in tensors:
            self._control(tensors[contract.CONTROL.name].reshape(-1).tolist(), responder)
        elif contract.OPEN_DELIVERIES.name in tensors:
            key = text(tensors, contract.OPEN_DELIVERIES)
            if not key:
                raise InvalidRequest("the key is empty", contract.OPEN_DELIVERIES.name)
            self.engine.open_deliveries(key, responder)
        elif contract.PROMPT_TOKEN_IDS.name in tensors and contract.ENGINE_PARAMS.name in tensors:
            prompt_token_ids = tensors[contract.PROMPT_TOKEN_IDS.name].reshape(-1)
            params_json = tensors[contract.ENGINE_PARAMS.name].item()
            engine_request = EngineRequest.from_tensors(prompt_token_ids, params_json)
            self.engine.submit(engine_request, responder, triton_shell.request_id(request))
        else:
            raise InvalidRequest("expected `control`, `open_deliveries`, or `prompt_token_ids` with `engine_params`")

    def _control(self, elements: list[bytes], responder: triton_shell.TritonResponder) -> None:
        def done() -> None:
            responder.close({contract.STATS.name: array(contract.STATS, self.engine.stats().to_json())})

        try:
            message = json.loads(b"".join(elements))
        except ValueError as exc:
            raise InvalidRequest(f"not JSON ({exc})", contract.CONTROL.name) from exc
        if isinstance(message, dict):
            given = str(message.pop("key", "")).encode()
            is_open = not self.key or message.keys() <= {"cancel_key"}
            if not is_open and not hmac.compare_digest(given, self.key.encode()):
                raise KeyRefused(f"this message needs Triton's key ({contract.KEY_VARIABLE})", contract.CONTROL.name)
        match message:
            case {"cancel_key": str(key)} if key and len(message) == 1:
                self.engine.cancel_key(key)
                self.cancel_sender.cancel(key_to_number(key))  # its grammar may still wait to be compiled
            case {"fail": "running"} if len(message) == 1:
                self.engine.fail_running()
            case {"fail": "streams"} if len(message) == 1:
                self.engine.fail_streams()
            case {"drain": bool(is_draining)} if len(message) == 1:
                self.engine.is_draining = is_draining
            case {"load_adapter": str(name), "source": str(source)} if len(message) == 2:
                return self.adapters.load(name, source, done, responder)
            case {"unload_adapter": str(name)} if len(message) == 1:
                return self.adapters.unload(name, done, responder)
            case {} if message == {}:
                pass
            case _:
                raise InvalidRequest(f"expected {contract.CONTROL_MESSAGES}", contract.CONTROL.name)
        done()

    def is_ready(self) -> bool:
        """Return whether the model is ready. Newer servers ask; those that do not know the name never call it."""
        try:
            self.engine.stats()
        except StageError:
            return False
        return True

    def finalize(self) -> None:
        """End what is running and free the model."""
        self.metrics.close()
        self.cancel_receiver.close()
        self.cancel_sender.close()
        self.engine.close()
