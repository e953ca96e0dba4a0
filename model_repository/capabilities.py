"""The request fields that some runtimes cannot honour.

The engine itself gives every runtime stop sequences, max_tokens, ignore_eos, echo and streaming: they are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from model_repository.contract.request import ChatPrompt, GenerationRequest, Params, Prompt, SamplingParams, ToolUse


class Capability(StrEnum):
    """A request field that a runtime can honour. The values are the words of the parameter table."""

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
    LOGPROBS = "logprobs"  # drawn tokens' and the prompt's
    BAD_WORDS = "bad_words"
    ALLOWED_TOKEN_IDS = "allowed_token_ids"
    THINKING_BUDGET = "thinking_budget"
    STRUCTURED_OUTPUT = "structured_output"  # JSON schemas, regular expressions, choices, grammars, tool calls
    LORA = "lora"
    IMAGES = "images"
    RESUME = "resume_token_ids"
    PROMPT_CACHE = "prompt_cache_options"  # the KV tokens of a prompt stay for a time


# OpenAI calls `seed` a best effort, and a cache changes no answer: a runtime without one of these capabilities ignores
# the field, and the frontend says so.
HINTS = frozenset({Capability.SEED, Capability.PROMPT_CACHE})

# Capabilities named like the field that needs them, with the field's neutral value.
_OF_SAMPLING, _OF_PARAMS = (
    [(each, getattr(message, each)) for each in Capability if hasattr(message, each) and each not in HINTS]
    for message in (SamplingParams(), Params())
)


def needed_capabilities(request: GenerationRequest) -> Iterator[Capability]:
    """Yield the capabilities that a runtime must have for a request. Default values and HINTS need no capability."""
    params = request.params
    for message, fields in ((params.sampling, _OF_SAMPLING), (params, _OF_PARAMS)):
        for capability, neutral in fields:
            if getattr(message, capability) != neutral:
                yield capability
    if params.has_logprobs or params.num_prompt_logprobs is not None:
        yield Capability.LOGPROBS
    if callable_tools(request.prompt) is not None:
        yield Capability.STRUCTURED_OUTPUT
    if params.lora_name:
        yield Capability.LORA
    if request.images:
        yield Capability.IMAGES


def callable_tools(prompt: Prompt) -> ToolUse | None:
    """Return the tools that the model may call; None without any."""
    tool_use = prompt.tool_use if isinstance(prompt, ChatPrompt) else None
    return tool_use if tool_use is not None and tool_use.choice != "none" else None
