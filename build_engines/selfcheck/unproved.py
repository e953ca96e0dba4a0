"""What is not proved on a GPU, and how a self-check finds it out where it can. docs/gpu.md has the same list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException

from build_engines.selfcheck import observations
from build_engines.selfcheck.client import CheckFailed
from build_engines.selfcheck.observations import Subject
from build_engines.selfcheck.report import Finding, Verdict
from model_repository.engine.tensorrt_llm.options import Backend


@dataclass(frozen=True, slots=True)
class Unproved:
    """One thing that is believed."""

    claim: str
    observe: Callable[[Subject], str] | None = None  # returns what it saw, or raises CheckFailed
    why_not: str = ""  # why no request can show it
    backend: Backend | None = None  # that the claim is about; None: both


UNPROVED = (
    Unproved(
        "The same seed gives the same text, on the engine backend.", observations.seed_repeats, backend=Backend.ENGINE
    ),
    Unproved(
        "Log probabilities are the raw ones where a logits processor edits logits.", observations.logprobs_are_raw
    ),
    Unproved("TensorRT-LLM's workers can unpickle our logits processors.", observations.processors_reach_the_workers),
    Unproved(
        "A logits processor is told every token drawn so far: the PyTorch backend's overlap scheduler is off for it; "
        "an engine's request fails where it is not.",
        observations.processors_know_their_tokens,
    ),
    Unproved("Penalties have their effect.", observations.penalties_have_effect),
    Unproved("Our tensors are right for the real torch.", observations.bias_has_effect),
    Unproved("A client that leaves frees its place in the batch.", observations.abort_frees_the_slot),
    Unproved("The end token is the last token id of an answer.", observations.end_token_is_told),
    Unproved(
        "Prompts that begin alike share KV cache blocks, and `cached_tokens` says so, on the PyTorch backend.",
        observations.prompts_are_cached,
        backend=Backend.PYTORCH,
    ),
    Unproved("A greedy answer is the same alone and beside others.", observations.batches_change_nothing),
    Unproved(
        "The planner's estimates of workspace and runtime hold.",
        why_not="the section 'Memory' has the plan beside what nvidia-smi told",
    ),
    Unproved(
        "An engine's files are config.json and rank0.engine, rank1.engine and so on.",
        why_not="the build does: it fails where one of them is missing",
    ),
    Unproved(
        "When a worker of TensorRT-LLM dies and nothing is raised, no result for 60 s means that it is dead; a prefill "
        "that takes longer would be misjudged.",
        why_not="it takes a worker that is killed, or a very long prompt",
    ),
    Unproved(
        "A dead executor that raises RequestError fails each request, while the model stays ready.",
        why_not="it takes an executor that is killed",
    ),
    Unproved(
        "On the engine backend, aborting a stream with log probabilities would kill the process (TensorRT-LLM issue "
        "10810), so it runs out unread.",
        why_not="the wrong way would end the server",
    ),
    Unproved("LoRA adapters, with both backends.", why_not="no adapter is given"),
    Unproved("The option guided_decoding=xgrammar.", why_not="the server runs with our own masks, the default"),
    Unproved(
        "Models over several nodes: the build under mpirun, the server under trtllm-llmapi-launch.", why_not="one node"
    ),
)


def observe_all(subject: Subject, backend: Backend) -> Iterator[Finding]:
    """Yield what could be observed of each, and why the rest could not."""
    for unproved in UNPROVED:
        yield _observed(unproved, subject, backend)


def _observed(unproved: Unproved, subject: Subject, backend: Backend) -> Finding:
    if unproved.backend not in (None, backend):
        return Finding(unproved.claim, Verdict.NOT_TRIED, f"this is the backend {backend}")
    if unproved.observe is None:
        return Finding(unproved.claim, Verdict.NOT_TRIED, unproved.why_not)
    try:
        return Finding(unproved.claim, Verdict.PASSED, unproved.observe(subject))
    except (CheckFailed, HTTPException, OSError, LookupError, TypeError, ValueError) as exc:
        return Finding(unproved.claim, Verdict.FAILED, str(exc) or type(exc).__name__)
