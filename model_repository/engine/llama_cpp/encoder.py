"""The embedded CPU runtime of models that embed: llama.cpp computes several prompts of unlike lengths in one step."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cyllama.llama import llama_cpp as llama

from model_repository.contract.request import EngineRequest
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.llama_cpp.context import MAX_STEP_TOKENS, embedding_params
from model_repository.engine.queue_order import queue_order_s
from model_repository.engine.request_checks import check_request
from model_repository.engine.runtime import WITH_SOFTMAX, EngineConfig, Pooling, Prepared, RuntimeStats, StepOutput
from model_repository.errors import EngineFailed, Unsupported
from model_repository.system.cores import num_physical_cores


@dataclass(frozen=True, slots=True)
class _Queued:
    queue_order_s: float
    sequence: int
    token_ids: tuple[int, ...]


class LlamaCppEncoder:
    """Embeds each prompt in one step, with all threads, and keeps nothing of it.

    A step has at most MAX_STEP_TOKENS tokens, or one longer prompt: llama.cpp compares all tokens of a step with each
    other, and hides those of other prompts only afterwards.

    Raises:
        EngineFailed: the model does not load.
    """

    def __init__(self, config: EngineConfig, byte_table: Sequence[bytes]) -> None:
        path = min(config.artifact_dir.glob("model*.gguf"), default=config.artifact_dir / "model.gguf")
        window, pooling, is_f32 = config.context_window, Pooling(config.pooling), config.precision == "f32"
        params = embedding_params(window, config.max_sequences, pooling, is_f32=is_f32)
        params.n_threads = params.n_threads_batch = config.num_threads or num_physical_cores()
        llama.disable_logging()
        llama.ggml_backend_load_all()
        try:
            self._model = llama.LlamaModel(str(path), llama.LlamaModelParams())
            self._context = llama.LlamaContext(self._model, params)
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise EngineFailed(f"{path}: llama.cpp does not load it: {exc}") from exc
        self._batch = llama.LlamaBatch(n_tokens=params.n_batch, embd=0, n_seq_max=1)
        self._config = config
        architecture = self._model.meta_val_str("general.architecture")
        self._has_probabilities = pooling is Pooling.RANK and architecture in WITH_SOFTMAX
        self._vocab_size = self._model.get_vocab().n_vocab
        self._waiting: list[_Queued] = []  # sorted by queue order
        self._num_active = 0  # prompts of the step in progress

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
        """Forget a sequence that waits."""
        self._waiting = [each for each in self._waiting if each.sequence != sequence]

    def step(self) -> Sequence[StepOutput]:
        """Embed the first waiting prompts.

        Raises:
            EngineFailed: llama.cpp failed; every sequence is lost.
        """
        started_s = time.monotonic()
        queued = self._take()
        self._batch.clear()
        for slot, each in enumerate(queued):
            for position, token_id in enumerate(each.token_ids):
                self._batch.add(token_id, position, [slot], True)
        try:
            self._context.decode(self._batch)
            self._context.kv_cache_clear()  # a decoder's; an encoder has none
        except (RuntimeError, ValueError) as exc:
            self._waiting.clear()
            raise EngineFailed(f"llama.cpp failed in a step: {exc}") from exc
        finally:
            self._num_active = 0
        return [
            StepOutput(each.sequence, embedding=self._embedding(slot), scheduled_s=started_s)
            for slot, each in enumerate(queued)
        ]

    def _take(self) -> list[_Queued]:
        """Remove the prompts of the next step from the queue."""
        num_tokens = count = 0
        for each in self._waiting[: self._config.max_sequences]:
            num_tokens += len(each.token_ids)
            if count and num_tokens > MAX_STEP_TOKENS:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._num_active = count
        return taken

    def _embedding(self, slot: int) -> bytes:
        vector = np.array(self._context.get_embeddings_seq(slot))
        if self._has_probabilities:
            vector = np.log(np.maximum(vector, np.finfo(np.float32).tiny))
        elif self._config.pooling != Pooling.RANK:
            vector /= np.linalg.norm(vector) or 1.0
        return vector.astype("<f4").tobytes()

    def prepare_adapter(self, adapter: Adapter) -> Adapter:
        """Do nothing: nothing can be loaded."""
        return adapter

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        raise Unsupported("a model that embeds takes no adapters")

    def unload_adapter(self, name: str) -> None:
        """Do nothing: nothing can be loaded."""

    def wake(self) -> None:
        """Do nothing: a step computes, it does not wait."""

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def stats(self) -> RuntimeStats:
        """Return the current state.

        Raises:
            EngineFailed: a file of the weights, which are read from the disk as they are needed, was changed.
        """
        self._config.check_files()
        return RuntimeStats(
            num_active=self._num_active, num_waiting=len(self._waiting), num_kv_tokens_used=None, max_kv_tokens=None
        )

    def close(self) -> None:
        """Free the context and the model."""
        self._waiting.clear()
        self._batch.close()
        self._context.close()
        self._model.close()
