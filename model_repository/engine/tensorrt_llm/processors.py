"""Edits a request's logits before TensorRT-LLM draws from them, in one of its worker processes.

Each edit is pickled to the workers before its first use, so it may depend only on the request and on the tokens drawn
so far. One rank of an engine runs it, and the others get the drawn token. On the PyTorch backend all ranks of the last
pipeline stage run it, and each draws by itself: if one decided otherwise, their KV caches would part without an error.

TensorRT-LLM 1.2 has penalties and min_p of its own. But its PyTorch backend accepts them without effect by default, and
its engines count the prompt's tokens for presence and frequency penalties, which is wrong.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from model_repository.byte_table import load_byte_table
from model_repository.contract.request import EngineRequest, Mirostat, SamplingParams
from model_repository.engine.bad_words import TokenIndex
from model_repository.engine.constraint import ConstraintCompiler
from model_repository.engine.request_checks import combined_constraint
from model_repository.engine.tensorrt_llm import tensors
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import InvalidRequest


class LogitsEdit(Protocol):
    """One change of the logits of one request."""

    def __call__(self, logits: Any, drawn: Sequence[int]) -> bool:
        """Change the logits in place, given all tokens drawn so far; return whether any token can follow."""
        ...


class LogitsChain:
    """Several edits as one callable, for both backends.

    Args:
        edits: in their order.
        vocab_size: the number of tokens; further logits only pad the matrix, and are banned.
        dead_end: the token to draw if no other token can follow, and only then. It informs the engine stage; an
            exception here would end the whole process.
        is_called_per_chunk: each chunk of a prompt brings a call. Only the last call counts, but it looks like the
            others.
        num_given: the last tokens of the prompt that an earlier call of TensorRT-LLM has drawn.
        hidden_ends: where sequences are paused: end tokens that TensorRT-LLM does not know, and behind which it draws
            tokens that are dropped. None: there are no pauses.
    """

    def __init__(
        self,
        edits: Sequence[LogitsEdit],
        vocab_size: int,
        dead_end: int,
        *,
        is_called_per_chunk: bool = False,
        num_given: int = 0,
        hidden_ends: frozenset[int] | None = None,
    ) -> None:
        self._edits = tuple(edits)
        self._vocab_size = vocab_size
        self._dead_end = dead_end
        self._num_before: int | None = None  # the number of listed prompt tokens
        self._is_called_per_chunk = is_called_per_chunk
        self._num_given = num_given
        self._num_expected = num_given  # the number of tokens that must have been drawn at the next call
        self._hidden_ends = hidden_ends
        self._has_ended = False

    # The names are TensorRT-LLM's, which passes some of them as keywords.
    def __call__(
        self, req_id: int, logits: Any, token_ids: list[list[int]], stream_ptr: int | None, client_id: int | None
    ) -> None:
        """Edit the logits of the next token.

        Source: tensorrt_llm.sampling_params.LogitsProcessor.__call__.
        """
        [tokens] = token_ids  # one beam
        if self._num_before is None:
            self._num_before = len(tokens) - self._num_given
        drawn = tokens[self._num_before :]
        # With fewer tokens, the last one has not come back from the GPU yet. With more, there was a pause, after which
        # TensorRT-LLM drew a token without a call.
        is_known = len(drawn) >= self._num_expected or (self._is_called_per_chunk and len(drawn) == self._num_given)
        if self._hidden_ends is not None:
            is_known = is_known and len(drawn) <= self._num_expected
            self._has_ended = self._has_ended or (is_known and not self._hidden_ends.isdisjoint(drawn[-1:]))
        self._num_expected = len(drawn) + 1
        with tensors.on_stream(stream_ptr):
            tensors.ban_from(logits, self._vocab_size)
            tensors.ban_token(logits, self._dead_end)
            if not is_known or not (self._has_ended or all(edit(logits, drawn) for edit in self._edits)):
                tensors.keep_only(logits, self._dead_end)


@dataclass(frozen=True, slots=True)
class VocabularyFile:
    """The file from which a worker reads the vocabulary, so that requests need not carry it."""

    byte_table: Path
    size: int
    eos_token_ids: frozenset[int]


@functools.lru_cache(maxsize=8)
def _compiler(vocabulary: VocabularyFile) -> ConstraintCompiler:
    return ConstraintCompiler(load_byte_table(vocabulary.byte_table), vocabulary.eos_token_ids, vocabulary.size)


@functools.lru_cache(maxsize=8)
def _token_index(vocabulary: VocabularyFile) -> TokenIndex:
    return TokenIndex(load_byte_table(vocabulary.byte_table), vocabulary.size)


@dataclass(slots=True)
class AllowedTokens:
    """Bans tokens that the request's constraints forbid, other banned tokens, and end tokens before `min_tokens`.

    If nothing but an end can follow, it may come before `min_tokens`.
    """

    vocabulary: VocabularyFile
    request: EngineRequest
    has_grammar: bool = False  # the request's counts here; otherwise it has none, or the runtime itself enforces it
    banned: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    _constraint: TokenConstraint | None = field(default=None, init=False)
    _num_accepted: int = field(default=0, init=False)

    def __call__(self, logits: Any, drawn: Sequence[int]) -> bool:
        """Ban tokens; return False if all are banned."""
        try:
            is_banned = ~self._allowed(drawn)
        except InvalidRequest:  # the grammar is too complex, or has taken too much work
            return False
        is_banned[list(self.banned)] = True
        if is_banned.all():
            return False
        if len(drawn) < self.request.params.min_tokens:
            is_held = is_banned.copy()
            is_held[list(self.ends)] = True
            is_banned = is_banned if is_held.all() else is_held
        if is_banned.any():
            tensors.ban(logits, is_banned)
        return True

    def _allowed(self, drawn: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return the tokens that the constraints allow, bool [vocab_size]. After a forbidden token all are False."""
        if self._constraint is None:
            self._constraint = self._begun()
        if self._constraint is None:
            return np.ones(self.vocabulary.size, dtype=np.bool_)
        for token_id in drawn[self._num_accepted :]:
            if not self._constraint.accept_token(token_id):
                return np.zeros(self.vocabulary.size, dtype=np.bool_)
        self._num_accepted = len(drawn)
        return self._constraint.allowed()

    def _begun(self) -> TokenConstraint | None:
        vocabulary, started = self.vocabulary, None
        if self.has_grammar:
            params, num_bytes = self.request.params, self.request.grammar_bytes
            owner = params.cache_salt or params.sender
            started = _compiler(vocabulary).start(self.request.grammar, owner, num_bytes)
        return combined_constraint(self.request, started, lambda: _token_index(vocabulary), vocabulary.size)


@dataclass(slots=True)
class MirostatDraw:
    """Mirostat 2.0: the state of its estimate. Source: arXiv:2007.14966, in llama.cpp's form."""

    mirostat: Mirostat
    seed: int
    _position: int = field(default=0, init=False)  # the last draw's
    _limit: float = field(init=False)  # bits of surprise above which tokens are cut off
    _next_limit: float = field(init=False)

    def __post_init__(self) -> None:
        self._limit = self._next_limit = 2.0 * self.mirostat.target

    def draw(self, logits: tensors.Floats, position: int) -> int | None:
        """Draw a token from logits [vocab_size], some of them -inf; None if all are.

        A second draw at the same position replaces the first one.
        """
        if position != self._position:
            self._position, self._limit = position, self._next_limit
        likeliest = int(logits.argmax())
        if not np.isfinite(logits[likeliest]):
            return None
        shares = np.exp((logits - logits[likeliest]).astype(np.float64))
        shares /= shares.sum()
        least = 2.0 ** min(0.0, -self._limit)
        kept = np.flatnonzero(shares >= min(least, shares[likeliest]))
        shares = shares[kept] / shares[kept].sum()
        index = int(np.random.default_rng((self.seed, position)).choice(len(kept), p=shares))
        surprise = -math.log2(shares[index])
        self._next_limit = self._limit - self.mirostat.learning_rate * (surprise - self.mirostat.target)
        return int(kept[index])


class Shaping:
    """Bias, penalties, and min_p or Mirostat, in this order. The other steps are TensorRT-LLM's.

    Args:
        bias: token id to the amount added to its logit.
        prompt_token_ids: counted by the repetition penalty.
    """

    def __init__(self, sampling: SamplingParams, bias: Mapping[int, float], prompt_token_ids: Sequence[int]) -> None:
        self._sampling = sampling
        self._bias = dict(bias)
        self._counts: Counter[int] = Counter()  # drawn tokens
        self._num_counted = 0
        is_repetition_penalized = sampling.repetition_penalty != 1.0
        self._seen = np.unique(np.array(prompt_token_ids if is_repetition_penalized else (), dtype=np.int64))
        self._mirostat: MirostatDraw | None = None
        if sampling.mirostat is not None and sampling.temperature:  # temperature 0 takes the likeliest token
            self._mirostat = MirostatDraw(sampling.mirostat, sampling.seed)

    def __call__(self, logits: Any, drawn: Sequence[int]) -> bool:
        """Shape the logits; return False if no token is left."""
        self._count(drawn[self._num_counted :])
        tensors.shift(logits, list(self._bias), np.array(list(self._bias.values()), dtype=np.float32))
        self._penalize(logits)
        if self._mirostat is not None:
            row = tensors.to_array(logits).reshape(-1) / self._sampling.temperature
            token_id = self._mirostat.draw(row, len(drawn))
            if token_id is None:
                return False
            tensors.keep_only(logits, token_id)
        elif self._sampling.min_p and self._sampling.temperature:
            tensors.ban_below(logits, -math.log(self._sampling.min_p) * self._sampling.temperature)
        return True

    def _count(self, token_ids: Sequence[int]) -> None:
        self._num_counted += len(token_ids)
        self._counts.update(token_ids)
        if token_ids and self._sampling.repetition_penalty != 1.0:
            self._seen = np.union1d(self._seen, np.array(token_ids, dtype=np.int64))

    def _penalize(self, logits: Any) -> None:
        sampling, counts = self._sampling, self._counts
        if sampling.repetition_penalty != 1.0:
            tensors.divide(logits, self._seen, sampling.repetition_penalty)
        if sampling.presence_penalty or sampling.frequency_penalty:
            amounts = np.array(list(counts.values()), dtype=np.float32) * -sampling.frequency_penalty
            tensors.shift(logits, list(counts), (amounts - sampling.presence_penalty).astype(np.float32))
