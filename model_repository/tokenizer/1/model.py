"""Triton's door to the tokenizer stage: a client's tensors to the engine's request."""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from model_repository import python_backend
from model_repository.bounded_process import memory_bytes
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.cancel_channel import CancelReceiver, key_to_number
from model_repository.contract.codec import Tensors
from model_repository.contract.tensors import stage_name
from model_repository.cores import num_cores
from model_repository.errors import InvalidRequest, StageError
from model_repository.fair_pool import FairPool
from model_repository.tokenizer.constraint import ConstraintCompiler
from model_repository.tokenizer.stage import GrammarNotChecked, StageConfig, TokenizerStage
from model_repository.tokenizer.tokenizer_files import TokenizerFiles

_LARGE_BYTES = 16_384  # of inputs: about a millisecond's work
_NUM_CANCELLED = 4096
_MAX_BYTES = 4 << 30  # beyond the start: the chat template is its publisher's code
_NUM_COMPILERS = 3  # grammars compiled at the same time, of different senders


class TritonPythonModel:
    """One response per request; a bad request does not disturb the others."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer and compile the chat template."""
        parameters = python_backend.stage_parameters(args)
        artifact = Path(parameters["artifact_dir"])
        with python_backend.loading(args):
            self.compiler = ConstraintCompiler(_NUM_COMPILERS)  # it forks, so it starts before all threads
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes(5) + _MAX_BYTES, hard))
            self.stage = TokenizerStage(
                TokenizerFiles.load(artifact / "tokenizer"),
                load_byte_table(artifact / FILE_NAME),
                StageConfig.from_parameters(parameters),
                self.compiler,
            )
        # Tokenizing frees Python's lock. One core is left for other work.
        self.threads = ThreadPoolExecutor(max(1, num_cores() - 1))
        self.grammar_threads = FairPool(_NUM_COMPILERS)
        self.cancelled: dict[int, None] = {}  # recent cancel keys, as numbers
        self.cancel_receiver = CancelReceiver(stage_name(parameters["ensemble"], "tokenizer"), self._cancel)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode each request's prompt. None stands for a request that a thread answers later.

        Triton sends the next requests only after this returns, so threads answer large prompts and new grammars. An
        answer from a thread costs more.
        """
        return [self._serve(request) for request in requests]

    def finalize(self) -> None:
        """Finish the requests in the threads."""
        self.cancel_receiver.close()
        self.threads.shutdown()
        self.grammar_threads.close()
        self.compiler.close()

    def _serve(self, request: Any) -> Any:
        request_id = python_backend.request_id(request)
        try:
            tensors = python_backend.read_tensors(request)
        except Exception as exc:
            return python_backend.error_response(exc, request_id)
        answer_later = self._answer_in_thread
        if _num_bytes(tensors) < _LARGE_BYTES:
            try:
                return self._answer(tensors, request_id, may_wait=False)
            except GrammarNotChecked as exc:
                answer_later = functools.partial(self._answer_compiled, exc)
        # Triton reuses the memory of the arrays.
        copies = {name: value.copy() for name, value in tensors.items()}
        answer_later(copies, request_id, python_backend.only_response_sender(request))
        return None

    def _answer_in_thread(self, tensors: Tensors, request_id: str, send: Callable[[Any], None]) -> None:
        def answer() -> None:
            try:
                send(self._answer(tensors, request_id, may_wait=False))
            except GrammarNotChecked as exc:
                self._answer_compiled(exc, tensors, request_id, send)

        self.threads.submit(answer)

    def _answer_compiled(
        self, grammar: GrammarNotChecked, tensors: Tensors, request_id: str, send: Callable[[Any], None]
    ) -> None:
        """Answer a request after its grammar is compiled; the grammars of one sender wait for each other."""

        def answer() -> None:
            if key_to_number(grammar.cancel_key) in self.cancelled:
                send(python_backend.error_response(InvalidRequest("it is cancelled", "cancel_key"), request_id))
            else:
                send(self._answer(tensors, request_id, may_wait=True))

        try:
            self.grammar_threads.submit(grammar.sender, answer)
        except StageError as exc:
            send(python_backend.error_response(exc, request_id))

    def _answer(self, tensors: Tensors, request_id: str, *, may_wait: bool) -> Any:
        try:
            for name, value in tensors.items():
                if len(value) != 1:
                    raise InvalidRequest(f"shape {list(value.shape)}: must be [1, ...], of one request", name)
            return python_backend.response(self.stage.answer(tensors, request_id, may_wait=may_wait))
        except GrammarNotChecked:
            raise
        except Exception as exc:
            return python_backend.error_response(exc, request_id)

    def _cancel(self, number: int) -> None:
        self.cancelled[number] = None
        if len(self.cancelled) > _NUM_CANCELLED:
            del self.cancelled[next(iter(self.cancelled))]


def _num_bytes(tensors: Tensors) -> int:
    values = tensors.values()
    return sum(sum(map(len, value.flat)) if value.dtype == np.object_ else value.nbytes for value in values)
