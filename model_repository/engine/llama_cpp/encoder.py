"""The embedded CPU runtime of models that embed: llama.cpp computes several prompts of unlike lengths in one step."""

from __future__ import annotations

import contextlib
import queue
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_repository.contract.request import EngineRequest
from model_repository.engine.llama_cpp.context import (
    StepContext,
    embedding_params,
    embedding_windows,
    has_probabilities,
    let_finish,
    model_path,
    warm_up,
)
from model_repository.engine.llama_cpp.context_count import MAX_STEP_TOKENS, num_threads_of
from model_repository.engine.llama_cpp.devices import DeviceStates
from model_repository.engine.llama_cpp.library import llama
from model_repository.engine.llama_cpp.weights import load_weights
from model_repository.engine.queue_order import queue_order_s
from model_repository.engine.request_checks import check_request
from model_repository.engine.runtime import EngineConfig, Prepared, Runtime, RuntimeStats, StepOutput
from model_repository.errors import EngineFailed
from model_repository.model_facts import Pooling

type _Vector = npt.NDArray[np.float64]

_WAIT_S = 0.04  # during a step the engine sends results that it held, and looks after its clients
_SIGN_INTERVAL_S = 1.0
_MAX_SILENCE_S = 30.0  # one operation takes several seconds of some cores: attention over 8192 tokens


@dataclass(frozen=True, slots=True)
class _Queued:
    queue_order_s: float
    sequence: int
    token_ids: tuple[int, ...]


class _Context(StepContext[list[StepOutput]]):
    """Computes the steps of one llama.cpp context.

    Args:
        model: see StepContext.
        params: see StepContext.
        done: see StepContext.
        finished: changes a vector of llama.cpp's to that of the answer.
        is_long: it is for prompts of more than MAX_STEP_TOKENS tokens.
    """

    def __init__(
        self,
        model: llama.LlamaModel,
        params: llama.LlamaContextParams,
        done: Callable[[_Context], None],
        finished: Callable[[_Vector], _Vector],
        *,
        is_long: bool,
    ) -> None:
        super().__init__(model, params, done)
        self.is_long = is_long
        self.wanted: set[int] = set()  # its sequences that are not freed
        self.signed_s = 0.0  # time.monotonic of its last sign of life
        self._prompts: Sequence[_Queued] = ()
        self._is_finite = True  # the last step's vectors, and so the KV cache
        self._finished = finished
        self.llama_context.set_abort_callback(self._is_unwanted)

    def warm_up(self, window: int) -> None:
        """See `warm_up`. A step that no sequence wants would be aborted."""
        self.wanted = {0}
        warm_up(self.llama_context, 1, window)
        self.wanted = set()

    def prepare(self, prompts: Sequence[_Queued]) -> None:
        """Set the prompts of the next step."""
        self.signed_s = time.monotonic()
        self.wanted = {each.sequence for each in prompts}
        self._prompts = prompts

    def _fill(self, prompts: Sequence[_Queued]) -> None:
        self._batch.clear()
        for slot, each in enumerate(prompts):
            for position, token_id in enumerate(each.token_ids):
                self._batch.add(token_id, position, [slot], True)

    def _compute(self) -> list[StepOutput]:
        started_s = time.monotonic()
        try:
            vectors = self._vectors(self._prompts)
        except InterruptedError:
            return []  # no sequence is wanted
        return [
            StepOutput(each.sequence, embedding=vector.astype("<f4").tobytes(), scheduled_s=started_s)
            for each, vector in zip(self._prompts, vectors, strict=True)
        ]

    def _vectors(self, prompts: Sequence[_Queued]) -> list[_Vector]:
        """Compute prompts together. If a vector is not finite, compute each alone: one NaN is in all prompts of a step.

        Raises:
            InterruptedError: no sequence is wanted.
        """
        self._fill(prompts)
        self.llama_context.kv_cache_clear(clear_data=not self._is_finite)  # a decoder's; an encoder has none
        self.llama_context.decode(self._batch)
        slots = range(len(prompts))
        vectors = [np.array(self.llama_context.get_embeddings_seq(slot)) for slot in slots]
        self._is_finite = all(np.isfinite(vector).all() for vector in vectors)
        if self._is_finite:
            return [self._finished(vector) for vector in vectors]
        if len(prompts) == 1:
            return vectors
        return [vector for prompt in prompts for vector in self._vectors([prompt])]

    def _is_unwanted(self) -> bool:
        """Answer llama.cpp, which asks before each operation."""
        self.signed_s = time.monotonic()
        return not self.wanted


class LlamaCppEncoder(Runtime):
    """Embeds each prompt in one step, and keeps nothing of it.

    A step has at most MAX_STEP_TOKENS tokens: llama.cpp compares all tokens of a step with each other, and hides those
    of other prompts only afterwards. A longer prompt has a step of its own, in a context with the memory for it, beside
    the steps of the others. See LlamaCppRuntime for the number of contexts and of their threads.

    Raises:
        EngineFailed: the model does not load.
    """

    def __init__(self, config: EngineConfig, byte_table: Sequence[bytes]) -> None:
        path, self._num_threads = model_path(config), num_threads_of(config)
        self._computed: queue.SimpleQueue[_Context | None] = queue.SimpleQueue()  # None: wake up
        self._contexts: list[_Context] = []
        try:
            self._model = load_weights(path, config)
            for window in embedding_windows(config):
                params, is_long = embedding_params(self._model, config, window), window > MAX_STEP_TOKENS
                context = _Context(self._model, params, self._computed.put, self._finished, is_long=is_long)
                self._contexts.append(context)
                if config.gpu_layers:
                    context.warm_up(window)
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise EngineFailed(f"{path}: llama.cpp does not load it: {exc}") from exc
        self._config = config
        self._failure: EngineFailed | None = None  # of a device, which computes no more
        self._devices = DeviceStates(config.devices)
        self._has_probabilities = has_probabilities(self._model, config)
        self._vocab_size = self._model.get_vocab().n_vocab
        self._waiting: list[_Queued] = []  # sorted by queue order
        self._signed_s = 0.0  # up to then, all computing contexts have given signs of life to the engine

    def submit(self, sequence: int, request: EngineRequest, prepared: Prepared | None = None) -> None:
        if self._failure is not None:
            raise self._failure
        check_request(request, self._vocab_size, ())
        queued = _Queued(queue_order_s(request, time.monotonic()), sequence, request.prompt_token_ids)
        insort(self._waiting, queued, key=lambda each: each.queue_order_s)

    def free(self, sequence: int, *, is_reusable: bool = True) -> None:
        """Forget a sequence. A step without other sequences ends before its next operation."""
        self._waiting = [each for each in self._waiting if each.sequence != sequence]
        for context in self._contexts:
            context.wanted.discard(sequence)

    def step(self) -> Sequence[StepOutput] | None:
        """Let every context compute, and return the vectors of the first to finish."""
        self._start_steps()
        context = self._next_computed()
        if context is None:
            return self._sign_of_life()
        try:
            return context.finish()
        except (RuntimeError, ValueError) as exc:
            self._forget_all()
            failure = EngineFailed(f"llama.cpp failed in a step: {exc}")
            if self._config.gpu_layers:
                self._failure = failure
            raise failure from exc

    def _next_computed(self) -> _Context | None:
        """Wait for the first context to finish, until a message comes or time is over. Each message has left a None."""
        with contextlib.suppress(queue.Empty):
            context = self._computed.get(timeout=_WAIT_S)
            while context is None:
                context = self._computed.get_nowait()
            return context
        return None

    def _sign_of_life(self) -> Sequence[StepOutput] | None:
        """Return an empty result now and then while every step goes on: the engine counts as lost without one."""
        signed_s = self._last_sign_of_all_s
        if signed_s <= self._signed_s + _SIGN_INTERVAL_S:
            return None
        self._signed_s = signed_s
        return ()

    @property
    def _last_sign_of_all_s(self) -> float:
        return min((context.signed_s for context in self._computing), default=time.monotonic())

    @property
    def _computing(self) -> list[_Context]:
        return [context for context in self._contexts if context.is_computing]

    def _start_steps(self) -> None:
        """Share the waiting prompts out to the idle contexts, unless a step hangs: the engine shall count as lost."""
        if time.monotonic() - self._last_sign_of_all_s > _MAX_SILENCE_S:
            return
        idle = [context for context in self._contexts if not context.is_computing]
        lengths = [len(each.token_ids) for each in self._waiting]
        num_sharing = max(1, sum(not context.is_long for context in idle))
        share = sum(length for length in lengths if length <= MAX_STEP_TOKENS) / num_sharing
        prepared = [context for context in idle if self._prepare(context, share)]
        num_busy = len(self._computing) + len(prepared)
        for context in prepared:
            context.start(max(1, self._num_threads // num_busy))

    def _prepare(self, context: _Context, share: float) -> bool:
        """Move the first prompts for a context, of about `share` tokens, into its batch; return whether it has any."""
        taken: list[_Queued] = []
        num_tokens = 0
        for each in self._waiting:
            length = len(each.token_ids)
            if (length > MAX_STEP_TOKENS) != context.is_long:
                continue
            is_full = num_tokens >= share or num_tokens + length > MAX_STEP_TOKENS
            if taken and (is_full or len(taken) == self._config.max_sequences):
                break
            taken.append(each)
            num_tokens += length
        context.prepare(taken)
        self._waiting = [each for each in self._waiting if each.sequence not in context.wanted]
        return bool(taken)

    def _finished(self, vector: _Vector) -> _Vector:
        if self._has_probabilities:
            vector = np.log(np.maximum(vector, np.finfo(np.float32).tiny))
        elif self._config.pooling != Pooling.RANK:
            vector = vector / (np.linalg.norm(vector) or 1.0)
        return vector

    def _forget_all(self) -> None:
        """Forget all sequences, and wait for the steps in progress."""
        self._waiting.clear()
        for context in self._contexts:
            context.wanted.clear()
        let_finish(self._contexts, self._computed)

    def wake(self) -> None:
        self._computed.put(None)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._computing)

    def stats(self) -> RuntimeStats:
        """Return the current state.

        Raises:
            EngineFailed: a file of the weights, which are read from the disk as they are needed, was changed; or a
                device has failed.
        """
        if self._failure is not None:
            raise self._failure
        self._config.check_files()
        return RuntimeStats(
            num_active=sum(len(context.wanted) for context in self._computing),
            num_waiting=len(self._waiting),
            num_kv_tokens_used=None,
            max_kv_tokens=None,
            devices=self._devices.latest(),
        )

    def close(self) -> None:
        """Free the contexts, then the model."""
        self._forget_all()
        for context in self._contexts:
            context.close()
        self._model.close()
