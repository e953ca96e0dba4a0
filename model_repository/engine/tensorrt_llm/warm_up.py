"""The requests that a model serves before it is ready, so that no client's request is the first one of its kind.

TensorRT-LLM compiles sampling kernels at the first request that needs them, which may take minutes (its pull request
17286). Each worker unpickles our logits processors, and reads the vocabulary for the first structured output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from model_repository.contract.request import EngineRequest, OutputFormat, Params, SamplingParams, StructuredOutput
from model_repository.engine.tensorrt_llm.options import GuidedDecoding, TensorRtLlmOptions
from model_repository.structured_output.grammar import FREE_TOKENS

_ANY_TEXT = StructuredOutput(OutputFormat.REGEX, r"(.|\n)*")
_ANY_TEXT_GRAMMAR = rf"start: /(.|\n)*/{FREE_TOKENS}"
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class WarmUpRequest:
    kind: str
    request: EngineRequest
    is_needed: bool = False  # a model that fails on it serves nothing


def trial_request(token_id: int) -> EngineRequest:
    """Return a request with a prompt of one token, for one token."""
    return EngineRequest(prompt_token_ids=(token_id,), max_tokens=1)


def warm_up_requests(options: TensorRtLlmOptions, token_id: int, context_window: int) -> Iterator[WarmUpRequest]:
    """Yield a request of each kind that the options allow, for one token each.

    Args:
        token_id: prompts consist of it.
    """

    def one(
        kind: str, params: Params, *, is_needed: bool = False, num_tokens: int = 1, grammar: str = ""
    ) -> WarmUpRequest:
        prompt = (token_id,) * num_tokens
        changed = replace(trial_request(token_id), prompt_token_ids=prompt, params=params, grammar=grammar)
        return WarmUpRequest(kind, changed, is_needed)

    yield one("greedy", Params(sampling=_GREEDY), is_needed=True)
    sampling = SamplingParams(temperature=0.8, top_p=0.9, top_k=40)
    yield one("sampled", Params(sampling=sampling), is_needed=True)
    if options.logprobs:
        yield one("log probabilities", Params(sampling=sampling, has_logprobs=True, num_top_logprobs=1))
    if options.without_logits_processors is None:
        penalized = SamplingParams(temperature=0.0, repetition_penalty=1.1)
        params = Params(sampling=penalized, structured_output=_ANY_TEXT)
        yield one("structured output and penalty", params, grammar=_ANY_TEXT_GRAMMAR)
    elif options.guided_decoding is not GuidedDecoding.LLGUIDANCE:
        params = Params(sampling=_GREEDY, structured_output=_ANY_TEXT)
        yield one("structured output", params, grammar=_ANY_TEXT_GRAMMAR)
    num_tokens = (options.max_num_tokens or context_window) + 1
    if options.chunked_prefill and num_tokens < context_window:
        yield one("prompt of two chunks", Params(sampling=_GREEDY), num_tokens=num_tokens)
