"""Computes the steps of one llama.cpp context: in the caller's thread, or in its own thread beside other contexts."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from model_repository.engine.llama_cpp.context_count import MAX_STEP_TOKENS, num_contexts
from model_repository.engine.llama_cpp.library import llama
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.scheduler import Chunk, Scheduler
from model_repository.model_facts import Pooling
from model_repository.runtimes import WITH_SOFTMAX

_GGML_TYPE_F32 = 0  # ggml.h: enum ggml_type
_FLASH_ATTN_DISABLED = 0  # llama.h: enum llama_flash_attn_type
# ggml-vulkan has a kernel for each number of tokens up to this one. For more tokens it has tiles of three sizes: these
# prompts take one each. The largest step needs the most memory, too.
_MAX_VECTORS, _TILED_PROMPTS = 8, (9, 33, MAX_STEP_TOKENS)
_POOLING_TYPES = {
    Pooling.MEAN: llama.LLAMA_POOLING_TYPE_MEAN,
    Pooling.CLS: llama.LLAMA_POOLING_TYPE_CLS,
    Pooling.LAST: llama.LLAMA_POOLING_TYPE_LAST,
    Pooling.RANK: llama.LLAMA_POOLING_TYPE_RANK,
}


def model_path(config: EngineConfig) -> Path:
    """Return the model's file, or the first one of a split model."""
    return min(config.artifact_dir.glob("model*.gguf"), default=config.artifact_dir / "model.gguf")


def context_params(num_slots: int, window: int, *, is_f32: bool) -> llama.LlamaContextParams:
    """Return the parameters of a context, for slots of `window` tokens."""
    params = llama.LlamaContextParams()
    params.n_ctx = window * num_slots
    params.n_seq_max = num_slots
    params.n_batch = params.n_ubatch = MAX_STEP_TOKENS
    params.kv_unified = False  # a shared pool would make every sequence attend over all KV tokens in use
    params.swa_full = True  # a later prompt may reuse a beginning that ends before the sliding window
    _set_precision(params, is_f32=is_f32)
    return params


def embedding_windows(config: EngineConfig) -> list[int]:
    """Return the longest prompt of each context that embeds. One context is for prompts above MAX_STEP_TOKENS."""
    window = config.context_window
    return [min(window, MAX_STEP_TOKENS)] * num_contexts(config) + [window] * (window > MAX_STEP_TOKENS)


def has_probabilities(model: llama.LlamaModel, config: EngineConfig) -> bool:
    """Whether llama.cpp makes probabilities of a model's scores. These scores are the last token's."""
    return config.pooling == Pooling.RANK and model.meta_val_str("general.architecture") in WITH_SOFTMAX


def embedding_params(model: llama.LlamaModel, config: EngineConfig, window: int) -> llama.LlamaContextParams:
    """Return the parameters of a context that embeds up to `max_sequences` prompts in a step, none above `window`."""
    params, pooling = llama.LlamaContextParams(), Pooling(config.pooling)
    params.embeddings = True
    params.pooling_type = _POOLING_TYPES[pooling]
    params.n_seq_max = config.max_sequences
    # llama.cpp plans with equal shares of the tokens, and aborts the process if there is a rest.
    params.n_ctx = params.n_batch = -(-max(window, MAX_STEP_TOKENS) // config.max_sequences) * config.max_sequences
    params.kv_unified = True  # the prompts of a step share the tokens: they differ in length
    # llama.cpp computes a prompt at once. It may compute it in pieces if each token sees earlier ones only, and if the
    # result is the last token's.
    keys = model.metadata()
    is_causal = keys.get(f"{keys['general.architecture']}.attention.causal") != "false"
    is_last = pooling == Pooling.LAST or has_probabilities(model, config)
    params.n_ubatch = MAX_STEP_TOKENS if is_causal and is_last else params.n_batch
    # Without flash attention, which sums in f16, memory grows with the square: 12 heads and 8192 tokens take 3.4 GB.
    _set_precision(params, is_f32=config.precision == "f32" and params.n_ubatch <= MAX_STEP_TOKENS)
    return params


def _set_precision(params: llama.LlamaContextParams, *, is_f32: bool) -> None:
    params.no_perf = True
    if is_f32:
        # Flash attention sums in f16, even with a cache in f32: a text would depend on the rest of its batch.
        params.type_k = params.type_v = _GGML_TYPE_F32
        params.flash_attn_type = _FLASH_ATTN_DISABLED


def warm_up(context: llama.LlamaContext, num_slots: int, window: int) -> None:
    """Have devices compile their kernels: those for a token of each slot, and those for prompts. No token is kept.

    Raises:
        RuntimeError, ValueError: a device failed.
    """
    singles = [[1] * count for count in range(1, min(num_slots, _MAX_VECTORS) + 1)]
    prompts = [[min(length, window)] for length in _TILED_PROMPTS]
    with closing(llama.LlamaBatch(n_tokens=max(_TILED_PROMPTS), embd=0, n_seq_max=1)) as batch:
        for lengths in (*singles, *prompts):
            batch.clear()
            for slot, length in enumerate(lengths):
                for position in range(length):
                    batch.add(0, position, [slot], position == length - 1)
            context.decode(batch)
            context.kv_cache_clear(clear_data=True)


class StepContext[Result](ABC):
    """Computes prepared steps, in the caller's thread or in a daemon thread: a hung step ends with the process.

    Args:
        model: the weights, shared by all contexts.
        params: of the llama.cpp context.
        done: called with the context itself after each step that `start` has started.
    """

    def __init__(self, model: llama.LlamaModel, params: llama.LlamaContextParams, done: Callable[[Any], None]) -> None:
        self.llama_context = llama.LlamaContext(model, params)
        self.is_computing = False  # its thread computes a step, until `finish`
        self._num_threads: int = params.n_threads
        self._batch = llama.LlamaBatch(n_tokens=params.n_batch, embd=0, n_seq_max=1)
        self._result: Result | Exception
        self._done = done
        self._orders: queue.SimpleQueue[int] = queue.SimpleQueue()  # numbers of threads; 0: the end
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _compute(self) -> Result:
        """Compute the prepared step."""

    def compute(self, num_threads: int) -> None:
        """Compute the prepared step; `finish` returns its result."""
        try:
            if self._num_threads != num_threads:
                self.llama_context.set_n_threads(num_threads, num_threads)
                self._num_threads = num_threads
            self._result = self._compute()
        except Exception as exc:
            self._result = exc

    def start(self, num_threads: int) -> None:
        """Compute the prepared step in the context's own thread; return at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="context", daemon=True)
            self._thread.start()
        self.is_computing = True
        self._orders.put(num_threads)

    def finish(self) -> Result:
        """Return the result of the computed step.

        Raises:
            RuntimeError, ValueError: llama.cpp failed, or refused the batch.
        """
        self.is_computing = False
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def close(self) -> None:
        """Free the context, which must not be computing."""
        if self._thread is not None:
            self._orders.put(0)
            self._thread.join()
        self._batch.close()
        self.llama_context.close()

    def _run(self) -> None:
        while num_threads := self._orders.get():
            self.compute(num_threads)
            self._done(self)


def let_finish[C: StepContext[Any] | None](
    contexts: Sequence[StepContext[Any]], computed: queue.SimpleQueue[C]
) -> None:
    """Wait for the computing contexts, and drop their results."""
    while any(context.is_computing for context in contexts):
        if (context := computed.get()) is not None:
            with contextlib.suppress(RuntimeError, ValueError):
                context.finish()


class Context(StepContext[list[Chunk]]):
    """Schedules its sequences and computes their steps. Only `compute` may run in another thread.

    Args:
        model: see StepContext.
        params: of the llama.cpp context; `n_seq_max` is the number of slots.
        adapters: LoRA adapters of the model, by key; the mapping may grow.
        done: see StepContext.
        has_drafts: see Scheduler.
    """

    def __init__(
        self,
        model: llama.LlamaModel,
        params: llama.LlamaContextParams,
        adapters: Mapping[str, Any],
        done: Callable[[Context], None],
        *,
        has_drafts: bool = False,
    ) -> None:
        super().__init__(model, params, done)
        cache = SlotCache(self.llama_context)
        self.scheduler = Scheduler(params.n_seq_max, cache, max_step_tokens=MAX_STEP_TOKENS, has_drafts=has_drafts)
        self._num_slots: int = params.n_seq_max
        self._adapters = adapters
        self._adapter = ""  # the key of the applied adapter
        self._chunks: list[Chunk] = []

    @property
    def num_sequences(self) -> int:
        """The number of submitted sequences that are not freed."""
        return self.scheduler.num_running + self.scheduler.num_waiting

    @property
    def has_room(self) -> bool:
        """Whether one more sequence could run now."""
        return self.num_sequences < self._num_slots

    def prepare(self, held: Container[int]) -> bool:
        """Fill the next step's batch, without the held sequences; return whether there is anything to compute."""
        self._chunks = self.scheduler.next_step(held)
        self._batch.clear()
        for chunk in self._chunks:
            slot, last = [chunk.running.slot.index], len(chunk.token_ids) - 1
            has_all_logits = chunk.running.job.is_scored
            for offset, token_id in enumerate(chunk.token_ids):
                has_logits = has_all_logits or (chunk.is_sampled and offset >= last - chunk.num_drafted)
                self._batch.add(token_id, chunk.position + offset, slot, has_logits)
        return bool(self._chunks)

    def _compute(self) -> list[Chunk]:
        self._apply_adapter(self._chunks[0].running.job.adapter)
        started_s = time.perf_counter()
        self.llama_context.decode(self._batch)
        num_prompt_tokens = sum(len(each.token_ids) for each in self._chunks if each.running.is_in_prefill)
        self.scheduler.prefill_budget.record(num_prompt_tokens, time.perf_counter() - started_s)
        return self._chunks

    def _apply_adapter(self, name: str) -> None:
        """Apply an adapter to the next steps. llama.cpp applies one set of adapters to a whole batch."""
        if name != self._adapter:
            self.llama_context.set_adapters_lora([(self._adapters[name], 1.0)] if name else [])
            self._adapter = name


class SlotCache:
    """The KV cache of a context with `kv_unified` off: a slot is a llama.cpp sequence with its own part of it.

    Tokens are copied by `read` and `load` alone. `memory_seq_cp` only queues a copy until the next decode: until then,
    the target is read as zeros, and tokens that are loaded into it or its source are lost.
    """

    def __init__(self, context: llama.LlamaContext) -> None:
        self._context = context
        self._window: int = context.model.n_swa  # tokens that layers with a sliding window see; 0: no such layers

    def read(self, slot: int) -> bytes:
        """Return a copy of the slot's tokens."""
        state: bytes = self._context.get_state_seq_data(slot)
        return state

    def load(self, slot: int, state: bytes) -> None:
        """Replace the slot's tokens by a copy, of this context or one with as many slots."""
        self._context.memory_seq_rm(slot, -1, -1)
        self._context.set_state_seq_data(state, slot)

    def can_trim(self, slot: int, num_tokens: int, *, is_copied: bool) -> bool:
        """Whether `trim` can keep the first `num_tokens` tokens of a slot, or of its copy in another slot.

        A recurrent or hybrid model, like Mamba or Qwen3.5, has one state for all tokens: it is kept whole or not at
        all. With a sliding window, the next token needs those before it in the window, and a copy has no others.
        """
        first: int = self._context.memory_seq_pos_min(slot)
        last: int = self._context.memory_seq_pos_max(slot)
        if is_copied and self._window:
            first = max(first, last + 1 - self._window)
        first_needed = max(0, num_tokens + 1 - self._window) if self._window else 0
        return num_tokens > last or first <= first_needed

    def trim(self, slot: int, num_tokens: int) -> None:
        """Free all but the first tokens of a slot."""
        is_freed = self._context.memory_seq_rm(slot, num_tokens, -1)
        assert is_freed, f"slot {slot} does not keep {num_tokens} tokens"

    def clear(self) -> None:
        """Free the tokens of all slots, and overwrite their numbers with zeros."""
        self._context.kv_cache_clear(clear_data=True)
