"""Triton's door to the tokenizer stage: a client's tensors to the engine's request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_repository import triton_shell
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.errors import InvalidRequest
from model_repository.tokenizer.stage import StageConfig, TokenizerStage
from model_repository.tokenizer.tokenizer_files import TokenizerFiles


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

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode each request's prompt."""
        return [self._serve(request) for request in requests]

    def _serve(self, request: Any) -> Any:
        try:
            if _is_cancelled(request):
                raise InvalidRequest("the request was cancelled")  # nobody reads it
            return triton_shell.response(self.stage.answer(triton_shell.read_tensors(request)))
        except Exception as exc:
            return triton_shell.error_response(exc)


def _is_cancelled(request: Any) -> bool:
    # Within an ensemble Triton may not tell its first stage; where it does, the stage need not work for nobody.
    try:
        return bool(request.is_cancelled())
    except Exception:
        return False
