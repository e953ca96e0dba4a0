"""The embedded CPU runtime: llama.cpp with true in-flight batching, by cyllama's batch, decode and sampler calls."""

from __future__ import annotations

import os

# How often OpenMP's threads look for work before they sleep, read as the library loads. They wait for each other a
# hundred times in a step, for microseconds: asleep they would take longer to wake up than to compute. So many looks
# are half a millisecond at most; thirty times as many, as is usual, take the cores from Triton and the frontend.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import contextlib
import functools
import queue
import time
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from cyllama.llama import llama_cpp as llama

from model_repository.contract.output import DrawnLogprob
from model_repository.contract.request import EngineRequest
from model_repository.cores import num_physical_cores
from model_repository.engine.adapter_folder import Adapter
from model_repository.engine.allowed_tokens import AllowedTokenIds
from model_repository.engine.bad_words import BadWords, TokenIndex
from model_repository.engine.constraint import ConstraintCompiler
from model_repository.engine.llama_cpp_adapters import LlamaCppAdapters
from model_repository.engine.llama_cpp_lane import MAX_STEP_TOKENS, Lane
from model_repository.engine.llama_cpp_sampler import TokenSampler
from model_repository.engine.logprobs import token_logprob
from model_repository.engine.request_checks import check_request
from model_repository.engine.runtime import EngineConfig, RuntimeStats, StepOutput
from model_repository.engine.scheduler import Chunk, Job
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.engine.turns import turn_s
from model_repository.errors import EngineFailed, InvalidRequest, StageError

# A model of up to this size stays in the cores' caches: each core computes a batch of its own as fast as it can. Of a
# larger one the weights come from memory, and all cores must use them while they are there.
MAX_LANES_WEIGHTS_BYTES = 64 << 20
_GGML_TYPE_F32 = 0  # ggml.h: enum ggml_type
_FLASH_ATTN_DISABLED = 0  # llama.h: enum llama_flash_attn_type


@dataclass(slots=True)
class _Sequence:
    """What the runtime keeps of a request beside its cells."""

    request: EngineRequest
    sampler: TokenSampler
    lane: Lane | None = None  # None: it waits for one
    prompt_logprobs: list[DrawnLogprob] = field(default_factory=list)  # of an echo, so far


class LlamaCppRuntime:
    """Runs sequences on lanes: llama.cpp contexts of `context_window` cells for each sequence that runs in them.

    A small model has a lane for each thread, since the threads of one lane wait for each other a hundred times in a
    step: beside other processes they wait longer than they compute. A lane that has work alone gets all threads.

    Args:
        config: which model to load, and how.
        byte_table: the bytes of each token id, for constraints.

    Raises:
        EngineFailed: the model or an adapter does not load.
    """

    def __init__(self, config: EngineConfig, byte_table: Sequence[bytes]) -> None:
        path = min(config.artifact_dir.glob("model*.gguf"), default=config.artifact_dir / "model.gguf")
        self._num_threads = config.num_threads or num_physical_cores()
        num_slots_of_lanes = _share_out(config.max_sequences, _num_lanes(config, self._num_threads))
        self._computed: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._lanes: list[Lane] = []
        self._adapters = LlamaCppAdapters(config)
        llama.disable_logging()
        llama.ggml_backend_load_all()
        try:
            self._model = llama.LlamaModel(str(path), llama.LlamaModelParams())
            for num_slots in num_slots_of_lanes:
                params = _context_params(config, num_slots, self._num_threads)
                self._lanes.append(Lane(self._model, params, self._adapters.weights, self._computed))
            for name, path in config.adapters.items():
                self._adapters.add(self._model, name, Adapter.of_artifact(path))
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise EngineFailed(f"{path}: llama.cpp does not load it: {exc}") from exc
        self._config = config
        self._vocab_size = self._model.get_vocab().n_vocab
        self._constraints = ConstraintCompiler(byte_table, config.eos_token_ids, self._vocab_size)
        self._byte_table = byte_table
        self._sequences: dict[int, _Sequence] = {}
        self._waiting: list[Job] = []  # for a place in a lane, by their turns

    def prepare(self, request: EngineRequest) -> TokenConstraint | None:
        """Compile what a completion must look like, and not contain; from any thread.

        Raises:
            StageError: the guide is malformed, or there is no room for it.
        """
        params, output = request.params, request.structured_output
        constraint: TokenConstraint | None = None
        if output is not None:
            constraint = self._constraints.start(output, params.sender, request.grammar_bytes)
        if params.bad_words:
            constraint = BadWords(params.bad_words, self._token_index, constraint)
        if params.allowed_token_ids:
            constraint = AllowedTokenIds(params.allowed_token_ids, self._vocab_size, constraint)
        return constraint

    def submit(self, sequence: int, request: EngineRequest, constraint: TokenConstraint | None = None) -> None:
        """Queue a request; without a constraint it is prepared here.

        Raises:
            InvalidRequest: the model has no such token or adapter.
        """
        check_request(request, self._vocab_size, self._adapters.by_name)
        if constraint is None:
            constraint = self.prepare(request)
        sampler = TokenSampler(
            request,
            vocab_size=self._vocab_size,
            context_window=self._config.context_window,
            eos_token_ids=self._config.eos_token_ids,
            constraint=constraint,
        )
        self._sequences[sequence] = _Sequence(request, sampler)
        is_scored = bool(request.echo) and request.params.num_logprobs is not None
        # By its weights, not its name: what is loaded under a name later must not find the cells of what was before.
        adapter = self._adapters.key_of(request.params.lora_name)
        job = Job(sequence, request.prompt_token_ids, adapter, is_scored, turn_s(request, time.monotonic()))
        insort(self._waiting, job, key=lambda item: item.turn_s)

    @functools.cached_property
    def _token_index(self) -> TokenIndex:
        """Made for the first request with bad words: most models never see one."""
        return TokenIndex(self._byte_table, self._vocab_size)

    def free(self, sequence: int) -> None:
        """Forget a sequence; its slot is free for the lane's next step."""
        freed = self._sequences.pop(sequence, None)
        if freed is None or freed.lane is None:
            self._waiting = [job for job in self._waiting if job.sequence != sequence]
        else:
            freed.lane.scheduler.free(sequence)

    def step(self) -> Sequence[StepOutput]:
        """Let every lane compute, and return what the first one that is ready has brought.

        A lane's step is a token of each of its decoding sequences, and pieces of prompts beside them, under one
        adapter.

        Raises:
            EngineFailed: llama.cpp failed; every sequence is lost.
        """
        self._assign()
        lane = self._next_computed()
        if lane is None:
            return []
        try:
            return self._outputs(lane, lane.finish())
        except (RuntimeError, ValueError) as exc:
            self._forget_all()
            raise EngineFailed(f"llama.cpp failed in a step: {exc}") from exc

    def _assign(self) -> None:
        """Give each waiting sequence to a lane that has room: the idlest, of these the one that has most of its prompt.

        A lane that is alone gets all: it knows better who can pass whom.
        """
        while self._waiting:
            job = self._waiting[0]
            lanes = [lane for lane in self._lanes if lane.has_room or len(self._lanes) == 1]
            if not lanes:
                return
            lane = min(lanes, key=lambda lane: (lane.num_sequences, -lane.scheduler.num_reusable(job)))
            lane.scheduler.submit(job)
            self._sequences[job.sequence].lane = lane
            del self._waiting[0]

    def _next_computed(self) -> Lane | None:
        """Start the lanes that are idle and have work; wait for the first one, or compute it here if it is the only."""
        computing = [lane for lane in self._lanes if lane.is_computing]
        prepared = [lane for lane in self._lanes if not lane.is_computing and lane.prepare()]
        num_busy = len(computing) + len(prepared)
        if num_busy == 0:
            return None
        if not computing and len(prepared) == 1:
            prepared[0].compute(self._num_threads)
            return prepared[0]
        for lane in prepared:
            lane.start(max(1, self._num_threads // num_busy))
        return self._computed.get()

    def _outputs(self, lane: Lane, chunks: Sequence[Chunk]) -> list[StepOutput]:
        outputs, num_rows = [], 0
        for chunk in chunks:
            running, first_row = chunk.running, num_rows
            num_rows += len(chunk.token_ids)
            next_token_id: int | None = None
            if running.job.sequence in self._sequences:  # not freed meanwhile
                if running.job.is_scored and running.is_in_prefill:
                    self._score(lane.context, chunk, first_row)
                if chunk.is_sampled:
                    output = self._draw(lane.context, chunk, num_rows - 1)
                    next_token_id = output.token_id
                    outputs.append(output)
            lane.scheduler.record(chunk, next_token_id)
        return outputs

    def _forget_all(self) -> None:
        self._sequences.clear()
        self._waiting.clear()
        self._let_finish()
        for lane in self._lanes:
            lane.scheduler.forget_all()

    def _let_finish(self) -> None:
        """Wait for the lanes that are computing; nobody wants what they bring."""
        while any(lane.is_computing for lane in self._lanes):
            with contextlib.suppress(RuntimeError, ValueError):
                self._computed.get().finish()

    def _score(self, context: llama.LlamaContext, chunk: Chunk, first_row: int) -> None:
        """Note the log probabilities of the prompt tokens that follow those of the chunk."""
        sequence = self._sequences[chunk.running.job.sequence]
        scores = sequence.prompt_logprobs
        if not scores:
            scores.append(DrawnLogprob(None))  # nothing precedes the first token
        begin = chunk.position + 1
        following = sequence.request.prompt_token_ids[begin : begin + len(chunk.token_ids)]
        for row, token_id in enumerate(following, first_row):
            scores.append(_logprob(context, row, token_id, sequence.request))

    def _draw(self, context: llama.LlamaContext, chunk: Chunk, row: int) -> StepOutput:
        """Draw the next token of a chunk's sequence; what fails here fails this sequence only."""
        running = chunk.running
        number, sequence = running.job.sequence, self._sequences[running.job.sequence]
        token_id: int | None = None
        logprob: DrawnLogprob | None = None
        if sequence.request.max_tokens:
            try:
                token_id = sequence.sampler.draw(context, row)
            except StageError as error:
                return StepOutput(number, error=error)
            if sequence.request.params.num_logprobs is not None:
                logprob = _logprob(context, row, token_id, sequence.request)
        return StepOutput(
            number,
            token_id,
            running.num_cached_tokens,
            logprob,
            tuple(sequence.prompt_logprobs) if running.is_in_prefill else (),
            scheduled_s=running.scheduled_s,
        )

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        """Load an adapter from a file, or take the weights that are still there from the last time.

        Raises:
            InvalidRequest: it does not fit the model, or too many were loaded since that was.
        """
        self._adapters.check_room(adapter)
        self._let_lanes_rest()
        try:
            self._adapters.add(self._model, name, adapter)
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise InvalidRequest(f"{adapter.source!r}: llama.cpp does not load it: {exc}", "source") from exc

    def unload_adapter(self, name: str) -> None:
        """Offer an adapter no more; llama.cpp keeps its weights as long as the model."""
        self._adapters.remove(name)

    def _let_lanes_rest(self) -> None:
        """Wait for the lanes that are computing, which read the model's list of adapters; the next steps take it up."""
        for lane in [self._computed.get() for lane in self._lanes if lane.is_computing]:
            self._computed.put(lane)

    def wake(self) -> None:
        """Do nothing: a step computes, it does not wait."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence is queued or running."""
        return bool(self._sequences)

    def stats(self) -> RuntimeStats:
        """Return what it holds."""
        schedulers = [lane.scheduler for lane in self._lanes]
        return RuntimeStats(
            num_active=sum(each.num_running for each in schedulers),
            num_waiting=sum(each.num_waiting for each in schedulers) + len(self._waiting),
            num_cells_used=sum(each.num_cells_used for each in schedulers),
            num_cells=self._config.context_window * self._config.max_sequences,
            adapters=dict(self._adapters.by_name),
            adapter_bytes=self._adapters.num_bytes,
        )

    def close(self) -> None:
        """Free the lanes, then the model and with it the adapters."""
        self._sequences.clear()
        self._let_finish()
        for lane in self._lanes:
            lane.close()
        self._model.close()


def _num_lanes(config: EngineConfig, num_threads: int) -> int:
    """Return how many lanes there shall be, by the model's size if its options do not say it.

    Raises:
        EngineFailed: they say it wrongly.
    """
    given = config.options.get("lanes")
    if given is None:
        weights_bytes = sum(path.stat().st_size for path in config.artifact_dir.glob("*.gguf"))
        return min(num_threads, config.max_sequences) if weights_bytes <= MAX_LANES_WEIGHTS_BYTES else 1
    if not given.isdecimal() or not 1 <= int(given) <= config.max_sequences:
        raise EngineFailed(
            f"option lanes={given}: expected a whole number from 1 to {config.max_sequences}, the sequences"
        )
    return int(given)


def _share_out(count: int, num_parts: int) -> list[int]:
    """Return parts that differ by one at most and add up."""
    return [(count + part) // num_parts for part in range(num_parts)]


def _context_params(config: EngineConfig, num_slots: int, num_threads: int) -> llama.LlamaContextParams:
    params = llama.LlamaContextParams()
    params.n_ctx = config.context_window * num_slots
    params.n_seq_max = num_slots
    params.n_batch = params.n_ubatch = MAX_STEP_TOKENS
    params.n_threads = params.n_threads_batch = num_threads
    params.kv_unified = False  # a shared pool makes every sequence attend over all cells in use
    params.no_perf = True
    if config.precision == "f32":
        # Flash attention sums in f16, whatever the cache holds: a text would depend on what it was batched with.
        params.type_k = params.type_v = _GGML_TYPE_F32
        params.flash_attn_type = _FLASH_ATTN_DISABLED
    return params


def _logprob(context: llama.LlamaContext, row: int, token_id: int, request: EngineRequest) -> DrawnLogprob:
    return token_logprob(context.get_logits_ith(row), token_id, request.params.num_logprobs or 0)
