"""From a request to the keywords of TensorRT-LLM's SamplingParams. Pure: plain values, and a picklable callable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_repository.contract.request import EngineRequest, OutputFormat, SamplingParams, StructuredOutput
from model_repository.engine.tensorrt_llm.options import GuidedDecoding
from model_repository.engine.tensorrt_llm.processors import (
    AllowedTokens,
    LogitsChain,
    LogitsEdit,
    Shaping,
    VocabularyFile,
)
from model_repository.engine.tensorrt_llm.tensors import Floats

_BAN_BIAS = -100.0  # merely added, it would leave a token possible where no other one is near

# The kinds of guide that TensorRT-LLM has itself, as keywords of its GuidedDecodingParams. It has no choice of texts,
# and nothing like the grammars of the stages' own, which know special tokens.
_NATIVE_GUIDES: Mapping[OutputFormat, Callable[[str], dict[str, Any]]] = {
    OutputFormat.JSON_OBJECT: lambda content: {"json_object": True},
    OutputFormat.JSON_SCHEMA: lambda content: {"json": content},
    OutputFormat.REGEX: lambda content: {"regex": content},
    OutputFormat.GRAMMAR: lambda content: {"grammar": content},
}


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What to ask TensorRT-LLM for one request, before anything of it is imported."""

    keywords: Mapping[str, Any]  # of SamplingParams
    biases: Mapping[int, float]  # token id to what is added to its logit; -inf bans it
    native_guide: Mapping[str, Any] | None  # keywords of GuidedDecodingParams
    ends: frozenset[int]  # the tokens that may end it
    dead_end: int | None  # the token drawn where nothing can follow; None: that is not noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlanner:
    """Plans requests to one model.

    Args:
        vocabulary: the model's.
        unused: tokens without text, one of which stands for a dead end.
        guided_decoding: who masks tokens.
        is_called_per_chunk: what edits logits is called for each chunk of a prompt.
    """

    vocabulary: VocabularyFile
    unused: tuple[int, ...]
    guided_decoding: GuidedDecoding
    is_called_per_chunk: bool = False

    def plan(self, request: EngineRequest) -> SamplingPlan:
        """Return what to ask for a request."""
        ends = self._ends(request)
        bias, banned = _biases(request.params.sampling)
        # Two masks that do not know of each other may leave nothing, and nobody would notice.
        params = request.params
        is_masked = bool(
            banned or params.min_tokens or params.ignore_eos or params.bad_words or params.allowed_token_ids
        )
        native_guide = None if is_masked else self._native_guide(request.structured_output)
        is_shaped = _is_shaped(request.params.sampling)
        edits = self._masks(request, ends, None if native_guide else request.structured_output, banned)
        if is_shaped:
            edits.append(Shaping(request.params.sampling, bias, request.prompt_token_ids))
        keywords = _ending(request, ends, self.end_id) | _drawing(request.params.sampling) | _logits(request)
        dead_end = None
        if edits:
            taken = ends.union(params.sampling.logit_bias, params.allowed_token_ids)
            dead_end = next((token_id for token_id in self.unused if token_id not in taken), self.unused[0])
            keywords["logits_processor"] = LogitsChain(
                edits, self.vocabulary.size, dead_end, is_called_per_chunk=self.is_called_per_chunk
            )
        return SamplingPlan(
            keywords={**keywords, "detokenize": False},
            biases={} if is_shaped else bias | dict.fromkeys(banned, -math.inf),
            native_guide=native_guide,
            ends=ends,
            dead_end=dead_end,
        )

    @property
    def end_id(self) -> int:
        """The one end token that TensorRT-LLM knows as such; the others are stop tokens to it."""
        return min(self.vocabulary.eos_token_ids)

    def _ends(self, request: EngineRequest) -> frozenset[int]:
        eos = frozenset() if request.params.ignore_eos else self.vocabulary.eos_token_ids.union(request.end_token_ids)
        return eos.union(request.params.stop_token_ids)

    def _native_guide(self, guide: StructuredOutput | None) -> Mapping[str, Any] | None:
        if guide is None or self.guided_decoding is not GuidedDecoding.XGRAMMAR or guide.format not in _NATIVE_GUIDES:
            return None
        return _NATIVE_GUIDES[guide.format](guide.content)

    def _masks(
        self, request: EngineRequest, ends: frozenset[int], guide: StructuredOutput | None, banned: frozenset[int]
    ) -> list[LogitsEdit]:
        """Return the masks. TensorRT-LLM's `min_tokens` holds back one end token, not the others."""
        has_held_ends = bool(request.params.min_tokens and ends)
        is_constrained = guide is not None or bool(request.params.bad_words or request.params.allowed_token_ids)
        if not is_constrained and not has_held_ends and not (banned and _is_shaped(request.params.sampling)):
            return []
        return [AllowedTokens(self.vocabulary, request, guide, banned=banned, ends=ends)]


def embedding_bias(biases: Mapping[int, float], vocab_size: int) -> Floats:
    """Return biases as [vocab_size]."""
    vector = np.zeros(vocab_size, dtype=np.float32)
    vector[list(biases)] = list(biases.values())
    return vector


def is_scored(request: EngineRequest) -> bool:
    """Whether the log probabilities of the prompt's tokens are asked for."""
    return bool(request.echo) and request.params.num_logprobs is not None


def _biases(sampling: SamplingParams) -> tuple[dict[int, float], frozenset[int]]:
    """Return what is added to which tokens, and the tokens that are banned."""
    banned = frozenset(token_id for token_id, bias in sampling.logit_bias.items() if bias <= _BAN_BIAS)
    return {token_id: bias for token_id, bias in sampling.logit_bias.items() if token_id not in banned}, banned


def _is_shaped(sampling: SamplingParams) -> bool:
    """Whether our own steps come before the draw; then the bias is one of them, since it comes first."""
    neutral = SamplingParams()
    names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    is_penalized = any(getattr(sampling, name) != getattr(neutral, name) for name in names)
    return is_penalized or (sampling.temperature > 0.0 and (bool(sampling.min_p) or sampling.mirostat is not None))


def _ending(request: EngineRequest, ends: frozenset[int], end_id: int) -> dict[str, Any]:
    """Return when to end."""
    keywords: dict[str, Any] = {
        "end_id": end_id,
        "pad_id": end_id,
        "max_tokens": max(1, request.max_tokens),  # it must draw one; where none is wanted, it is dropped
        "ignore_eos": request.params.ignore_eos,
        "include_stop_str_in_output": True,  # the engine stage wants to see what ended a sequence
    }
    if not request.params.ignore_eos:
        ends -= {end_id}
        keywords["min_tokens"] = request.params.min_tokens  # its own default, 1, forbids an empty completion
    return keywords | ({"stop_token_ids": sorted(ends)} if ends else {})


def _logits(request: EngineRequest) -> dict[str, Any]:
    """Return what to tell of the distributions."""
    keywords: dict[str, Any] = {}
    if request.params.num_logprobs is not None:
        keywords["logprobs"] = max(1, request.params.num_logprobs)  # 0 would mean none
    if is_scored(request):
        keywords["return_context_logits"] = True
    return keywords


def _drawing(sampling: SamplingParams) -> dict[str, Any]:
    """Return how to draw, so that both backends understand it alike.

    A temperature without top_p may still be greedy on the engine backend, whose own default of top_p is 0.
    """
    is_drawn_already = sampling.mirostat is not None  # one token is left
    if sampling.temperature == 0.0 or sampling.top_p == 0.0 or sampling.top_k == 1 or is_drawn_already:
        return {"seed": sampling.seed, "top_k": 1}
    return {
        "seed": sampling.seed,  # its own default is the same for every request
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": max(0, sampling.top_k),
    }
