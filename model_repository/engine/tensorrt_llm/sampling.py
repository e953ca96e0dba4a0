"""Turns a request into the arguments of TensorRT-LLM's SamplingParams: plain values, and a picklable callable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from model_repository.contract.request import EngineRequest, OutputFormat, SamplingParams
from model_repository.engine.request_checks import split_biases
from model_repository.engine.tensorrt_llm.options import GuidedDecoding
from model_repository.engine.tensorrt_llm.processors import (
    AllowedTokens,
    LogitsChain,
    LogitsEdit,
    Shaping,
    VocabularyFile,
)
from model_repository.engine.tensorrt_llm.tensors import Floats

# The formats that TensorRT-LLM enforces itself by xgrammar, as arguments of its GuidedDecodingParams. It lacks choices
# of texts, and the stages' own grammars with special tokens.
_XGRAMMAR_FORMATS: Mapping[OutputFormat, Callable[[str], dict[str, Any]]] = {
    OutputFormat.JSON_OBJECT: lambda content: {"json_object": True},
    OutputFormat.JSON_SCHEMA: lambda content: {"json": content},
    OutputFormat.REGEX: lambda content: {"regex": content},
    OutputFormat.GRAMMAR: lambda content: {"grammar": content},
}


# TensorRT-LLM draws the first token after each pause without logits processors. The next pause may begin at once, so
# that two such tokens come in a row.
_NUM_HELD = 2


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The arguments of one call to TensorRT-LLM, before any part of it is imported."""

    keywords: Mapping[str, Any]  # arguments of SamplingParams
    biases: Mapping[int, float]  # token id to the amount added to its logit; -inf bans it
    native_grammar: Mapping[str, Any] | None  # arguments of GuidedDecodingParams
    ends: frozenset[int]  # the tokens that may end the completion
    dead_end: int | None  # the token that is drawn if no other token can follow; None: without logits processors
    num_held: int = 0  # further tokens that are drawn before a token is known to have been drawn with our edits


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlanner:
    """Plans the requests to one model.

    Args:
        unused: tokens without text; one of them marks a dead end.
        guided_decoding: the source of the masks.
        is_called_per_chunk: logits processors are called for each chunk of a prompt.
        has_pauses: sequences may be paused, and then computed again.
        context_window: tokens of a prompt and its completion.
    """

    vocabulary: VocabularyFile
    unused: tuple[int, ...]
    guided_decoding: GuidedDecoding
    is_called_per_chunk: bool = False
    has_pauses: bool = False
    context_window: int = 0

    def plan(self, request: EngineRequest, num_given: int = 0) -> SamplingPlan:
        """Plan a call.

        Args:
            num_given: the tokens that an earlier call has drawn, which are appended to the prompt. The next ones are
                drawn with other random numbers, but not with those that the call would have had.
        """
        ends = self._ends(request)
        bias, banned = split_biases(request.params.sampling)
        # Two independent masks may together forbid every token, and that would go unnoticed.
        params = request.params
        is_masked = bool(
            banned
            or params.min_tokens
            or params.ignore_eos
            or params.bad_words
            or params.allowed_token_ids
            or (request.thinking is not None and not request.thinking.is_off)
            or num_given  # TensorRT-LLM's own grammar would begin anew
        )
        native_grammar = None if is_masked else self._native_grammar(request)
        is_shaped = _is_shaped(request.params.sampling)
        edits = self._masks(request, ends, bool(request.grammar) and not native_grammar, banned)
        if is_shaped:
            edits.append(Shaping(request.params.sampling, bias, request.prompt_token_ids))
        num_held = _NUM_HELD if edits and self.has_pauses else 0
        ending = _hidden_ending if num_held else _ending
        sampling = replace(params.sampling, seed=(params.sampling.seed + num_given) % 2**64)
        keywords = ending(request, ends, self.end_id) | _drawing(sampling) | _logits(request)
        keywords["max_tokens"] -= num_given
        if num_held:
            room = self.context_window - len(request.prompt_token_ids)
            keywords["max_tokens"] = max(1, min(request.max_tokens + num_held, room) - num_given)
        dead_end = None
        if edits:
            used = ends.union(params.sampling.logit_bias, params.allowed_token_ids)
            dead_end = next((token_id for token_id in self.unused if token_id not in used), self.unused[0])
            keywords["logits_processor"] = LogitsChain(
                edits,
                self.vocabulary.size,
                dead_end,
                is_called_per_chunk=self.is_called_per_chunk,
                num_given=num_given,
                hidden_ends=ends if num_held else None,
            )
        return SamplingPlan(
            keywords={**keywords, "detokenize": False},
            biases={} if is_shaped else bias | dict.fromkeys(banned, -math.inf),
            native_grammar=native_grammar,
            ends=ends,
            dead_end=dead_end,
            num_held=num_held,
        )

    @property
    def end_id(self) -> int:
        """The model's end token for TensorRT-LLM; further end tokens are its stop tokens."""
        return min(self.vocabulary.eos_token_ids)

    def _ends(self, request: EngineRequest) -> frozenset[int]:
        eos = frozenset() if request.params.ignore_eos else self.vocabulary.eos_token_ids.union(request.end_token_ids)
        return eos.union(request.params.stop_token_ids)

    def _native_grammar(self, request: EngineRequest) -> Mapping[str, Any] | None:
        structured_output = request.params.structured_output
        if structured_output is None or request.is_combined:
            return None
        if self.guided_decoding is GuidedDecoding.NATIVE_LLGUIDANCE:
            # There `grammar` is in llguidance's own language, so it is the same text as ours.
            # Source: LLGuidanceMatcherFactory.create in tensorrt_llm/_torch/pyexecutor/grammar_matcher.py.
            return {"grammar": request.grammar}
        if self.guided_decoding is GuidedDecoding.XGRAMMAR and structured_output.format in _XGRAMMAR_FORMATS:
            return _XGRAMMAR_FORMATS[structured_output.format](structured_output.content)
        return None

    def _masks(
        self,
        request: EngineRequest,
        ends: frozenset[int],
        has_grammar: bool,
        banned: frozenset[int],
    ) -> list[LogitsEdit]:
        """Return the masks. TensorRT-LLM's `min_tokens` holds back only one end token, and even a complete output's."""
        has_held_ends = bool(request.params.min_tokens and ends)
        is_constrained = has_grammar or bool(
            request.params.bad_words
            or request.params.allowed_token_ids
            or (request.thinking is not None and request.thinking.budget is not None)
        )
        if not is_constrained and not has_held_ends and not (banned and _is_shaped(request.params.sampling)):
            return []
        return [AllowedTokens(self.vocabulary, request, has_grammar, banned=banned, ends=ends)]


def embedding_bias(biases: Mapping[int, float], vocab_size: int) -> Floats:
    """Return biases as a vector, float32 [vocab_size]."""
    vector = np.zeros(vocab_size, dtype=np.float32)
    vector[list(biases)] = list(biases.values())
    return vector


def is_scored(request: EngineRequest) -> bool:
    """Whether the log probabilities of the prompt's tokens are requested."""
    return request.num_scored_logprobs is not None


def _is_shaped(sampling: SamplingParams) -> bool:
    """Whether our own edits come before the draw. Then they include the bias, which comes first."""
    neutral = SamplingParams()
    names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    is_penalized = any(getattr(sampling, name) != getattr(neutral, name) for name in names)
    return is_penalized or (sampling.temperature > 0.0 and (bool(sampling.min_p) or sampling.mirostat is not None))


def _ending(request: EngineRequest, ends: frozenset[int], end_id: int) -> dict[str, Any]:
    """Return the arguments about the end of the completion."""
    keywords: dict[str, Any] = {
        "end_id": end_id,
        "pad_id": end_id,
        "max_tokens": max(1, request.max_tokens),  # TensorRT-LLM draws at least one; an unwanted one is dropped
        "ignore_eos": request.params.ignore_eos,
        "include_stop_str_in_output": True,  # the engine stage needs the token that ended a sequence
    }
    if not request.params.ignore_eos:
        ends -= {end_id}
        keywords["min_tokens"] = 0  # our masks hold the ends back; the default, 1, forbids an empty completion
    return keywords | ({"stop_token_ids": sorted(ends)} if ends else {})


def _hidden_ending(request: EngineRequest, ends: frozenset[int], end_id: int) -> dict[str, Any]:
    """Return the same without the ends: the token before a pause may be an end that our edits would forbid."""
    unended = replace(request, params=replace(request.params, ignore_eos=True))
    return _ending(unended, frozenset(), end_id)


def _logits(request: EngineRequest) -> dict[str, Any]:
    """Return the arguments about log probabilities."""
    keywords: dict[str, Any] = {}
    if request.params.num_logprobs is not None:
        keywords["logprobs"] = max(1, request.params.num_logprobs)  # 0 would mean no log probabilities
    if is_scored(request):
        keywords["return_context_logits"] = True
    return keywords


def _drawing(sampling: SamplingParams) -> dict[str, Any]:
    """Return the arguments of the draw, with the same meaning for both backends.

    The engine backend's own default of top_p is 0, which makes even a draw with temperature greedy.
    """
    is_drawn_already = sampling.mirostat is not None  # a logits processor leaves one token
    if sampling.temperature == 0.0 or sampling.top_p == 0.0 or sampling.top_k == 1 or is_drawn_already:
        return {"seed": sampling.seed, "top_k": 1}
    return {
        "seed": sampling.seed,  # TensorRT-LLM's default is the same for every request
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
