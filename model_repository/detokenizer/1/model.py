"""Triton's door to the detokenizer stage: output batches to text, and disconnected clients to the engine."""

from __future__ import annotations

import struct
from typing import Any

from model_repository import python_backend
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.cancel_channel import CancelSender
from model_repository.contract.codec import Tensors, payload_of, unpack
from model_repository.contract.output import OutputBatch
from model_repository.contract.tensors import OUTPUT_BATCH
from model_repository.detokenizer.text import Detokenizer, load_special_tokens
from model_repository.errors import InvalidRequest


class TritonPythonModel:
    """The stage has one instance, so texts leave in the order of their output batches."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the byte table and the strings of special tokens."""
        with python_backend.loading(args) as parameters:
            artifact = parameters.artifact_dir
            self.detokenizer = Detokenizer(
                load_byte_table(artifact / FILE_NAME), load_special_tokens(artifact / "tokenizer" / "tokenizer.json")
            )
        self.cancel_sender = CancelSender(parameters.ensemble)

    def execute(self, requests: list[Any]) -> None:
        """Answer each batch with its texts. Some batches get no response: empty ones, and those without a client."""
        for request in requests:
            responder = python_backend.TritonResponder(request)
            try:
                responder.close_with(self._serve(request))
            except Exception as exc:
                responder.fail(exc)

    def _serve(self, request: Any) -> Tensors | None:
        batch = unpack(OutputBatch, payload_of(python_backend.read_tensors(request), OUTPUT_BATCH), OUTPUT_BATCH.name)
        try:
            if batch.is_disconnect_check and request.is_cancelled():
                self.cancel_sender.cancel(batch.stream)
                return None
            return python_backend.chunk_tensors(self.detokenizer.chunks(batch), is_single=batch.is_single)
        except (ValueError, OverflowError, struct.error) as exc:  # its parts differ in length, or a number is too large
            raise InvalidRequest(f"no engine sends such a batch ({exc})", OUTPUT_BATCH.name) from exc

    def finalize(self) -> None:
        self.cancel_sender.close()
