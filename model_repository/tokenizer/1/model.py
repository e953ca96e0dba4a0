"""Triton's door to the tokenizer stage: a client's tensors to the engine's request."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from model_repository import python_backend
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.cancel_channel import CancelReceiver, key_to_number
from model_repository.contract.codec import Tensors
from model_repository.contract.request import (
    DetokenizeRequest,
    GenerationRequest,
    Params,
    RequestBatch,
    TokenizeRequest,
)
from model_repository.contract.signature import Signature
from model_repository.contract.tensors import CALL_TIMEOUT_S, MAX_TOKENIZER_BATCH, stage_name
from model_repository.errors import InvalidRequest, Overloaded, StageError
from model_repository.fair_pool import FairPool
from model_repository.system.bounded_process import memory_bytes
from model_repository.system.cores import num_cores
from model_repository.tokenizer.constraint import ConstraintChecker
from model_repository.tokenizer.stage import GrammarNotChecked, Message, TokenizerStage
from model_repository.tokenizer.tokenizer_files import TokenizerFiles

_SHORT_BYTES = 4_096  # up to four milliseconds' work
_REQUEST_BYTES = 300  # a request beside its text
_MAX_WAITING, _MAX_WAITING_BYTES = 1_000, 64 << 20  # one sender's inputs
_MAX_WAIT_S = 0.8 * CALL_TIMEOUT_S  # the answer must reach a caller that still waits
_SWITCH_INTERVAL_S = 0.0005  # the thread that distributes waits no longer for Python's lock
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
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        # Tokenizing frees Python's lock. One sender leaves a core for other work, and a thread for other senders.
        num_threads = max(2, num_cores())
        self.text_threads = FairPool(
            num_threads,
            "prompts",
            num_per_sender=num_threads - 1,
            max_waiting=_MAX_WAITING,
            max_size=_MAX_WAITING_BYTES,
            niceness=0,
        )
        self.grammar_threads = FairPool(_NUM_CHECKERS)
        self.cancelled: dict[int, None] = {}  # recent cancel keys, as numbers
        self.cancel_receiver = CancelReceiver(stage_name(parameters.ensemble, "tokenizer"), self._cancel)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode each request's prompt. None stands for a request that a thread answers later.

        Triton sends the next requests only after this returns. So short requests are answered here only if none waits
        behind them, which would be here too. Threads answer all others in fair order; their answers cost more.
        """
        room = _SHORT_BYTES if len(requests) < MAX_TOKENIZER_BATCH else 0
        answers = []
        for read in map(self._read, requests):
            if isinstance(read, _Call):
                num_bytes = read.num_text_bytes
                is_short = num_bytes <= room
                room -= is_short * num_bytes
                answers.append(self._serve(read, is_short=is_short))
            else:
                answers.append(read)
        return answers

    def finalize(self) -> None:
        """Finish the requests in the threads."""
        self.cancel_receiver.close()
        self.text_threads.close()
        self.grammar_threads.close()
        self.checker.close()

    def _read(self, request: Any) -> _Call | Any:
        """Return the call in a request, or the response that refuses it."""
        request_id = python_backend.request_id(request)
        try:
            tensors = python_backend.read_tensors(request)
            for name, value in tensors.items():
                if len(value) != 1:
                    raise InvalidRequest(f"shape {list(value.shape)}: must be [1, ...], of one request", name)
            message = self.stage.read(tensors, request_id)
        except Exception as exc:
            return python_backend.error_response(exc, request_id)
        return _Call(message, request_id, request, _num_bytes(tensors), time.monotonic())

    def _serve(self, call: _Call, *, is_short: bool) -> Any:
        threads = self.text_threads
        if is_short:
            try:
                return self._answer(call, may_wait=False)
            except GrammarNotChecked:
                threads = self.grammar_threads
        self._answer_later(threads, call, python_backend.only_response_sender(call.request))
        return None

    def _answer_later(self, threads: FairPool, call: _Call, send: Callable[[Any], None]) -> None:
        """Answer in a thread, when its sender has a turn. A grammar is compiled in the threads for that."""

        def answer() -> None:
            try:
                self._check_caller(call)
                has_waited = threads is self.grammar_threads
                send(self._answer(call, may_wait=has_waited))
            except GrammarNotChecked:
                self._answer_later(self.grammar_threads, call, send)
            except StageError as exc:
                send(python_backend.error_response(exc, call.request_id))

        try:
            threads.submit(threads.first_of(call.senders), answer, call.size)
        except StageError as exc:
            send(python_backend.error_response(exc, call.request_id))

    def _check_caller(self, call: _Call) -> None:
        """Refuse work whose result nobody reads.

        Raises:
            InvalidRequest: all its requests are cancelled.
            Overloaded: its caller has stopped waiting.
        """
        keys = [params.cancel_key for params in call.params]
        if keys and all(key and key_to_number(key) in self.cancelled for key in keys):
            raise InvalidRequest("the request is cancelled", "cancel_key")
        if call.is_awaited and time.monotonic() - call.arrived_s > _MAX_WAIT_S:
            raise Overloaded(f"the request has waited for longer than {_MAX_WAIT_S:g} s")

    def _answer(self, call: _Call, *, may_wait: bool) -> Any:
        try:
            return python_backend.response(self.stage.answer(call.message, may_wait=may_wait))
        except GrammarNotChecked:
            raise
        except BaseException as exc:  # a panic in Rust code is not an Exception
            return python_backend.error_response(exc, call.request_id)

    def _cancel(self, number: int) -> None:
        self.cancelled[number] = None
        if len(self.cancelled) > _NUM_CANCELLED:
            del self.cancelled[next(iter(self.cancelled))]


class _Call(NamedTuple):
    """A message to the stage."""

    message: Message
    request_id: str
    request: Any  # Triton's
    size: int  # bytes
    arrived_s: float  # time.monotonic

    @property
    def num_text_bytes(self) -> int:
        """About the bytes to encode."""
        return max(1, self.size - _REQUEST_BYTES * len(self.params))

    @property
    def params(self) -> list[Params]:
        """The parameters of its requests; empty for one of tokens or of a text alone."""
        match self.message:
            case RequestBatch(items=items):
                return [request.params for _, request in items]
            case GenerationRequest(params=params):
                return [params]
            case TokenizeRequest() | DetokenizeRequest():
                return []

    @property
    def senders(self) -> list[str]:
        if isinstance(self.message, TokenizeRequest | DetokenizeRequest):
            return [self.message.sender]
        return [params.sender for params in self.params] or [""]

    @property
    def is_awaited(self) -> bool:
        """Whether a frontend waits for this response, and no longer than CALL_TIMEOUT_S: no engine gets it."""
        return isinstance(self.message, TokenizeRequest | DetokenizeRequest) or (
            isinstance(self.message, RequestBatch) and not self.message.stream
        )


def _num_bytes(tensors: Tensors) -> int:
    values = tensors.values()
    return sum(sum(map(len, value.flat)) if value.dtype == np.object_ else value.nbytes for value in values)
