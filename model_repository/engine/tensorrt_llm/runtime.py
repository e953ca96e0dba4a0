"""The GPU runtime: TensorRT-LLM, which batches by itself. One adapter for its engines and its PyTorch backend.

It has not run on a GPU yet: it is developed against the recorded public API of TensorRT-LLM 1.2.1.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from tensorrt_llm import __version__

from model_repository.byte_table import FILE_NAME
from model_repository.contract.request import IMAGE_PLACE, EngineRequest
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.grammar_budget import GrammarBudget, GrammarUse
from model_repository.engine.queue_order import queue_order_s
from model_repository.engine.request_checks import check_request, constraint_field
from model_repository.engine.runtime import EngineConfig, ImageCounts, Prepared, Runtime, RuntimeStats, StepOutput
from model_repository.engine.tensorrt_llm.image_prompts import ImagePrompts, reads_images
from model_repository.engine.tensorrt_llm.input_processor import InputProcessor
from model_repository.engine.tensorrt_llm.iteration_stats import IterationStats, StatsMonitor
from model_repository.engine.tensorrt_llm.llm import (
    CHECKPOINT_FOLDER,
    TOKENIZER_FOLDER,
    sampling_params,
    start_llm,
    work_for_leader,
)
from model_repository.engine.tensorrt_llm.lora import LoraRequests
from model_repository.engine.tensorrt_llm.options import (
    LOGIT_BYTES,
    MAX_LOGITS_BYTES,
    Aborts,
    Backend,
    TensorRtLlmOptions,
)
from model_repository.engine.tensorrt_llm.processors import VocabularyFile
from model_repository.engine.tensorrt_llm.releases import release_of
from model_repository.engine.tensorrt_llm.request_loop import Call, RequestLoop
from model_repository.engine.tensorrt_llm.result_reader import ResultReader
from model_repository.engine.tensorrt_llm.role import RoleKind, role_from_environment
from model_repository.engine.tensorrt_llm.sampling import SamplingPlanner, is_scored
from model_repository.engine.tensorrt_llm.sent_marks import SentMarks
from model_repository.engine.tensorrt_llm.warm_up import trial_request, warm_up_requests
from model_repository.errors import EngineFailed, InvalidRequest, Overloaded, StageError, Unsupported

logger = logging.getLogger(__name__)

# The engine checks silent clients between two waits.
_MAX_WAIT_S = 0.05
_TRIAL = 0  # the sequence number of trials; the engine's begin at 1
_TRIAL_TIMEOUT_S = 60.0
_WARM_UP_TIMEOUT_S = 600.0  # for one request; a compiler may run


class TensorRtLlmRuntime(Runtime):
    """Owns TensorRT-LLM's LLM: `max_sequences` of its requests run at a time, the others wait here.

    Args:
        config: its `options` are those of TensorRtLlmOptions.
        environment: shows the role of this process among several ranks.

    Raises:
        EngineFailed: the model does not load, or this rank serves nothing.
    """

    def __init__(
        self,
        config: EngineConfig,
        byte_table: Sequence[bytes],
        *,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        try:
            self._options = TensorRtLlmOptions.of(config.options)
        except ValueError as exc:
            raise EngineFailed(str(exc)) from exc
        role = role_from_environment(environment)
        if role.kind is RoleKind.WORKER:
            work_for_leader(role)
        self._config = config
        self._vocab_size = len(byte_table)
        self._lora = LoraRequests(config, self._options)
        self._planner = SamplingPlanner(
            vocabulary=VocabularyFile(config.artifact_dir / FILE_NAME, self._vocab_size, config.eos_token_ids),
            unused=_unused(byte_table, config.eos_token_ids),
            guided_decoding=self._options.guided_decoding,
            is_called_per_chunk=self._options.backend is Backend.PYTORCH and self._options.chunked_prefill,
            has_pauses=self._options.pausing_option is not None,
            context_window=config.context_window,
        )
        checkpoint = config.artifact_dir / CHECKPOINT_FOLDER
        tokenizer = config.artifact_dir / TOKENIZER_FOLDER / "tokenizer.json"
        has_images = reads_images(checkpoint)
        if has_images and self._options.pausing_option:  # TensorRT-LLM issue 17882
            rule = "not with a model that reads images: a pause loses the images"
            raise EngineFailed(f"option {self._options.pausing_option}: {rule}")
        self._images = ImagePrompts(checkpoint, tokenizer, config.context_window) if has_images else None
        self._image_counts = ImageCounts()
        self._grammars = GrammarBudget()  # the workers see neither senders nor each other's sums
        self._waiting: dict[int, Call] = {}  # oldest first
        self._running: dict[int, Call] = {}
        self._sent = SentMarks()
        self._llm = start_llm(config, self._options, role)
        self._loop = RequestLoop(self._llm, None if self._images is None else InputProcessor(self._llm))
        self._stats_monitor = StatsMonitor(self._llm) if self._options.has_statistics else None
        try:
            self._warm_up()
        except EngineFailed:
            self.close()
            raise

    def _warm_up(self) -> None:
        """Serve one request of each kind and with each adapter.

        Raises:
            EngineFailed: names what fails. If another kind of request alone fails, the log names it.
        """
        for each in warm_up_requests(self._options, self._planner.end_id, self._config.context_window):
            started_s = time.monotonic()
            try:
                self._try_out(each.request, timeout_s=_WARM_UP_TIMEOUT_S)
            except StageError as exc:
                if each.is_needed or isinstance(exc, Overloaded):
                    raise EngineFailed(f"warm-up ({each.kind}): {exc.text}") from exc
                self._loop.check()
                logger.error("warm-up (%s): %s; such requests will fail", each.kind, exc.text)
            else:
                logger.info("warm-up (%s): a token after %.2f s", each.kind, time.monotonic() - started_s)
        for name in self._lora.adapters:
            try:
                self._try_out(trial_request(self._planner.end_id), self._lora.of(name))
            except StageError as exc:
                raise EngineFailed(f"adapter {name}: TensorRT-LLM makes no token with it: {exc.text}") from exc

    def prepare(self, request: EngineRequest) -> Prepared:
        """Read the images, and count the structured output, which each worker process compiles itself."""
        if request.images and self._images is None:
            raise Unsupported("this model reads no images", "images")
        grammar = self._grammar(request)
        prepared = self._images.prepare(request) if self._images is not None and request.images else Prepared(request)
        return dataclasses.replace(prepared, grammar=grammar)

    def _grammar(self, request: EngineRequest) -> GrammarUse | None:
        if not request.grammar:
            return None
        owner = request.params.cache_salt or request.params.sender
        return self._grammars.use(request.grammar, owner, request.grammar_bytes)

    def submit(self, sequence: int, request: EngineRequest, prepared: Prepared | None = None) -> None:
        self._loop.check()
        prepared = prepared or Prepared(request, grammar=self._grammar(request))
        pictures = prepared.pictures
        self._check(request, has_images=bool(pictures))
        text_ids = [token_id for token_id in request.prompt_token_ids if token_id != IMAGE_PLACE]
        text_request = replace(request, prompt_token_ids=tuple(text_ids))
        plan = self._planner.plan(text_request, len(request.resumed_token_ids))
        edits_logits = "logits_processor" in plan.keywords
        if edits_logits and (option := self._options.without_logits_processors) is not None:
            rule = f"needs a logits processor, and this model is served with the option {option}"
            raise Unsupported(rule, constraint_field(request) or "logit_bias_token_ids")
        if plan.num_held:
            self._check_pauses(request)
        is_engine = self._options.backend is Backend.ENGINE
        keywords: dict[str, Any] = {
            "inputs": text_ids if self._images is None else self._images.inputs(request.prompt_token_ids, pictures),
            "lora_request": self._lora.of(request.params.lora_name),
            # Tokens also show that TensorRT-LLM is alive, so it streams even for clients that wait for the end. An
            # engine's logits are the raw ones only in a stream. With each token of a stream, the PyTorch backend sends
            # the logits of the whole prompt again.
            "streaming": is_engine or not is_scored(request),
        }
        if self._options.block_reuse:
            # Reused KV tokens have no logits. A salt of its own prevents their reuse.
            salt = secrets.token_hex(16) if is_scored(request) else request.params.cache_salt
            keywords |= {"cache_salt": salt} if salt else {}
            self._sent.add(request.params.marks, len(request.prompt_token_ids), self._max_kv_tokens())
        reader = ResultReader(sequence, request, plan, end_id=self._planner.end_id, vocab_size=self._vocab_size)

        def make_params() -> Any:
            num_given = len(reader.given)
            is_planned = num_given == len(request.resumed_token_ids)
            planned = plan if is_planned else self._planner.plan(text_request, num_given)
            return sampling_params(planned, self._vocab_size)

        self._waiting[sequence] = Call(
            sequence,
            keywords,
            make_params,
            reader,
            aborts=self._aborts(request),
            edits_logits=edits_logits,
            # The PyTorch backend counts one row of logits for each request, and a scored one has a row for each token.
            shifts_rows=not is_engine and is_scored(request),
            logits_bytes=self._logits_bytes(request),
            queue_order_s=queue_order_s(request, time.monotonic()),
            grammar=prepared.grammar,
        )
        num_image_tokens = len(request.prompt_token_ids) - len(text_ids)
        self._image_counts = self._image_counts.plus(ImageCounts(len(pictures), num_image_tokens))
        self._admit()

    def _check_pauses(self, request: EngineRequest) -> None:
        """Refuse a request with edited logits that cannot be continued after a pause."""
        option = f"not with the option {self._options.pausing_option}"
        if request.params.sampling.mirostat is not None:
            raise Unsupported(f"{option}: a pause loses its estimate", "mirostat_target")
        if is_scored(request):
            raise Unsupported(
                f"log probabilities of the prompt beside edited logits: {option}", _scoring_field(request)
            )

    def _aborts(self, request: EngineRequest) -> Aborts:
        is_engine = self._options.backend is Backend.ENGINE
        if is_engine and (request.params.num_logprobs is not None or is_scored(request)):
            return Aborts.NEVER  # an abort of such a stream ends the process (TensorRT-LLM issue 10810)
        trusted = Aborts.ALWAYS if release_of(__version__).aborts_in_prefill else Aborts.AFTER_PREFILL
        return self._options.aborts or trusted

    def _logits_bytes(self, request: EngineRequest) -> int:
        """Return the memory that an engine takes as the request starts: logits of tokens to draw, and of the prompt."""
        if self._options.backend is not Backend.ENGINE:
            return 0
        num_tokens = 0 if request.params.num_logprobs is None else max(1, request.max_tokens)
        num_tokens += len(request.prompt_token_ids) if is_scored(request) else 0
        return num_tokens * self._vocab_size * LOGIT_BYTES

    def _check(self, request: EngineRequest, has_images: bool) -> None:
        check_request(request, self._vocab_size, self._lora.adapters, has_images=has_images)
        if request.is_redrawn:
            raise Unsupported("Mirostat's estimate is lost", "resume_token_ids")
        if request.resumed_token_ids and self._images is not None:
            raise Unsupported("a model that reads images takes prompts as text", "resume_token_ids")
        if request.params.num_logprobs is not None and not self._options.logprobs:
            raise Unsupported("this model is served with the option logprobs=false", "return_log_probs")
        if is_scored(request) and not self._options.has_prompt_logprobs:
            raise Unsupported(
                "log probabilities of the prompt need an engine that was built to gather context logits, "
                "and the option prompt_logprobs=true",
                _scoring_field(request),
            )
        if self._logits_bytes(request) > MAX_LOGITS_BYTES:
            num_tokens = MAX_LOGITS_BYTES // (self._vocab_size * LOGIT_BYTES)
            rule = f"with log probabilities this model has memory for {num_tokens} tokens"
            raise InvalidRequest(
                f"{request.max_tokens}: {rule}, those of the prompt included if it has any", "max_tokens"
            )

    def _admit(self) -> None:
        """Start the waiting calls for which there is room, in their order.

        A call may have to wait for memory, or for a call that must not run beside it. Calls behind it start before it,
        unless they need that memory too, or must not run beside it either.
        """
        busy = self._loop.busy_calls()
        if not self._waiting or len(busy) >= self._config.max_sequences:
            return
        passed: list[Call] = []
        for call in sorted(self._waiting.values(), key=lambda call: call.queue_order_s):  # equals: the first
            if len(busy) >= self._config.max_sequences:
                return
            if not _may_start(call, [*busy, *passed]):
                passed.append(call)
                continue
            del self._waiting[call.sequence]
            self._running[call.sequence] = call
            call.reader.scheduled_s = time.monotonic()
            self._loop.start(call)
            busy.append(call)

    def free(self, sequence: int, *, is_reusable: bool = True) -> None:
        """Forget a sequence. If it cannot be aborted, it keeps its place until it ends."""
        if self._waiting.pop(sequence, None) is None and self._running.pop(sequence, None) is not None:
            self._loop.drop(sequence)

    def step(self) -> Sequence[StepOutput] | None:
        self._admit()
        try:
            outputs = self._loop.wait(_MAX_WAIT_S)
        except EngineFailed:
            self._forget_all()
            raise
        has_progressed = self._loop.pop_progress()
        outputs = [output for output in outputs if output.sequence in self._running]
        # If all running sequences report only their end, silence must not count as a hanging step.
        is_silent = bool(self._running) and not any(call.keywords["streaming"] for call in self._running.values())
        return outputs if outputs or has_progressed or is_silent else None

    def prepare_adapter(self, adapter: Adapter) -> Adapter:
        """Copy an adapter's files, and draw a token with it.

        TensorRT-LLM loads an adapter with its first request. Up to release 1.2, one that it cannot load ends the worker
        and all requests.

        Source: `worker_main` in tensorrt_llm/executor/worker.py, `_enqueue_request` in base_worker.py.
        """
        self._lora.check(adapter)
        assert self._config.adapter_root is not None, "no other adapter is prepared"
        copy = self._config.adapter_root.copy(adapter)
        try:
            self._try_out(trial_request(self._planner.end_id), self._lora.request(adapter.source, copy))
        except Overloaded:  # other requests may hold all of the memory
            raise
        except StageError as exc:
            self._loop.check()
            logger.warning("the adapter %s: %s", adapter.source, exc.text)
            rule = "TensorRT-LLM makes no token with it, see the engine's log"
            raise InvalidRequest(f"{adapter.source!r}: {rule}", "source") from exc
        if num_bytes := self._lora.num_kept_bytes:
            logger.warning("%d bytes of adapters stay on the GPU until the model is loaded again", num_bytes)
        return copy

    def _try_out(self, request: EngineRequest, lora_request: Any = None, timeout_s: float = _TRIAL_TIMEOUT_S) -> None:
        """Serve a request, beside those of the engine.

        Raises:
            StageError: TensorRT-LLM makes no token; Overloaded: not in time.
        """
        plan, ids = self._planner.plan(request), list(request.prompt_token_ids)
        call = Call(
            _TRIAL,
            {
                "inputs": ids if self._images is None else self._images.inputs(ids, ()),
                "lora_request": lora_request,
                "streaming": True,
            },
            functools.partial(sampling_params, plan, self._vocab_size),
            ResultReader(_TRIAL, request, plan, end_id=self._planner.end_id, vocab_size=self._vocab_size),
        )
        self._loop.try_out(call, timeout_s)

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        """Offer an adapter."""
        self._lora.add(name, adapter)

    def unload_adapter(self, name: str) -> None:
        """Offer an adapter no more. TensorRT-LLM frees it for another one, but up to release 1.2 never on the GPU.

        Its files stay.
        """
        self._lora.remove(name)

    def wake(self) -> None:
        self._loop.wake()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def stats(self) -> RuntimeStats:
        """Return the current state. The use of the KV cache is known after the first step, if at all."""
        self._loop.check()
        num_active = len(self._loop.busy_calls())
        steps = IterationStats() if self._stats_monitor is None else self._stats_monitor.stats
        if not num_active:  # the last step had requests
            steps = replace(steps, num_kv_tokens_used=0, num_queued=0, num_scheduled=0, num_paused=0)
        has_cache = steps.is_known and steps.max_kv_tokens > 0
        return RuntimeStats(
            num_active=num_active,
            num_waiting=len(self._waiting),
            num_kv_tokens_used=steps.num_kv_tokens_used if has_cache else None,
            max_kv_tokens=steps.max_kv_tokens if has_cache else None,
            adapters=dict(self._lora.adapters),
            adapter_bytes=self._lora.num_kept_bytes,
            images=self._image_counts,
            num_draft_tokens=steps.num_draft_tokens,
            num_accepted_tokens=steps.num_accepted_tokens,
            library=steps,
        )

    def _max_kv_tokens(self) -> int:
        """Return the tokens that fit the KV cache, or those of all sequences while that is not known."""
        known = 0 if self._stats_monitor is None else self._stats_monitor.stats.max_kv_tokens
        return known or self._config.context_window * self._config.max_sequences

    def kept_marks(self) -> list[bytes]:
        return self._sent.newest_first()

    def close(self) -> None:
        """End the requests, then TensorRT-LLM and its workers."""
        self._forget_all()
        self._loop.close()
        if self._stats_monitor is not None:
            self._stats_monitor.close()
        self._llm.shutdown()
        if self._images is not None:
            self._images.close()

    def _forget_all(self) -> None:
        self._waiting.clear()
        self._running.clear()


def _scoring_field(request: EngineRequest) -> str:
    """Return the field by which a request asks for log probabilities of its prompt."""
    return "return_log_probs" if request.params.num_prompt_logprobs is None else "prompt_logprobs"


def _may_start(call: Call, earlier: Sequence[Call]) -> bool:
    """Whether a call may run beside those that run, and those that wait longer."""
    logits_bytes = call.logits_bytes + sum(each.logits_bytes for each in earlier)
    is_in_memory = not call.logits_bytes or logits_bytes <= MAX_LOGITS_BYTES
    return is_in_memory and not any(call.disturbs(each) or each.disturbs(call) for each in earlier)


def _unused(byte_table: Sequence[bytes], eos_token_ids: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens without text that are not end tokens. Every vocabulary has some, at least as padding."""
    unused = tuple(index for index, text in enumerate(byte_table) if not text and index not in eos_token_ids)
    if not unused:
        raise EngineFailed("the vocabulary has no token without text beside its end tokens")
    return unused
