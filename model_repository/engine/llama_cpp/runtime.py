"""The embedded CPU runtime: llama.cpp with true in-flight batching, by cyllama's batch, decode and sampler calls."""

from __future__ import annotations

import contextlib
import functools
import queue
import time
from bisect import insort
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from model_repository.contract.output import DrawnLogprob
from model_repository.contract.request import EngineRequest
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.bad_words import TokenIndex
from model_repository.engine.constraint import Constraint, ConstraintCompiler
from model_repository.engine.grammar_budget import GrammarBudget
from model_repository.engine.llama_cpp.adapters import LlamaCppAdapters
from model_repository.engine.llama_cpp.context import (
    Context,
    context_params,
    let_finish,
    model_path,
    warm_up,
)
from model_repository.engine.llama_cpp.context_count import num_contexts, num_threads_of
from model_repository.engine.llama_cpp.devices import DeviceStates
from model_repository.engine.llama_cpp.image_prompts import ImagePrompts
from model_repository.engine.llama_cpp.library import llama
from model_repository.engine.llama_cpp.sampler import TokenSampler
from model_repository.engine.llama_cpp.weights import load_weights
from model_repository.engine.logprobs import token_logprob
from model_repository.engine.masks import MAX_WAIT_S, Computing, MaskThreads
from model_repository.engine.queue_order import queue_order_s
from model_repository.engine.request_checks import check_request, combined_constraint, replayed
from model_repository.engine.runtime import EngineConfig, ImageCounts, Prepared, Runtime, RuntimeStats, StepOutput
from model_repository.engine.scheduler import Chunk, Job
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import EngineFailed, InvalidRequest, StageError, Unsupported
from model_repository.runtimes import PROJECTOR

# Fewer logits, of all sequences of a step, are drawn from in less time than threads need to start.
MIN_LOGITS_OF_THREADS = 1 << 16
_SEQUENCE_TOKENS = 64  # of a prompt, which a sequence in the same context costs
_MAX_IDLE_S = 0.05  # at most this long, all sequences wait for their masks unseen by the engine


@dataclass(slots=True)
class _Sequence:
    """A request's state in the runtime, besides its KV cache."""

    request: EngineRequest
    sampler: TokenSampler
    context: Context | None = None  # None: it waits for a context
    mask_s: float = 0.0  # processor time of its last mask
    computing: Computing | None = None  # a thread computes its next mask; until then it takes part in no step
    prompt_logprobs: list[DrawnLogprob] = field(default_factory=list)  # so far

    @property
    def sender(self) -> str:
        return self.request.params.sender

    def compute_mask(self) -> None:
        """Compute the mask of the next token; from any thread."""
        self.sampler.compute_mask()


class LlamaCppRuntime(Runtime):
    """Runs sequences in llama.cpp contexts; each slot of a context holds up to `context_window` tokens.

    A small model has a context for each thread: threads of one context wait for each other a hundred times in a step,
    and beside other processes they wait longer than they compute. A context that is busy alone gets all threads.

    Raises:
        EngineFailed: the model or an adapter does not load.
    """

    def __init__(self, config: EngineConfig, byte_table: Sequence[bytes]) -> None:
        path, self._num_threads = model_path(config), num_threads_of(config)
        num_slots_of_contexts = _share_out(config.max_sequences, num_contexts(config))
        self._images: ImagePrompts | None = None
        self._image_counts = ImageCounts()
        projector = config.artifact_dir / PROJECTOR
        if projector.exists():  # llama.cpp's threads start later: they do not survive a fork
            num_slots = max(num_slots_of_contexts)  # a KV cache moves between contexts with as many slots
            num_slots_of_contexts = [num_slots] * len(num_slots_of_contexts)
            # As many as a busy context has: with all threads, 8 clients of images got 24 answers a second, not 55.
            num_threads = max(1, self._num_threads // len(num_slots_of_contexts))
            params = functools.partial(_context_params, config, num_slots, num_threads)
            self._images = ImagePrompts(path, projector, params, config)
        self._computed: queue.SimpleQueue[Context | None] = queue.SimpleQueue()  # None: a message or masks have come
        self._is_waiting = False  # for messages and masks: no context has anything to compute
        self._contexts: list[Context] = []
        self._adapters = LlamaCppAdapters(config)
        try:
            self._model = load_weights(path, config)
            for num_slots in num_slots_of_contexts:
                context_params = _context_params(config, num_slots, self._num_threads)
                weights, has_drafts = self._adapters.weights, config.speculative is not None
                self._contexts.append(
                    Context(self._model, context_params, weights, self._computed.put, has_drafts=has_drafts)
                )
                if config.gpu_layers:
                    warm_up(self._contexts[-1].llama_context, num_slots, config.context_window)
            for name in config.adapters:
                path = config.artifact_dir / config.adapters[name]
                self._adapters.add(self._model, name, Adapter.of_artifact(path))
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise EngineFailed(f"{path}: llama.cpp does not load it: {exc}") from exc
        self._config = config
        self._failure: EngineFailed | None = None  # of a device, which computes no more
        self._devices = DeviceStates(config.devices)
        self._vocab_size = self._model.get_vocab().n_vocab
        self._constraints = ConstraintCompiler(byte_table, config.eos_token_ids, self._vocab_size, GrammarBudget())
        self._byte_table = byte_table
        self._sequences: dict[int, _Sequence] = {}
        self._waiting: list[Job] = []  # jobs without a place in a context, sorted by queue order
        self._drawers = ThreadPoolExecutor(self._num_threads, "draw")
        self._masks = MaskThreads(lambda: self._computed.put(None))

    def prepare(self, request: EngineRequest) -> Prepared:
        if request.images and self._images is None:
            raise Unsupported("this model reads no images", "images")
        self._check(request, has_images=bool(request.images))
        constraint, prompt = self._constraint(request), None
        if self._images is not None and request.images:
            adapter = self._adapters.by_name.get(request.params.lora_name)
            try:
                request, prompt, counts = self._images.compute(request, adapter)
            except EngineFailed as error:
                if self._config.gpu_layers:
                    self._failure = error
                raise
            self._image_counts = self._image_counts.plus(counts)
        return Prepared(request, constraint, prompt)

    def _check(self, request: EngineRequest, has_images: bool) -> None:
        check_request(request, self._vocab_size, self._adapters.by_name, has_images=has_images)

    def _constraint(self, request: EngineRequest) -> TokenConstraint | None:
        started: Constraint | None = None
        if request.grammar:
            owner = request.params.cache_salt or request.params.sender
            started = self._constraints.start(request.grammar, owner, request.grammar_bytes)
            started.allowed()  # the first mask, in the thread that compiles
        constraint = combined_constraint(request, started, lambda: self._token_index, self._vocab_size)
        return replayed(constraint, request)

    def submit(self, sequence: int, request: EngineRequest, prepared: Prepared | None = None) -> None:
        """Queue a request; if it is not prepared, its constraints are compiled here."""
        if self._failure is not None:
            raise self._failure
        self._check(request, has_images=prepared is not None and prepared.prompt is not None)
        prepared = prepared or Prepared(request, self._constraint(request))
        sampler = TokenSampler(
            request,
            vocab_size=self._vocab_size,
            context_window=self._config.context_window,
            eos_token_ids=self._config.eos_token_ids,
            constraint=prepared.constraint,
        )
        self._sequences[sequence] = _Sequence(request, sampler)
        is_scored = request.num_scored_logprobs is not None
        # Keyed by weights, not name: a new adapter of the same name must not reuse the old one's KV tokens.
        adapter = self._adapters.key_of(request.params.lora_name)
        prompt = request.prompt_token_ids if prepared.prompt is None else prepared.prompt.token_ids
        job = Job(
            sequence,
            prompt + request.replayed_token_ids,
            adapter,
            request.params.cache_salt,
            is_scored,
            queue_order_s(request, time.monotonic()),
            prepared.prompt,
            request.max_tokens - len(request.replayed_token_ids),
            request.params.sender,
            request.params.marks,
            request.params.keep_s,
        )
        insort(self._waiting, job, key=lambda item: item.queue_order_s)

    @functools.cached_property
    def _token_index(self) -> TokenIndex:
        """Built for the first request with bad words, which most models never get."""
        return TokenIndex(self._byte_table, self._vocab_size)

    def free(self, sequence: int, *, is_reusable: bool = True) -> None:
        """Forget a sequence; its slot is free for the context's next step."""
        freed = self._sequences.pop(sequence, None)
        if freed is None or freed.context is None:
            self._waiting = [job for job in self._waiting if job.sequence != sequence]
        else:
            freed.context.scheduler.free(sequence, is_reusable=is_reusable)

    def step(self) -> Sequence[StepOutput]:
        """Let every context compute, and return the outputs of the first finished one.

        A context's step has one token of each decoding sequence, and pieces of prompts, under one adapter.
        """
        self._assign()
        try:
            context = self._next_computed()
            return [] if context is None else self._outputs(context, context.finish())
        except (RuntimeError, ValueError) as exc:
            failure = EngineFailed(f"llama.cpp failed in a step: {exc}")
            if self._config.gpu_layers:
                self._failure = failure
            self._forget_all()
            raise failure from exc

    def _assign(self) -> None:
        """Give each waiting sequence to the context with room in which it has the fewest tokens to compute.

        Each sequence there counts as some tokens.

        A single context gets all sequences: its own scheduler orders them better.
        """
        while self._waiting:
            job = self._waiting[0]
            contexts = [context for context in self._contexts if context.has_room or len(self._contexts) == 1]
            if not contexts:
                return
            context = min(
                contexts,
                key=lambda each: _SEQUENCE_TOKENS * each.num_sequences - each.scheduler.num_reusable(job),
            )
            context.scheduler.submit(job)
            self._sequences[job.sequence].context = context
            del self._waiting[0]

    def _next_computed(self) -> Context | None:
        """Start the idle contexts with work, and return the first to finish. A single busy context computes here.

        If all sequences wait for their masks, return None at a mask or a message, or after a moment.
        """
        while True:
            computing = [context for context in self._contexts if context.is_computing]
            while not computing and not self._computed.empty():
                self._computed.get()
            held = self._held()
            prepared = [context for context in self._contexts if not context.is_computing and context.prepare(held)]
            num_busy = len(computing) + len(prepared)
            if num_busy == 0:
                if held:
                    self._wait_for_masks()
                return None
            if not computing and len(prepared) == 1:
                prepared[0].compute(self._num_threads)
                return prepared[0]
            for context in prepared:
                context.start(max(1, self._num_threads // num_busy))
            if (computed := self._computed.get()) is not None:
                return computed

    def _held(self) -> set[int]:
        """Return the sequences without a mask. This waits up to MAX_WAIT_S for quick masks."""
        held, deadline_s = set(), time.monotonic() + MAX_WAIT_S
        for number, sequence in self._sequences.items():
            if sequence.computing is not None:
                if sequence.computing.is_done(deadline_s):
                    sequence.computing = None
                else:
                    held.add(number)
        return held

    def _wait_for_masks(self) -> None:
        self._is_waiting = True
        with contextlib.suppress(queue.Empty):
            self._computed.get(timeout=_MAX_IDLE_S)
        self._is_waiting = False

    def _outputs(self, context: Context, chunks: Sequence[Chunk]) -> list[StepOutput]:
        draws: list[tuple[Chunk, int]] = []  # with the row of the logits
        num_rows = 0
        for chunk in chunks:
            running, first_row = chunk.running, num_rows
            num_rows += len(chunk.token_ids)
            if running.job.sequence in self._sequences:  # else it was freed in the meantime
                if running.job.is_scored and running.is_in_prefill:
                    self._score(context.llama_context, chunk, first_row)
                if chunk.is_sampled:
                    draws.append((chunk, num_rows - 1 - chunk.num_drafted))
        drawn = self._draw_by_threads(context.llama_context, draws)
        behind = (self._sequences[number] for number in drawn)
        self._masks.compute(each for each in behind if each.computing is None and each.sampler.needs_mask)
        for chunk in chunks:
            outputs = drawn.get(chunk.running.job.sequence, [])
            context.scheduler.record(chunk, outputs[-1].token_id if outputs else None, max(0, len(outputs) - 1))
        return [output for outputs in drawn.values() for output in outputs]

    def _draw_by_threads(
        self, context: llama.LlamaContext, draws: Sequence[tuple[Chunk, int]]
    ) -> dict[int, list[StepOutput]]:
        """Draw the next tokens of several sequences, in several threads if that is faster; return them by sequence."""

        def draw(share: Sequence[tuple[Chunk, int]]) -> dict[int, list[StepOutput]]:
            return {chunk.running.job.sequence: self._draw_all(context, chunk, row) for chunk, row in share}

        num_shares = min(self._num_threads, len(draws))
        if num_shares < 2 or len(draws) * self._vocab_size < MIN_LOGITS_OF_THREADS:
            return draw(draws)
        context.sampled_token_ith(draws[0][1])  # the first access to a step's logits sorts their rows, in one thread
        shares = [draws[number::num_shares] for number in range(num_shares)]
        return {number: outputs for drawn in self._drawers.map(draw, shares) for number, outputs in drawn.items()}

    def _draw_all(self, context: llama.LlamaContext, chunk: Chunk, first_row: int) -> list[StepOutput]:
        """Draw a token after each drafted one that is drawn itself, as without drafts: each from the same logits.

        If the next mask is slow, the rest of the draft is dropped.
        """
        sequence, drawn = self._sequences[chunk.running.job.sequence], list[StepOutput]()
        drafted = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafted :]
        for row, drafted_id in enumerate((*drafted, None), first_row):
            drawn.append(self._draw(context, chunk, row))
            if drawn[-1].token_id != drafted_id:
                break
            if sequence.sampler.needs_mask:
                self._masks.compute([sequence])
                if sequence.computing is not None and not sequence.computing.is_done(time.monotonic() + MAX_WAIT_S):
                    break
                sequence.computing = None
        return drawn

    def _forget_all(self) -> None:
        self._sequences.clear()
        self._waiting.clear()
        let_finish(self._contexts, self._computed)
        if self._failure is None:  # a lost device cannot clear its memory
            for context in self._contexts:
                context.scheduler.forget_all()

    def _score(self, context: llama.LlamaContext, chunk: Chunk, first_row: int) -> None:
        """Record the log probabilities of the prompt tokens that follow the tokens of the chunk."""
        sequence = self._sequences[chunk.running.job.sequence]
        scores, num_top = sequence.prompt_logprobs, sequence.request.num_scored_logprobs or 0
        if not scores:
            scores.append(DrawnLogprob(None))  # the first token follows nothing
        begin = chunk.position + 1
        following = sequence.request.prompt_token_ids[begin : begin + len(chunk.token_ids)]
        for row, token_id in enumerate(following, first_row):
            scores.append(token_logprob(context.get_logits_ith(row), token_id, num_top, is_ranked=True))

    def _draw(self, context: llama.LlamaContext, chunk: Chunk, row: int) -> StepOutput:
        """Draw the next token of a chunk's sequence; an error here fails only this sequence."""
        running = chunk.running
        number, sequence = running.job.sequence, self._sequences[running.job.sequence]
        token_id: int | None = None
        logprob: DrawnLogprob | None = None
        if sequence.request.max_tokens:
            try:
                token_id = sequence.sampler.draw(context, row)
            except StageError as error:
                return StepOutput(number, error=error)
            if (num_top := sequence.request.params.num_logprobs) is not None:
                logprob = token_logprob(context.get_logits_ith(row), token_id, num_top)
        return StepOutput(
            number,
            token_id,
            running.num_cached_tokens,
            logprob,
            tuple(sequence.prompt_logprobs) if running.is_in_prefill else (),
            scheduled_s=running.scheduled_s,
        )

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        """Load an adapter from a file, or reuse its weights if they are still in memory.

        Raises:
            InvalidRequest: it does not fit the model, or too many were loaded since the model was loaded.
        """
        self._adapters.check_room(adapter)
        self._wait_for_contexts()
        try:
            self._adapters.add(self._model, name, adapter)
        except (OSError, RuntimeError, ValueError, MemoryError) as exc:
            raise InvalidRequest(f"{adapter.source!r}: llama.cpp does not load it: {exc}", "source") from exc

    def unload_adapter(self, name: str) -> None:
        """Offer an adapter no more; llama.cpp keeps its weights with the model."""
        self._adapters.remove(name)

    def _wait_for_contexts(self) -> None:
        """Wait for the computing contexts: they read the model's list of adapters."""
        num_computing = sum(context.is_computing for context in self._contexts)
        computed: list[Context] = []
        while len(computed) < num_computing:
            if (context := self._computed.get()) is not None:
                computed.append(context)
        for context in computed:
            self._computed.put(context)

    def wake(self) -> None:
        if self._is_waiting:
            self._computed.put(None)

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def stats(self) -> RuntimeStats:
        """Return the current state; each new request needs it.

        Raises:
            EngineFailed: a file of the weights, which are read from the disk as they are needed, was changed; or a
                device has failed.
        """
        if self._failure is not None:
            raise self._failure
        self._config.check_files()
        schedulers = [context.scheduler for context in self._contexts]
        return RuntimeStats(
            num_active=sum(each.num_running for each in schedulers),
            num_waiting=sum(each.num_waiting for each in schedulers) + len(self._waiting),
            num_kv_tokens_used=sum(each.num_kv_tokens_used for each in schedulers),
            max_kv_tokens=self._config.context_window * self._config.max_sequences,
            adapters=dict(self._adapters.by_name),
            adapter_bytes=self._adapters.num_bytes,
            images=self._image_counts,
            devices=self._devices.latest(),
            num_draft_tokens=sum(each.num_draft_tokens for each in schedulers),
            num_accepted_tokens=sum(each.num_accepted_tokens for each in schedulers),
        )

    def kept_marks(self) -> list[bytes]:
        return [marks for context in self._contexts for marks in context.scheduler.kept_marks()]

    def close(self) -> None:
        """Free the contexts, then the model with its adapters."""
        self._sequences.clear()
        let_finish(self._contexts, self._computed)
        self._drawers.shutdown()
        self._masks.close()
        for context in self._contexts:
            context.close()
        self._model.close()
        if self._images is not None:
            self._images.close()


def _share_out(count: int, num_parts: int) -> list[int]:
    """Return parts of `count` that differ by at most one."""
    return [(count + part) // num_parts for part in range(num_parts)]


def _context_params(config: EngineConfig, num_slots: int, num_threads: int) -> llama.LlamaContextParams:
    params = context_params(num_slots, config.context_window, is_f32=config.precision == "f32")
    params.n_threads = params.n_threads_batch = num_threads
    return params
