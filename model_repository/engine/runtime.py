"""The seam between the engine stage and the library that executes a model."""

from __future__ import annotations

import math
import os
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from model_repository.contract.output import DrawnLogprob, RuntimeState
from model_repository.contract.request import EngineRequest
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.adapters.root import AdapterRoot
from model_repository.engine.grammar_budget import GrammarUse
from model_repository.engine.scheduler import ComputedPrompt
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import EngineFailed, NotFinite, StageError, Unsupported
from model_repository.model_facts import ModelFacts, Task
from model_repository.runtimes import RUNTIMES, UnknownRuntime
from model_repository.system.devices import DeviceUse
from model_repository.system.linked_file import LinkedFile, why_changed


class EngineConfig(ModelFacts, frozen=True, kw_only=True):
    """The parameters of a model in config.pbtxt that its engine needs."""

    runtime: str
    artifact_dir: Path
    max_sequences: int = 16  # decoded in one step
    max_waiting: int = 1024  # further requests are refused
    num_threads: int = 0  # 0: the runtime chooses
    stream_interval_ms: int = 40  # under load, the longest wait of a stream's tokens
    speculative: str | None = None  # how tokens are drafted, one of the runtime's; None: no drafts
    adapter_root: AdapterRoot | None = None  # folder of adapters to load later; None: no adapter can be loaded
    linked_files: Mapping[str, LinkedFile] = {}  # name in the artifact to file
    gpus: tuple[int, ...] = ()  # numbers of the model's GPUs; empty: the first ones of the machine
    gpu_layers: int = 0  # the number of layers, from the last one, that devices compute; the cores compute the others
    devices: Mapping[str, DeviceUse] = {}  # by name; empty: the cores compute everything

    def check_files(self) -> None:
        """Check the files that their owner can change.

        Raises:
            EngineFailed: names a changed file.
        """
        if reason := why_changed(self.linked_files, self.artifact_dir):
            raise EngineFailed(reason)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The result of a step for one sequence: its next token or its embedding, or the reason for their absence.

    Without a token and without an error the sequence is complete: it is embedded, `max_tokens` is 0, or the runtime's
    own limit is reached. After an error or a missing token the sequence only waits to be freed.
    """

    sequence: int
    token_id: int | None = None
    num_cached_tokens: int = 0  # prompt tokens with reused KV tokens
    logprob: DrawnLogprob | None = None  # the token's, if requested
    prompt_logprobs: tuple[DrawnLogprob, ...] = ()  # once, of every prompt token, with ranks, if requested
    embedding: bytes | None = None  # float32, little-endian
    error: StageError | None = None  # only this sequence has failed
    scheduled_s: float | None = field(default=None, compare=False)  # when it left the runtime's queue, time.monotonic

    def checked(self) -> StageError | None:
        """Return the error; also one for numbers that are not finite.

        The log probability of a token is -inf if it is impossible. One NaN among the logits makes all of them NaN.
        """
        if self.error is not None:
            return self.error
        numbers = [each.logprob for each in (self.logprob, *self.prompt_logprobs) if each and each.logprob is not None]
        numbers += [value for _, value in self.logprob.top] if self.logprob else ()
        is_finite = all(number < math.inf for number in numbers)  # not so for NaN
        if self.embedding is not None:
            is_finite = is_finite and bool(np.isfinite(np.frombuffer(self.embedding, "<f4")).all())
        return None if is_finite else NotFinite()


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """What a runtime has computed of images since its load; an image in the KV cache is not computed again."""

    num_images: int = 0
    num_tokens: int = 0
    passed_s: float = 0.0

    def plus(self, other: ImageCounts) -> ImageCounts:
        """Return the sums."""
        return ImageCounts(
            self.num_images + other.num_images, self.num_tokens + other.num_tokens, self.passed_s + other.passed_s
        )


class RuntimeStats(RuntimeState, frozen=True, kw_only=True):
    """The current state of a runtime."""

    adapters: Mapping[str, Adapter] = {}  # those that requests may name
    images: ImageCounts = ImageCounts()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, and the slow work that is already done for it."""

    request: EngineRequest
    constraint: TokenConstraint | None = None
    prompt: ComputedPrompt | None = None  # the prompt with its images, if the runtime itself computes these
    pictures: tuple[Any, ...] = ()  # Pillow's, for a runtime whose library computes them
    grammar: GrammarUse | None = None  # counts the structured output, if worker processes of the runtime compile it


class Runtime(Protocol):
    """Produces token ids. The engine ends and shapes texts around it, in the same way for every runtime.

    One thread owns it and makes all calls. Only `prepare`, `prepare_adapter`, `stats`, `kept_marks` and `wake` may be
    called from any thread.

    A runtime without slow preparations, adapters or waits in its steps inherits the methods for them.
    """

    def prepare(self, request: EngineRequest) -> Prepared:
        """Do the slow part of a `submit`: compile the constraints of the completion, and compute the images.

        Raises:
            StageError: the structured output is malformed, or the memory for structured outputs is full; an image is
                malformed, or the prompt does not fit the context window with it.
        """
        return Prepared(request)

    def submit(self, sequence: int, request: EngineRequest, prepared: Prepared | None = None) -> None:
        """Queue a request under an unused number; `prepared` is necessary for images and slow constraints.

        Raises:
            InvalidRequest: the runtime cannot honour the request, and has not queued it.
            EngineFailed: the runtime is broken and accepts nothing more.
        """

    def free(self, sequence: int, *, is_reusable: bool = True) -> None:
        """Forget a sequence in any state. Its KV tokens are free when this returns.

        If another process owns the KV cache, that process frees them as soon as it can.

        Args:
            is_reusable: False: its KV tokens are not finite. No other sequence may read them.
        """

    def step(self) -> Sequence[StepOutput] | None:
        """Advance the runnable sequences and return their new tokens, in order. In prefill there are no tokens.

        A runtime draws no end token before a request's `min_tokens`: neither the model's own nor one of
        `stop_token_ids` or `end_token_ids`, unless the constraints let nothing else follow. It may draw more tokens
        after the one that ends a sequence.

        Returns:
            None if another process is still computing the step.

        Raises:
            EngineFailed: every sequence is lost and forgotten. The runtime accepts new ones, unless it is broken for
                good: then `submit` and `stats` raise the same error.
        """

    def prepare_adapter(self, adapter: Adapter) -> Adapter:
        """Do the slow part of a `load_adapter`; return the adapter to load.

        Raises:
            InvalidRequest: it does not fit the model, or the model's start options.
            EngineFailed: the runtime is broken, perhaps by this adapter; or its files cannot be copied.
        """
        return adapter

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        """Load a LoRA adapter and offer it under an unused name.

        Raises:
            InvalidRequest: it does not fit the model, or the model's start options.
        """
        raise Unsupported("this model takes no adapters")

    def unload_adapter(self, name: str) -> None:
        """Offer an adapter no more. Running sequences keep it; its memory is freed with the last of them.

        A runtime that cannot free it keeps it, counts it, and reuses it when it is loaded again.
        """
        return  # there is none

    def wake(self) -> None:
        """Make the present or the next waiting step return at once."""
        return  # no step waits

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def stats(self) -> RuntimeStats:
        """Return the current state.

        Raises:
            EngineFailed: the runtime is broken for good.
        """

    def kept_marks(self) -> Sequence[bytes]:
        """Return the marks (contract/marks.py) of each prompt with tokens in the KV cache."""
        return ()  # none is kept

    def close(self) -> None:
        """Free everything."""


def load_runtime(config: EngineConfig, byte_table: Sequence[bytes]) -> Runtime:
    """Import and start the configured runtime: a host without a GPU never imports tensorrt_llm.

    Raises:
        UnknownRuntime: the configuration names another one.
    """
    if config.runtime not in RUNTIMES:
        raise UnknownRuntime(f"runtime {config.runtime!r}: expected one of {sorted(RUNTIMES)}")
    entry = RUNTIMES[config.runtime]
    if entry.prepare:
        pkgutil.resolve_name(entry.prepare)(os.environ)
    target = entry.target if config.task is Task.GENERATE else entry.encoder
    runtime: Runtime = pkgutil.resolve_name(target)(config, byte_table)
    return runtime
