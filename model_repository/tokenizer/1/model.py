"""Triton's door to the tokenizer stage: a client's tensors to the engine's request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from model_repository import triton_shell
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.cores import num_cores
from model_repository.errors import InvalidRequest
from model_repository.tensors import Tensors, num_bytes
from model_repository.tokenizer.stage import StageConfig, TokenizerStage
from model_repository.tokenizer.tokenizer_files import TokenizerFiles

_LARGE_BYTES = 16_384  # of inputs: about a millisecond's work


class TritonPythonModel:
    """One response per request; a bad request answers itself, not the others."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer and compile the chat template."""
        parameters = triton_shell.stage_parameters(args)
        artifact = Path(parameters["artifact_dir"])
        with triton_shell.loading(args):
            self.stage = TokenizerStage(
                TokenizerFiles.load(artifact / "tokenizer"),
                load_byte_table(artifact / FILE_NAME),
                StageConfig.from_parameters(parameters),
            )
        # While they tokenize Python's lock is free. One core is left to everything else.
        self.threads = ThreadPoolExecutor(max(1, num_cores() - 1))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode each request's prompt, large ones in threads: None is returned for these, and they are answered later.

        An answer of its own costs more, but the next requests come as soon as this returns.
        """
        return [self._serve(request) for request in requests]

    def finalize(self) -> None:
        """Answer what is waiting."""
        self.threads.shutdown()

    def _serve(self, request: Any) -> Any:
        try:
            tensors = triton_shell.read_tensors(request)
        except Exception as exc:
            return triton_shell.error_response(exc, triton_shell.request_id(request))
        if num_bytes(tensors) < _LARGE_BYTES:
            return self._answer(tensors, triton_shell.request_id(request))
        send, request_id = triton_shell.only_response_sender(request), triton_shell.request_id(request)
        # The arrays lie in memory that Triton takes back.
        copies = {name: value.copy() for name, value in tensors.items()}
        self.threads.submit(lambda: send(self._answer(copies, request_id)))
        return None

    def _answer(self, tensors: Tensors, request_id: str) -> Any:
        try:
            for name, value in tensors.items():
                if len(value) != 1:
                    raise InvalidRequest(f"shape {list(value.shape)}: must be [1, ...], of one request", name)
            return triton_shell.response(self.stage.answer(tensors))
        except Exception as exc:
            return triton_shell.error_response(exc, request_id)
