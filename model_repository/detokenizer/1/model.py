"""Triton's door to the detokenizer stage: releases to text, and news of clients that are gone to the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_repository import contract, triton_shell
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.cancel_channel import CancelSender
from model_repository.chunk_tensors import chunk_to_tensors
from model_repository.detokenizer.text import Decoding, Detokenizer, tensors_to_delivery, tensors_to_release


class TritonPythonModel:
    """Texts leave in the order of their releases: the stage has one instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the byte table and the special tokens' strings."""
        parameters = triton_shell.stage_parameters(args)
        artifact = Path(parameters["artifact_dir"])
        self.detokenizer = Detokenizer(
            load_byte_table(artifact / FILE_NAME), Decoding.load(artifact / "tokenizer" / "tokenizer.json")
        )
        self.cancel_sender = CancelSender(parameters["ensemble"])

    def execute(self, requests: list[Any]) -> None:
        """Answer each release with its text; a probe, or a release that nobody reads, not at all."""
        for request in requests:
            responder = triton_shell.TritonResponder(request)
            try:
                responder.close(self._serve(request))
            except Exception as exc:
                responder.fail(exc)

    def _serve(self, request: Any) -> dict[str, Any] | None:
        tensors = triton_shell.read_tensors(request)
        if contract.DELIVERY.name in tensors:
            return self._deliver(request, tensors)
        release = tensors_to_release(tensors)
        if request.is_cancelled():
            if release.finish_reason is None:
                self.cancel_sender.cancel(release.sequence)
            return None
        if release.is_probe:
            return None
        cum_logprob = release.details.cum_logprob if release.details else None
        return chunk_to_tensors(self.detokenizer.chunk(release), cum_logprob=cum_logprob)

    def _deliver(self, request: Any, tensors: dict[str, Any]) -> dict[str, Any] | None:
        delivery = tensors_to_delivery(tensors)
        if delivery.is_probe and request.is_cancelled():
            self.cancel_sender.cancel(delivery.stream)
            return None
        return self.detokenizer.chunks(delivery).to_tensors()

    def finalize(self) -> None:
        """Close the way to the engine."""
        self.cancel_sender.close()
