"""The seam between the engine stage and what executes a model, and the table of what there is."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from model_repository.capabilities import Capability
from model_repository.contract.output import DrawnLogprob
from model_repository.contract.request import EngineRequest
from model_repository.engine.adapter_folder import Adapter
from model_repository.engine.adapter_root import AdapterRoot
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import StageError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine stage is told by its config.pbtxt."""

    runtime: str
    artifact_dir: Path
    context_window: int  # tokens of prompt and completion together
    eos_token_ids: frozenset[int]
    max_sequences: int = 16  # decoded in one step
    max_waiting: int = 1024  # beyond it a request is refused
    num_threads: int = 0  # 0: as many as the runtime finds good
    stream_interval_ms: int = 40  # under load, a stream's tokens gather for so long at most
    precision: str = "f16"  # of matrices and KV cache
    options: Mapping[str, str] = field(default_factory=dict)  # the runtime's own
    adapters: Mapping[str, Path] = field(default_factory=dict)  # LoRA adapters in the artifact, by name
    adapter_root: AdapterRoot | None = None  # of adapters that are loaded later; None: there will be none
    requires: Mapping[str, str] = field(default_factory=dict)  # of the machine, for what was compiled for one


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step did for one sequence: its next token, or why there is none.

    Without a token and without an error nothing more is drawn: `max_tokens` is 0, or the runtime's own limit is
    reached. Either way there is nothing more to come, and the sequence only waits to be freed.
    """

    sequence: int
    token_id: int | None = None
    num_cached_tokens: int = 0  # of the prompt, those whose KV cache cells were reused
    logprob: DrawnLogprob | None = None  # of the token, where the request asks for it
    prompt_logprobs: tuple[DrawnLogprob, ...] = ()  # once, of every prompt token, where an echo asks for them
    error: StageError | None = None  # this sequence alone has failed
    scheduled_s: float | None = field(default=None, compare=False)  # when it left the runtime's queue, time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """What a runtime holds at the moment."""

    num_active: int
    num_waiting: int
    num_cells_used: int
    num_cells: int
    adapters: Mapping[str, Adapter] = field(default_factory=dict)  # that requests may name
    adapter_bytes: int = 0  # of all that are in memory; what another process holds is not counted


class Runtime(Protocol):
    """Produces token ids. Everything that ends or shapes a text stands around it, the same for every runtime.

    One thread owns it and makes all calls, but `prepare`, `stats` and `wake`, which any thread may call.
    """

    def prepare(self, request: EngineRequest) -> TokenConstraint | None:
        """Do the part of a `submit` that takes long: compile what the completion must look like, and not contain.

        Raises:
            StageError: the guide is malformed, or there is no room for it.
        """
        ...

    def submit(self, sequence: int, request: EngineRequest, constraint: TokenConstraint | None = None) -> None:
        """Queue a request under a number that is not in use.

        Args:
            sequence: the number.
            request: what to do.
            constraint: what `prepare` returned for it.

        Raises:
            InvalidRequest: the runtime cannot honour it, and has not taken it.
            EngineFailed: the runtime is broken and takes nothing any more.
        """
        ...

    def free(self, sequence: int) -> None:
        """Forget a sequence, finished or not, queued or running: its KV cache cells are free for others at return.

        A runtime whose cells another process owns frees them as soon as that one can.
        """
        ...

    def step(self) -> Sequence[StepOutput] | None:
        """Advance the sequences that can run; return their new tokens, in order. Empty while in prefill.

        It draws no end token before a request's `min_tokens`: neither the model's own nor one of
        `stop_token_ids` or `end_token_ids`. Tokens that follow the one that ends a sequence are passed over.

        Returns:
            None if it only waited, for what another process computes: that step still goes on.

        Raises:
            EngineFailed: every sequence is lost, and the runtime has forgotten them. It takes new ones, unless it is
                broken for good: then `submit` and `stats` raise the same.
        """
        ...

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        """Load a LoRA adapter and offer it under a name that none has, to requests from now on.

        Raises:
            InvalidRequest: it does not fit the model, or how that was started.
        """
        ...

    def unload_adapter(self, name: str) -> None:
        """Offer an adapter no more. Sequences under way keep it; what only they need is freed with the last of them.

        A runtime whose library cannot free it keeps it, counts it, and uses it again if it comes back.
        """
        ...

    def wake(self) -> None:
        """Have a step that waits, or the next one that would, return at once: there is something else to do."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def stats(self) -> RuntimeStats:
        """Return what it holds.

        Raises:
            EngineFailed: it is broken for good.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class UnknownRuntime(ValueError):
    """The configuration names a runtime that does not exist."""


@dataclass(frozen=True, slots=True)
class RuntimeEntry:
    """A runtime that there is: where its class is, what it can honour, and the options of its own that it takes.

    `lost_with` says what an option, NAME=VALUE, takes from the capabilities.

    `max_sending_share` is of each core: so much of its time may go into telling of tokens (see `Emitter`). Where the
    cores that tell also compute, whatever the one takes the other lacks.
    """

    target: str
    capabilities: frozenset[Capability]
    max_sending_share: float = 0.25
    options: frozenset[str] = frozenset()
    lost_with: Mapping[str, frozenset[Capability]] = field(default_factory=dict)

    def capabilities_with(self, options: Mapping[str, str]) -> frozenset[Capability]:
        """Return what a model with these options can honour."""
        return self.capabilities.difference(
            *(self.lost_with.get(f"{name}={value}", ()) for name, value in options.items())
        )


RUNTIMES = {
    "llama_cpp": RuntimeEntry(
        "model_repository.engine.llama_cpp_runtime:LlamaCppRuntime",
        frozenset(Capability) - {Capability.IMAGES},
        options=frozenset({"lanes"}),
        max_sending_share=0.015,
    ),
    # Its tokens are certain, so whatever is drawn from them is drawn as asked; nothing else would show.
    "synthetic": RuntimeEntry(
        "model_repository.engine.synthetic:SyntheticRuntime",
        frozenset({Capability.TEMPERATURE, Capability.TOP_P, Capability.TOP_K, Capability.MIN_P, Capability.SEED}),
        options=frozenset({"itl_ms", "num_tokens", "prefill_tokens"}),
    ),
    "tensorrt_llm": RuntimeEntry(
        "model_repository.engine.tensorrt_llm.runtime:TensorRtLlmRuntime",
        frozenset(Capability) - {Capability.IMAGES},
        options=frozenset(
            {
                "backend",
                "block_reuse",
                "chunked_prefill",
                "guided_decoding",
                "kv_cache_dtype",
                "kv_cache_fraction",
                "logprobs",
                "lora_max_rank",
                "lora_modules",
                "max_batch_size",
                "max_num_tokens",
                "pp_size",
                "prompt_logprobs",
                "scheduler_policy",
                "tp_size",
                "trust_remote_code",
            }
        ),
        # The PyTorch backend of release 1.2 draws for the whole batch from one generator with a fixed seed.
        lost_with={"backend=pytorch": frozenset({Capability.SEED})},
    ),
}


def load_runtime(config: EngineConfig, byte_table: Sequence[bytes]) -> Runtime:
    """Import and start the runtime that the configuration names: a host without a GPU never imports tensorrt_llm.

    Args:
        config: what the runtime is started with.
        byte_table: the bytes of each token id.

    Raises:
        UnknownRuntime: there is none of that name.
    """
    if config.runtime not in RUNTIMES:
        raise UnknownRuntime(f"runtime {config.runtime!r}: expected one of {sorted(RUNTIMES)}")
    runtime: Runtime = pkgutil.resolve_name(RUNTIMES[config.runtime].target)(config, byte_table)
    return runtime
