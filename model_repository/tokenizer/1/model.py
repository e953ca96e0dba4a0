"""Triton's door to the tokenizer stage: a client's tensors to the engine's request."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from model_repository import python_backend
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.cancel_channel import CancelReceiver, key_to_number
from model_repository.contract.codec import Tensors
from model_repository.contract.request import GenerationRequest, Params, RequestBatch, TokenizeRequest
from model_repository.contract.signature import Signature
from model_repository.contract.tensors import CALL_TIMEOUT_S, stage_name
from model_repository.errors import InvalidRequest, Overloaded, StageError
from model_repository.fair_pool import FairPool
from model_repository.system.bounded_process import memory_bytes
from model_repository.system.cores import num_cores
from model_repository.tokenizer.constraint import ConstraintChecker
from model_repository.tokenizer.stage import GrammarNotChecked, Message, TokenizerStage
from model_repository.tokenizer.tokenizer_files import TokenizerFiles

_LARGE_BYTES = 16_384  # about a millisecond's work
_MAX_WAITING_BYTES = 64 << 20  # one sender's large inputs
_NUM_CANCELLED = 4096
_MAX_BYTES = 4 << 30  # beyond the start: the chat template is its publisher's code
_NUM_CHECKERS = 3  # grammars compiled at the same time, of different senders


class TritonPythonModel:
    """One response per request; a bad request does not disturb the others."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer and compile the chat template."""
        with python_backend.loading(args) as parameters:
            self.checker = ConstraintChecker(_NUM_CHECKERS)  # it forks, so it starts before all threads
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes(5) + _MAX_BYTES, hard))
            self.stage = TokenizerStage(
                TokenizerFiles.load(parameters.artifact_dir / "tokenizer"),
                load_byte_table(parameters.artifact_dir / FILE_NAME),
                parameters,
                self.checker,
                Signature(parameters.ensemble).sign,
            )
        # Tokenizing frees Python's lock. One sender leaves a core for other work, and a thread for other senders.
        num_threads = max(2, num_cores())
        self.text_threads = FairPool(
            num_threads,
            "bytes of prompts",
            num_per_sender=num_threads - 1,
            max_waiting=_MAX_WAITING_BYTES,
            niceness=0,
        )
        self.grammar_threads = FairPool(_NUM_CHECKERS)
        self.cancelled: dict[int, None] = {}  # recent cancel keys, as numbers
        self.cancel_receiver = CancelReceiver(stage_name(parameters.ensemble, "tokenizer"), self._cancel)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode each request's prompt. None stands for a request that a thread answers later.

        Triton sends the next requests only after this returns, so threads answer large prompts and new grammars. An
        answer from a thread costs more.
        """
        return [self._serve(request) for request in requests]

    def finalize(self) -> None:
        """Finish the requests in the threads."""
        self.cancel_receiver.close()
        self.text_threads.close()
        self.grammar_threads.close()
        self.checker.close()

    def _serve(self, request: Any) -> Any:
        request_id = python_backend.request_id(request)
        try:
            tensors = python_backend.read_tensors(request)
            message = self._read(tensors, request_id)
        except Exception as exc:
            return python_backend.error_response(exc, request_id)
        threads, size = self.text_threads, _num_bytes(tensors)
        if size < _LARGE_BYTES:
            try:
                return self._answer(message, request_id, may_wait=False)
            except GrammarNotChecked:
                threads, size = self.grammar_threads, 1
        send = python_backend.only_response_sender(request)
        self._answer_later(threads, size, _Call(message, request_id, send, time.monotonic()))
        return None

    def _read(self, tensors: Tensors, request_id: str) -> Message:
        for name, value in tensors.items():
            if len(value) != 1:
                raise InvalidRequest(f"shape {list(value.shape)}: must be [1, ...], of one request", name)
        return self.stage.read(tensors, request_id)

    def _answer_later(self, threads: FairPool, size: int, call: _Call) -> None:
        """Answer in a thread, after the sender's earlier calls there. A grammar is compiled in the threads for that."""

        def answer() -> None:
            try:
                self._check_caller(call)
                has_waited = threads is self.grammar_threads
                call.send(self._answer(call.message, call.request_id, may_wait=has_waited))
            except GrammarNotChecked:
                self._answer_later(self.grammar_threads, 1, call)
            except StageError as exc:
                call.send(python_backend.error_response(exc, call.request_id))

        try:
            threads.submit(call.sender, answer, size)
        except StageError as exc:
            call.send(python_backend.error_response(exc, call.request_id))

    def _check_caller(self, call: _Call) -> None:
        """Refuse work whose result nobody reads.

        Raises:
            InvalidRequest: all its requests are cancelled.
            Overloaded: its caller has stopped waiting.
        """
        keys = [params.cancel_key for params in call.params]
        if keys and all(key and key_to_number(key) in self.cancelled for key in keys):
            raise InvalidRequest("the request is cancelled", "cancel_key")
        if call.is_awaited and time.monotonic() - call.arrived_s > CALL_TIMEOUT_S:
            raise Overloaded(f"the request has waited for longer than {CALL_TIMEOUT_S:g} s")

    def _answer(self, message: Message, request_id: str, *, may_wait: bool) -> Any:
        try:
            return python_backend.response(self.stage.answer(message, may_wait=may_wait))
        except GrammarNotChecked:
            raise
        except BaseException as exc:  # a panic in Rust code is not an Exception
            return python_backend.error_response(exc, request_id)

    def _cancel(self, number: int) -> None:
        self.cancelled[number] = None
        if len(self.cancelled) > _NUM_CANCELLED:
            del self.cancelled[next(iter(self.cancelled))]


class _Call(NamedTuple):
    """A message that waits for a thread."""

    message: Message
    request_id: str
    send: Callable[[Any], None]  # sends the response
    arrived_s: float  # time.monotonic

    @property
    def params(self) -> list[Params]:
        """The parameters of its requests; empty for a prompt that is only tokenized."""
        match self.message:
            case RequestBatch(items=items):
                return [request.params for _, request in items]
            case GenerationRequest(params=params):
                return [params]
            case TokenizeRequest():
                return []

    @property
    def sender(self) -> str:
        if isinstance(self.message, TokenizeRequest):
            return self.message.sender
        return next((params.sender for params in self.params), "")

    @property
    def is_awaited(self) -> bool:
        """Whether a frontend waits for this response, and no longer than CALL_TIMEOUT_S: no engine gets it."""
        return isinstance(self.message, TokenizeRequest) or (
            isinstance(self.message, RequestBatch) and not self.message.stream
        )


def _num_bytes(tensors: Tensors) -> int:
    values = tensors.values()
    return sum(sum(map(len, value.flat)) if value.dtype == np.object_ else value.nbytes for value in values)
