"""The embedded CPU runtime of models that embed: llama.cpp computes several prompts of unlike lengths in one step."""

from __future__ import annotations

import queue
import time
from bisect import insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_repository.contract.request import EngineRequest
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.llama_cpp.context import MAX_STEP_TOKENS, embedding_params, num_contexts
from model_repository.engine.llama_cpp.library import llama
from model_repository.engine.queue_order import queue_order_s
from model_repository.engine.request_checks import check_request
from model_repository.engine.runtime import WITH_SOFTMAX, EngineConfig, Pooling, Prepared, RuntimeStats, StepOutput
from model_repository.errors import EngineFailed, Unsupported
from model_repository.system.cores import num_physical_cores

type _Vector = npt.NDArray[np.float64]

_WAIT_S = 0.04  # during a step the engine sends results that it held, and looks after its clients
_SIGN_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class _Queued:
    queue_order_s: float
    sequence: int
    token_ids: tuple[int, ...]


class _Context:
    """Computes the steps of one llama.cpp context.

    Args:
        model: the weights, shared by all contexts.
        params: of the llama.cpp context.
        finished: changes a vector of llama.cpp's to that of the answer.
        is_long: it is for prompts of more than MAX_STEP_TOKENS tokens.
    """

    def __init__(
        self,
        model: llama.LlamaModel,
        params: llama.LlamaContextParams,
        finished: Callable[[_Vector], _Vector],
        *,
        is_long: bool,
    ) -> None:
        self.is_long = is_long
        self.step: Future[list[StepOutput]] | None = None  # the step in progress
        self.wanted: set[int] = set()  # its sequences that are not freed
        self.num_polls = 0  # by llama.cpp, one before each operation: a sign of life
        self._finished = finished
        self._context = llama.LlamaContext(model, params)
        self._context.set_abort_callback(self._is_unwanted)
        self._batch = llama.LlamaBatch(n_tokens=params.n_batch, embd=0, n_seq_max=1)

    def compute(self, prompts: Sequence[_Queued], num_threads: int) -> list[StepOutput]:
        """Embed prompts in one step.

        Raises:
            RuntimeError, ValueError: llama.cpp failed, or refused the batch.
        """
        started_s = time.monotonic()
        self._context.set_n_threads(num_threads, num_threads)
        self._context.kv_cache_clear(clear_data=False)  # a decoder's; an encoder has none
        self._batch.clear()
        for slot, each in enumerate(prompts):
            for position, token_id in enumerate(each.token_ids):
                self._batch.add(token_id, position, [slot], True)
        try:
            self._context.decode(self._batch)
        except InterruptedError:
            return []  # no sequence is wanted
        return [
            StepOutput(each.sequence, embedding=self._embedding(slot), scheduled_s=started_s)
            for slot, each in enumerate(prompts)
        ]

    def close(self) -> None:
        """Free the context, which must not be computing."""
        self._batch.close()
        self._context.close()

    def _embedding(self, slot: int) -> bytes:
        return self._finished(np.array(self._context.get_embeddings_seq(slot))).astype("<f4").tobytes()

    def _is_unwanted(self) -> bool:
        self.num_polls += 1
        return not self.wanted


class LlamaCppEncoder:
    """Embeds each prompt in one step, and keeps nothing of it.

    A step has at most MAX_STEP_TOKENS tokens: llama.cpp compares all tokens of a step with each other, and hides those
    of other prompts only afterwards. A longer prompt has a step of its own, in a context with the memory for it, beside
    the steps of the others. See LlamaCppRuntime for the number of contexts and of their threads.

    Raises:
        EngineFailed: the model does not load.
    """

    def __init__(self, config: EngineConfig, byte_table: Sequence[bytes]) -> None:
        path = min(config.artifact_dir.glob("model*.gguf"), default=config.artifact_dir / "model.gguf")
        pooling, is_f32 = Pooling(config.pooling), config.precision == "f32"
        self._num_threads = config.num_threads or num_physical_cores()
        num_short, window = num_contexts(config, self._num_threads), config.context_window
        windows = [min(window, MAX_STEP_TOKENS)] * num_short + [window] * (window > MAX_STEP_TOKENS)
        self._contexts: list[_Context] = []
        llama.disable_logging()
        llama.ggml_backend_load_all()
        try:
            self._model = llama.LlamaModel(str(path), llama.LlamaModelParams())
            for window in windows:
                params = embedding_params(self._model, window, config.max_sequences, pooling, is_f32=is_f32)
                is_long = window > MAX_STEP_TOKENS
                self._contexts.append(_Context(self._model, params, self._finished, is_long=is_long))
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise EngineFailed(f"{path}: llama.cpp does not load it: {exc}") from exc
        self._threads = ThreadPoolExecutor(len(windows), "context")
        self._computed: queue.SimpleQueue[_Context | None] = queue.SimpleQueue()  # None: wake up
        self._config = config
        architecture = self._model.meta_val_str("general.architecture")
        self._has_probabilities = pooling is Pooling.RANK and architecture in WITH_SOFTMAX
        self._vocab_size = self._model.get_vocab().n_vocab
        self._waiting: list[_Queued] = []  # sorted by queue order
        self._num_polls = 0  # at the last sign of life, ...
        self._signed_s = 0.0  # ... and its time

    def prepare(self, request: EngineRequest) -> Prepared:
        """Do nothing: there are neither constraints nor images."""
        return Prepared(request)

    def submit(self, sequence: int, request: EngineRequest, prepared: Prepared | None = None) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: the model has no such token or adapter.
        """
        check_request(request, self._vocab_size, ())
        queued = _Queued(queue_order_s(request, time.monotonic()), sequence, request.prompt_token_ids)
        insort(self._waiting, queued, key=lambda each: each.queue_order_s)

    def free(self, sequence: int) -> None:
        """Forget a sequence. A step without other sequences ends before its next operation."""
        self._waiting = [each for each in self._waiting if each.sequence != sequence]
        for context in self._contexts:
            context.wanted.discard(sequence)

    def step(self) -> Sequence[StepOutput] | None:
        """Let every context compute, and return the vectors of the first to finish.

        Raises:
            EngineFailed: llama.cpp failed; every sequence is lost.
        """
        self._start_steps()
        try:
            context = self._computed.get(timeout=_WAIT_S)
        except queue.Empty:
            context = None
        if context is None:
            return self._sign_of_life()
        assert context.step is not None
        try:
            return context.step.result()
        except (RuntimeError, ValueError) as exc:
            self._forget_all()
            raise EngineFailed(f"llama.cpp failed in a step: {exc}") from exc
        finally:
            context.step = None

    def _sign_of_life(self) -> Sequence[StepOutput] | None:
        """Return an empty result now and then while llama.cpp goes on: the engine counts as lost without one."""
        num_polls, now_s = sum(context.num_polls for context in self._contexts), time.monotonic()
        if num_polls == self._num_polls or now_s < self._signed_s + _SIGN_INTERVAL_S:
            return None
        self._num_polls, self._signed_s = num_polls, now_s
        return ()

    @property
    def _computing(self) -> list[_Context]:
        return [context for context in self._contexts if context.step is not None]

    def _start_steps(self) -> None:
        """Share the waiting prompts out to the idle contexts."""
        idle = [context for context in self._contexts if context.step is None]
        lengths = [len(each.token_ids) for each in self._waiting]
        num_sharing = max(1, sum(not context.is_long for context in idle))
        share = sum(length for length in lengths if length <= MAX_STEP_TOKENS) / num_sharing
        steps = [(context, prompts) for context in idle if (prompts := self._take(context, share))]
        num_busy = len(self._computing) + len(steps)
        for context, prompts in steps:
            num_threads = max(1, self._num_threads // num_busy)
            context.step = self._threads.submit(self._compute, context, prompts, num_threads)

    def _compute(self, context: _Context, prompts: Sequence[_Queued], num_threads: int) -> list[StepOutput]:
        try:
            return context.compute(prompts, num_threads)
        finally:
            self._computed.put(context)

    def _take(self, context: _Context, share: float) -> list[_Queued]:
        """Move the first prompts that a context computes, of about `share` tokens, out of the queue."""
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
        context.wanted = {each.sequence for each in taken}
        self._waiting = [each for each in self._waiting if each.sequence not in context.wanted]
        return taken

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
        wait([context.step for context in self._computing if context.step is not None])

    def prepare_adapter(self, adapter: Adapter) -> Adapter:
        """Do nothing: nothing can be loaded."""
        return adapter

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        raise Unsupported("a model that embeds takes no adapters")

    def unload_adapter(self, name: str) -> None:
        """Do nothing: nothing can be loaded."""

    def wake(self) -> None:
        """Make the present or the next step return at once."""
        self._computed.put(None)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._computing)

    def stats(self) -> RuntimeStats:
        """Return the current state.

        Raises:
            EngineFailed: a file of the weights, which are read from the disk as they are needed, was changed.
        """
        self._config.check_files()
        return RuntimeStats(
            num_active=sum(len(context.wanted) for context in self._computing),
            num_waiting=len(self._waiting),
            num_kv_tokens_used=None,
            max_kv_tokens=None,
        )

    def close(self) -> None:
        """Free the contexts, then the model."""
        self._forget_all()
        self._threads.shutdown()
        for context in self._contexts:
            context.close()
        self._model.close()
