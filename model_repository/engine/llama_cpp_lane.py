"""One llama.cpp context with its slots: what computes a step, at once or in a thread of its own beside other lanes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from cyllama.llama import llama_cpp as llama

from model_repository.engine.scheduler import Chunk, Scheduler

MAX_STEP_TOKENS = 512


class Lane:
    """Schedules the sequences that it was given and computes their steps. Only `compute` runs in another thread.

    Args:
        model: the weights, which all lanes share.
        params: of its context; `n_seq_max` is the number of its slots.
        adapters: LoRA adapters of the model, by the keys that jobs have; there may be more of them later.
        done: gets the lane itself each time that a step it has started is computed.
    """

    def __init__(
        self,
        model: llama.LlamaModel,
        params: llama.LlamaContextParams,
        adapters: Mapping[str, Any],
        done: queue.SimpleQueue[Lane],
    ) -> None:
        self.context = llama.LlamaContext(model, params)
        self.scheduler = Scheduler(params.n_seq_max, _Cells(self.context), max_step_tokens=MAX_STEP_TOKENS)
        self.is_computing = False  # in its thread; until `finish`
        self._num_slots: int = params.n_seq_max
        self._num_threads: int = params.n_threads
        self._adapters = adapters
        self._adapter = ""  # set in the context
        self._batch = llama.LlamaBatch(n_tokens=MAX_STEP_TOKENS, embd=0, n_seq_max=1)
        self._chunks: list[Chunk] = []
        self._error: Exception | None = None
        self._done = done
        self._orders: queue.SimpleQueue[int] = queue.SimpleQueue()  # with how many threads to compute; 0: the end
        self._thread: threading.Thread | None = None

    @property
    def num_sequences(self) -> int:
        """How many sequences it was given and has not freed."""
        return self.scheduler.num_running + self.scheduler.num_waiting

    @property
    def has_room(self) -> bool:
        """Whether it could run one more now."""
        return self.num_sequences < self._num_slots

    def prepare(self) -> bool:
        """Fill the next step's batch; return whether there is anything to compute."""
        self._chunks = self.scheduler.next_step()
        self._batch.clear()
        for chunk in self._chunks:
            slot, last = [chunk.running.slot.index], len(chunk.token_ids) - 1
            has_all_logits = chunk.running.job.is_scored
            for offset, token_id in enumerate(chunk.token_ids):
                has_logits = has_all_logits or (chunk.is_sampled and offset == last)
                self._batch.add(token_id, chunk.position + offset, slot, has_logits)
        return bool(self._chunks)

    def compute(self, num_threads: int) -> None:
        """Compute what is prepared; `finish` says how it went."""
        try:
            if self._num_threads != num_threads:
                self.context.set_n_threads(num_threads, num_threads)
                self._num_threads = num_threads
            self._apply_adapter(self._chunks[0].running.job.adapter)
            started_s = time.perf_counter()
            self.context.decode(self._batch)
            num_prompt_tokens = sum(len(each.token_ids) for each in self._chunks if each.running.is_in_prefill)
            self.scheduler.pace.took(num_prompt_tokens, time.perf_counter() - started_s)
        except Exception as exc:
            self._error = exc

    def start(self, num_threads: int) -> None:
        """Compute what is prepared in a thread of the lane's own, and return at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lane", daemon=True)
            self._thread.start()
        self.is_computing = True
        self._orders.put(num_threads)

    def finish(self) -> list[Chunk]:
        """Return what was computed.

        Raises:
            RuntimeError: llama.cpp failed.
            ValueError: it did not take the batch.
        """
        self.is_computing = False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._chunks

    def close(self) -> None:
        """Free the context. It must not be computing."""
        if self._thread is not None:
            self._orders.put(0)
            self._thread.join()
        self._batch.close()
        self.context.close()

    def _run(self) -> None:
        while num_threads := self._orders.get():
            self.compute(num_threads)
            self._done.put(self)

    def _apply_adapter(self, name: str) -> None:
        """Apply an adapter to what is computed from now on: llama.cpp knows only one set for a whole batch."""
        if name != self._adapter:
            self.context.set_adapters_lora([(self._adapters[name], 1.0)] if name else [])
            self._adapter = name


class _Cells:
    """The KV cache of a context with `kv_unified` off: a slot is a llama.cpp sequence with cells of its own."""

    def __init__(self, context: llama.LlamaContext) -> None:
        self._context = context

    def copy(self, source: int, target: int) -> None:
        """Replace the target's cells. Only whole sequences can be copied: a part of one aborts the process."""
        self._context.memory_seq_rm(target, -1, -1)
        self._context.memory_seq_cp(source, target, -1, -1)

    def trim(self, slot: int, num_tokens: int) -> None:
        """Free the cells behind the first `num_tokens`."""
        self._context.memory_seq_rm(slot, num_tokens, -1)
