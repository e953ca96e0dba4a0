"""The embedded CPU runtime: llama.cpp with true in-flight batching, by cyllama's batch, decode and sampler calls."""

from __future__ import annotations

import os

# How often OpenMP's threads look for work before they sleep, read as the library loads. They wait for each other a
# hundred times in a step, for microseconds: asleep they would take longer to wake up than to compute. So many looks
# are half a millisecond at most; thirty times as many, as is usual, take the cores from Triton and the frontend.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from collections.abc import Sequence
from dataclasses import dataclass, field

from cyllama.llama import llama_cpp as llama

from model_repository.cores import num_physical_cores
from model_repository.engine.constraint import ConstraintCompiler
from model_repository.engine.llama_cpp_sampler import TokenSampler
from model_repository.engine.logprobs import token_logprob
from model_repository.engine.request_checks import check_request
from model_repository.engine.runtime import EngineConfig, RuntimeStats, StepOutput
from model_repository.engine.scheduler import Chunk, Job, Scheduler
from model_repository.errors import EngineFailed, StageError
from model_repository.stage_messages import DrawnLogprob, EngineRequest

MAX_STEP_TOKENS = 512
_GGML_TYPE_F32 = 0  # ggml.h: enum ggml_type
_FLASH_ATTN_DISABLED = 0  # llama.h: enum llama_flash_attn_type


@dataclass(slots=True)
class _Sequence:
    """What the runtime keeps of a request beside its cells."""

    request: EngineRequest
    sampler: TokenSampler
    prompt_logprobs: list[DrawnLogprob] = field(default_factory=list)  # of an echo, so far


class LlamaCppRuntime:
    """Owns a llama.cpp context: one slot of `context_window` cells for each of `max_sequences` sequences.

    Args:
        config: which model to load, and how.
        byte_table: the bytes of each token id, for constraints.

    Raises:
        EngineFailed: the model or an adapter does not load.
    """

    def __init__(self, config: EngineConfig, byte_table: Sequence[bytes]) -> None:
        path = min(config.artifact_dir.glob("model*.gguf"), default=config.artifact_dir / "model.gguf")
        llama.disable_logging()
        llama.ggml_backend_load_all()
        try:
            self._model = llama.LlamaModel(str(path), llama.LlamaModelParams())
            self._context = llama.LlamaContext(self._model, _context_params(config))
            self._adapters = {}
            for name, path in config.adapters.items():
                self._adapters[name] = self._model.lora_adapter_init(str(path))
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise EngineFailed(f"{path}: llama.cpp does not load it: {exc}") from exc
        self._config = config
        self._num_cells = config.context_window * config.max_sequences
        self._vocab_size = self._model.get_vocab().n_vocab
        self._batch = llama.LlamaBatch(n_tokens=MAX_STEP_TOKENS, embd=0, n_seq_max=1)
        self._adapter = ""  # set in the context
        self._constraints = ConstraintCompiler(byte_table, config.eos_token_ids, self._vocab_size)
        self._scheduler = Scheduler(config.max_sequences, _Cells(self._context), max_step_tokens=MAX_STEP_TOKENS)
        self._sequences: dict[int, _Sequence] = {}

    def submit(self, sequence: int, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: the model has no such token or adapter, or the guide is none.
        """
        check_request(request, self._vocab_size, self._adapters)
        constraint = None if request.guide is None else self._constraints.start(request.guide)
        sampler = TokenSampler(
            request,
            vocab_size=self._vocab_size,
            context_window=self._config.context_window,
            eos_token_ids=self._config.eos_token_ids,
            constraint=constraint,
        )
        self._sequences[sequence] = _Sequence(request, sampler)
        is_scored = bool(request.echo) and request.num_logprobs is not None
        self._scheduler.submit(Job(sequence, request.prompt_token_ids, request.lora_name, is_scored))

    def free(self, sequence: int) -> None:
        """Forget a sequence; its slot is free for the next step."""
        self._sequences.pop(sequence, None)
        self._scheduler.free(sequence)

    def step(self) -> Sequence[StepOutput]:
        """Run one batch: a token of every decoding sequence, and pieces of prompts beside them, under one adapter.

        Raises:
            EngineFailed: llama.cpp failed; every sequence is lost.
        """
        chunks = self._scheduler.next_step()
        try:
            return self._compute(chunks)
        except (RuntimeError, ValueError) as exc:
            self._sequences.clear()
            self._scheduler.forget_all()
            raise EngineFailed(f"llama.cpp failed in a step of {len(chunks)} sequences: {exc}") from exc

    def _compute(self, chunks: Sequence[Chunk]) -> list[StepOutput]:
        if not chunks:
            return []
        self._batch.clear()
        for chunk in chunks:
            slot, last = [chunk.running.slot.index], len(chunk.token_ids) - 1
            has_all_logits = chunk.running.job.is_scored
            for offset, token_id in enumerate(chunk.token_ids):
                has_logits = has_all_logits or (chunk.is_sampled and offset == last)
                self._batch.add(token_id, chunk.position + offset, slot, has_logits)
        self._apply_adapter(chunks[0].running.job.adapter)
        self._context.decode(self._batch)
        outputs, num_rows = [], 0
        for chunk in chunks:
            running, first_row = chunk.running, num_rows
            num_rows += len(chunk.token_ids)
            if running.job.is_scored and running.is_in_prefill:
                self._score(chunk, first_row)
            next_token_id: int | None = None
            if chunk.is_sampled:
                output = self._draw(chunk, num_rows - 1)
                next_token_id = output.token_id
                outputs.append(output)
            self._scheduler.record(chunk, next_token_id)
        return outputs

    def _apply_adapter(self, name: str) -> None:
        """Apply an adapter to what is computed from now on: llama.cpp knows only one set for a whole batch."""
        if name != self._adapter:
            self._context.set_adapters_lora([(self._adapters[name], 1.0)] if name else [])
            self._adapter = name

    def _score(self, chunk: Chunk, first_row: int) -> None:
        """Note the log probabilities of the prompt tokens that follow those of the chunk."""
        sequence = self._sequences[chunk.running.job.sequence]
        scores = sequence.prompt_logprobs
        if not scores:
            scores.append(DrawnLogprob(None))  # nothing precedes the first token
        begin = chunk.position + 1
        following = sequence.request.prompt_token_ids[begin : begin + len(chunk.token_ids)]
        for row, token_id in enumerate(following, first_row):
            scores.append(self._logprob(row, token_id, sequence.request))

    def _draw(self, chunk: Chunk, row: int) -> StepOutput:
        """Draw the next token of a chunk's sequence; what fails here fails this sequence only."""
        running = chunk.running
        number, sequence = running.job.sequence, self._sequences[running.job.sequence]
        token_id: int | None = None
        logprob: DrawnLogprob | None = None
        if sequence.request.max_tokens:
            try:
                token_id = sequence.sampler.draw(self._context, row)
            except StageError as error:
                return StepOutput(number, error=error)
            if sequence.request.num_logprobs is not None:
                logprob = self._logprob(row, token_id, sequence.request)
        return StepOutput(
            number,
            token_id,
            running.num_cached_tokens,
            logprob,
            tuple(sequence.prompt_logprobs) if running.is_in_prefill else (),
            scheduled_s=running.scheduled_s,
        )

    def _logprob(self, row: int, token_id: int, request: EngineRequest) -> DrawnLogprob:
        return token_logprob(self._context.get_logits_ith(row), token_id, request.num_logprobs or 0)

    def wake(self) -> None:
        """Do nothing: a step computes, it does not wait."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence is queued or running."""
        return bool(self._scheduler.num_running or self._scheduler.num_waiting)

    def stats(self) -> RuntimeStats:
        """Return what it holds."""
        return RuntimeStats(
            num_active=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_cells_used=self._scheduler.num_cells_used,
            num_cells=self._num_cells,
        )

    def close(self) -> None:
        """Free the context, then the model and with it the adapters."""
        self._sequences.clear()
        self._batch.close()
        self._context.close()
        self._model.close()


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


def _context_params(config: EngineConfig) -> llama.LlamaContextParams:
    num_threads = config.num_threads or num_physical_cores()
    params = llama.LlamaContextParams()
    params.n_ctx = config.context_window * config.max_sequences
    params.n_seq_max = config.max_sequences
    params.n_batch = params.n_ubatch = MAX_STEP_TOKENS
    params.n_threads = params.n_threads_batch = num_threads
    params.kv_unified = False  # a shared pool makes every sequence attend over all cells in use
    params.no_perf = True
    if config.precision == "f32":
        # Flash attention sums in f16, whatever the cache holds: a text would depend on what it was batched with.
        params.type_k = params.type_v = _GGML_TYPE_F32
        params.flash_attn_type = _FLASH_ATTN_DISABLED
    return params
