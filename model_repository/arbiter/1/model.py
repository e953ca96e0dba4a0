"""Triton's door to the arbiter: it loads and unloads the models beside it."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Any

import msgspec

from model_repository import python_backend
from model_repository.arbiter.driver import Driver
from model_repository.arbiter.stages import Stages
from model_repository.contract.arbiter import MODEL_MEMORY_VARIABLE, ArbiterAnswer, ArbiterRequest
from model_repository.contract.codec import message_tensor, payload_of
from model_repository.contract.tensors import ARBITER_ANSWER, ARBITER_REQUEST, KEY_VARIABLE
from model_repository.errors import InvalidRequest, KeyRefused
from model_repository.system.model_memory import model_memory_bytes


class TritonPythonModel:
    """One response per request, from the arbiter's thread."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the arbiter."""
        with python_backend.starting(args):
            self.key = os.environ.get(KEY_VARIABLE, "")
            repository = Path(args["model_repository"]).absolute().parent
            total_bytes = int(os.environ.get(MODEL_MEMORY_VARIABLE) or model_memory_bytes())
            self.driver = Driver(repository, Stages(repository), total_bytes)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Pass each request to the arbiter. None stands for one that it answers later."""
        return [self._ask(request) for request in requests]

    def finalize(self) -> None:
        """End the arbiter's thread."""
        self.driver.close()

    def _ask(self, request: Any) -> Any:
        try:
            payload = payload_of(python_backend.read_tensors(request), ARBITER_REQUEST)
            try:
                message = msgspec.json.decode(payload, type=ArbiterRequest)
            except msgspec.DecodeError as exc:
                raise InvalidRequest(f"not an ArbiterRequest ({exc})", ARBITER_REQUEST.name) from exc
            if not hmac.compare_digest(message.key.encode(), self.key.encode()):
                raise KeyRefused(f"this message needs Triton's key ({KEY_VARIABLE})", ARBITER_REQUEST.name)
        except Exception as exc:
            return python_backend.error_response(exc, python_backend.request_id(request))
        send = python_backend.only_response_sender(request)

        def reply(answer: ArbiterAnswer) -> None:
            send(python_backend.response(message_tensor(ARBITER_ANSWER, msgspec.json.encode(answer))))

        self.driver.ask(message, reply)
        return None
