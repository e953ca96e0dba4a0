"""Generation requests as the ensemble's inputs, by the contract: what the frontend sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from model_repository import contract
from model_repository.contract import TensorSpec
from model_repository.generation import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from model_repository.tensors import array

# Sampling inputs that are sent only when they differ from the defaults: each further tensor costs.
_OPTIONAL_SAMPLING = (
    contract.TOP_P,
    contract.TOP_K,
    contract.MIN_P,
    contract.REPETITION_PENALTY,
    contract.PRESENCE_PENALTY,
    contract.FREQUENCY_PENALTY,
)

type _Input = tuple[TensorSpec, tuple[Any, ...]]


def request_to_tensors(request: GenerationRequest) -> dict[str, npt.NDArray[Any]]:
    """Return the ensemble's inputs for a request, by name."""
    inputs = [*prompt_inputs(request.prompt), *_ending_inputs(request), *_sampling_inputs(request.sampling)]
    if request.guide is not None:
        inputs.append((contract.GUIDED_DECODING_GUIDE_TYPE, (request.guide.kind,)))
        inputs.append((contract.GUIDED_DECODING_GUIDE, (request.guide.content,)))
        if not request.guide.is_strict:
            inputs.append((contract.GUIDED_DECODING_STRICT, (False,)))
    has_tools = isinstance(request.prompt, ChatPrompt) and request.prompt.tool_use is not None
    if request.sender and (request.guide is not None or has_tools):  # nothing else asks for it
        inputs.append((contract.SENDER, (request.sender,)))
    if request.num_logprobs is not None:
        inputs.append((contract.RETURN_LOG_PROBS, (True,)))
    flags: list[tuple[TensorSpec, Any]] = [
        (contract.CONTEXT_LENGTH_EXCEEDED_BEHAVIOR, request.overflow if request.overflow == "error" else ""),
        (contract.TOP_LOGPROBS, request.num_logprobs),
        (contract.RETURN_TOKEN_IDS, request.has_token_ids),
        (contract.RETURN_USAGE, request.has_usage),
        (contract.RETURN_PERF_METRICS, request.has_timing),
        (contract.LORA_NAME, request.lora_name),
        (contract.STREAM, request.is_stream),
        (contract.PRIORITY, request.priority),
        (contract.CANCEL_KEY, request.cancel_key),
        (contract.DELIVERY_KEY, request.delivery_key),
        (contract.DELIVERY_NUMBER, request.delivery_number),
    ]
    inputs += [(spec, (value,)) for spec, value in flags if value]
    if request.stream_interval_ms is not None:
        inputs.append((contract.STREAM_INTERVAL_MS, (request.stream_interval_ms,)))
    if request.is_echo:
        inputs.append((contract.EXCLUDE_INPUT_IN_OUTPUT, (False,)))
    if request.images:
        inputs.append((contract.IMAGES, request.images))
    return {spec.name: array(spec, *elements) for spec, elements in inputs}


def prompt_inputs(prompt: Prompt) -> Iterator[_Input]:
    """Yield the inputs that carry a prompt."""
    match prompt:
        case TextPrompt(prompt_text, suffix):
            yield contract.TEXT_INPUT, (prompt_text,)
            if suffix:
                yield contract.SUFFIX, (suffix,)
        case TokenPrompt(token_ids):
            yield contract.INPUT_IDS, token_ids
        case ChatPrompt():
            yield contract.MESSAGES, (json.dumps(list(map(dict, prompt.messages))),)
            if prompt.tool_use is not None:
                yield contract.TOOLS, (json.dumps(list(map(dict, prompt.tool_use.tools))),)
                yield contract.TOOL_CHOICE, (prompt.tool_use.choice,)
                yield contract.PARALLEL_TOOL_CALLS, (prompt.tool_use.is_parallel,)
            if prompt.template_kwargs:
                yield contract.CHAT_TEMPLATE_KWARGS, (json.dumps(dict(prompt.template_kwargs)),)
            if not prompt.add_generation_prompt:
                yield contract.ADD_GENERATION_PROMPT, (False,)
            if prompt.continue_final_message:
                yield contract.CONTINUE_FINAL_MESSAGE, (True,)


def _ending_inputs(request: GenerationRequest) -> Iterator[_Input]:
    yield contract.MAX_TOKENS, (request.max_tokens,)
    if request.min_tokens:
        yield contract.MIN_TOKENS, (request.min_tokens,)
    if request.stop:
        yield contract.STOP_WORDS, request.stop
    if request.bad_words:
        yield contract.BAD_WORDS, request.bad_words
    if request.stop_token_ids:
        yield contract.STOP_TOKEN_IDS, request.stop_token_ids
    if request.include_stop:
        yield contract.INCLUDE_STOP_STR_IN_OUTPUT, (True,)
    if request.ignore_eos:
        yield contract.IGNORE_EOS, (True,)


def _sampling_inputs(sampling: SamplingParams) -> Iterator[_Input]:
    yield contract.TEMPERATURE, (sampling.temperature,)
    yield contract.SEED, (sampling.seed,)
    neutral = SamplingParams()
    for spec in _OPTIONAL_SAMPLING:
        value = getattr(sampling, spec.name)
        if value != getattr(neutral, spec.name):
            yield spec, (value,)
    if sampling.logit_bias:
        yield contract.LOGIT_BIAS_TOKEN_IDS, tuple(sampling.logit_bias)
        yield contract.LOGIT_BIAS_VALUES, tuple(sampling.logit_bias.values())
    if sampling.mirostat is not None:
        yield contract.MIROSTAT_TARGET, (sampling.mirostat.target,)
        yield contract.MIROSTAT_LR, (sampling.mirostat.learning_rate,)
