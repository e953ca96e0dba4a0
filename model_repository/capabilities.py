"""What a runtime may or may not honour: each request field that depends on it, by name.

What the engine does around any runtime (stop sequences, max_tokens, ignore_eos, echo, streaming) is not listed: every
runtime has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from model_repository.generation import ChatPrompt, GenerationRequest, Prompt, SamplingParams

_NEUTRAL = SamplingParams()


class Capability(StrEnum):
    """Something that a runtime's tokens must show. The values are what the parameter table says."""

    TEMPERATURE = "temperature"
    TOP_P = "top_p"
    TOP_K = "top_k"
    MIN_P = "min_p"
    SEED = "seed"
    REPETITION_PENALTY = "repetition_penalty"
    PRESENCE_PENALTY = "presence_penalty"
    FREQUENCY_PENALTY = "frequency_penalty"
    LOGIT_BIAS = "logit_bias"
    MIROSTAT = "mirostat"
    MIN_TOKENS = "min_tokens"
    LOGPROBS = "logprobs"  # of drawn tokens, and of an echoed prompt
    BAD_WORDS = "bad_words"
    GUIDES = "guides"  # constrained decoding: JSON schemas, regular expressions, choices, grammars, tool calls
    LORA = "lora"
    IMAGES = "images"


# OpenAI calls `seed` a best effort: a runtime without this capability ignores the field, and the frontend says so.
HINTS = frozenset({Capability.SEED})

# Members named like the field of SamplingParams that needs them.
_NEUTRAL_VALUES = {
    capability: getattr(_NEUTRAL, capability) for capability in Capability if hasattr(_NEUTRAL, capability)
}


def needed_capabilities(request: GenerationRequest) -> Iterator[Capability]:
    """Yield what the request needs of the runtime: only values that would change the completion need anything.

    HINTS are not needed.
    """
    sampling = request.sampling
    for capability, neutral in _NEUTRAL_VALUES.items():
        if getattr(sampling, capability) != neutral and capability not in HINTS:
            yield capability
    if request.min_tokens:
        yield Capability.MIN_TOKENS
    if request.num_logprobs is not None:
        yield Capability.LOGPROBS
    if request.bad_words:
        yield Capability.BAD_WORDS
    if request.guide is not None or _may_call_tools(request.prompt):
        yield Capability.GUIDES
    if request.lora_name:
        yield Capability.LORA
    if request.images:
        yield Capability.IMAGES


def _may_call_tools(prompt: Prompt) -> bool:
    return isinstance(prompt, ChatPrompt) and prompt.tool_use is not None and prompt.tool_use.choice != "none"
