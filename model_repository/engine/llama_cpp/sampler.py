"""Draws the tokens of one sequence in llama.cpp: a chain of llama.cpp's own samplers."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller

import numpy as np
from numpy.typing import NDArray

from model_repository.contract.request import IMAGE_PLACE, EngineRequest, SamplingParams
from model_repository.engine.llama_cpp.library import llama
from model_repository.engine.logprobs import is_distribution
from model_repository.engine.request_checks import constraint_field, split_biases
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import CannotContinue, InternalError, InvalidRequest, NotFinite, StageError

logger = logging.getLogger(__name__)

_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp replaces this seed by a random one

type _Link = Callable[[llama.LlamaSampler], object]  # adds itself to a chain


class TokenSampler:
    """Draws the tokens of a request, one after another.

    The links of the chain: logit bias and bans; repetition penalty, over prompt and completion; frequency and presence
    penalties, over the completion; temperature; top_k; top_p; min_p; the draw. Mirostat's link replaces the last four.
    At temperature 0 the likeliest token after bias and penalties wins. As in vLLM, top_k, top_p and min_p truncate the
    distribution after bias, penalties and temperature.

    Under a constraint the first draw is free, and only a token that the mask forbids is drawn again from the allowed
    tokens: most tokens are allowed, and a draw under a mask costs more. The second draw uses the next random number. So
    an allowed token of probability p comes with p + (1 - P) * p / P = p / P, where P is the sum over all allowed
    tokens: the same as under a mask. With top_k, top_p or min_p the free draw keeps the allowed part of the truncated
    distribution, and the second draw truncates the allowed tokens, as llama.cpp's own server does.

    The random numbers of a draw follow from the seed and the number of tokens before it. So a completion that is
    resumed goes on as if it had never been cut. Mirostat's estimate also follows from the logits of all tokens. So
    there is a draw for each resumed token, and the resumed token takes the place of the drawn one.

    Args:
        context_window: the number of tokens that penalties consider.
    """

    def __init__(
        self,
        request: EngineRequest,
        *,
        vocab_size: int,
        context_window: int,
        eos_token_ids: frozenset[int],
        constraint: TokenConstraint | None = None,
    ) -> None:
        sampling = request.params.sampling
        self._vocab_size = vocab_size
        self._constraint = constraint
        self._allowed: NDArray[np.bool_] | None = None  # the mask of the next token
        self._error: StageError | None = None  # in place of the mask
        self._new_token_id: int | None = None  # drawn; the constraint does not know it yet
        self._constraint_field = constraint_field(request)
        # Every mirostat draw changes its estimate, so none may be discarded.
        self._may_draw_twice = sampling.mirostat is None
        self._biases, self._banned = split_biases(sampling)
        self._ends = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos:
            self._ends |= eos_token_ids.union(request.end_token_ids)
        self._redrawn = deque(request.resumed_token_ids if request.is_redrawn else ())  # still to draw
        self._num_drawn = len(request.replayed_token_ids)
        self._num_to_min_tokens = max(0, request.params.min_tokens - self._num_drawn)  # still to draw
        self._is_greedy = sampling.temperature == 0.0
        self._likeliest = _chain(methodcaller("add_greedy"))
        self._is_checked = False  # the logits of the first token are finite
        self._links = _links(sampling, vocab_size, context_window)
        is_drawn = sampling.temperature != 0.0 and sampling.mirostat is None
        self._seed = sampling.seed if is_drawn else None  # of the last link, which draws
        self._chain = self._build(self._banned_now())
        if sampling.repetition_penalty != 1.0:
            penalty = self._chain.chain_get(1)
            for token_id in request.prompt_token_ids:  # only this penalty counts the prompt
                if token_id != IMAGE_PLACE:
                    penalty.accept(token_id)
        for token_id in request.replayed_token_ids:
            self._chain.accept(token_id)

    @property
    def needs_mask(self) -> bool:
        """Whether `compute_mask` must be called before the next draw."""
        return self._constraint is not None and self._allowed is None and self._error is None

    def compute_mask(self) -> None:
        """Compute the mask of the next token; from any thread. The next draw raises what is wrong with it."""
        assert self._constraint is not None, "it needs no mask"
        try:
            if self._new_token_id is None or self._constraint.accept_token(self._new_token_id):
                self._allowed = self._constraint.allowed()
            else:
                self._error = self._nothing_can_follow()
        except StageError as error:
            self._error = error
        except BaseException:  # a panic in Rust code too
            logger.exception("a mask could not be computed")
            self._error = InternalError()

    def draw(self, context: llama.LlamaContext, row: int) -> int:
        """Draw the next token from a row of the context's logits.

        Raises:
            InvalidRequest: the request rules out every token.
            NotFinite: the logits give no probabilities.
        """
        token_id: int
        if self._seed is not None:
            self._chain.chain_remove(len(self._links))
            self._chain.add_dist(_fold_seed(self._seed, self._num_drawn))
        self._num_drawn += 1
        if self._constraint is None:
            token_id = self._chain.sample(context, row)
            self._check(context, row, token_id if self._is_greedy else None)
        else:
            self._check(context, row)
            if self.needs_mask:
                self.compute_mask()
            token_id = self._draw_allowed(context, row)
        if token_id in (self._banned_now() if self._constraint is None else self._banned):
            raise InvalidRequest("every token is ruled out, by this and by min_tokens", "logit_bias_token_ids")
        if self._num_to_min_tokens:
            self._num_to_min_tokens -= 1
            if not self._num_to_min_tokens:
                self._chain = self._rebuilt(self._banned)
        if self._redrawn:
            token_id = self._new_token_id = self._redrawn.popleft()
        return token_id

    def _check(self, context: llama.LlamaContext, row: int, likeliest: int | None = None) -> None:
        """Check that the logits give each token a probability.

        If the hidden state is not finite, all logits are NaN, and llama.cpp finds the first token the likeliest. If a
        row of the last matrix is not finite, some logits are NaN, for each token of each text. So a look at all logits
        is necessary for the first token of a text alone, and for those that seem to be NaN.

        Args:
            likeliest: the likeliest token, if it is known. Biases and penalties leave a NaN as it is.

        Raises:
            NotFinite: they do not.
        """
        if self._is_checked:
            if likeliest is None:
                likeliest = self._likeliest.sample(context, row)
            if likeliest != 0:
                return
        # With a NaN or an infinity the shares have no sum, and llama.cpp draws the last token. Its own copy of the
        # logits takes a fifth of the time of a Python list.
        drawn = _chain(methodcaller("add_dist", 0)).sample(context, row)
        if drawn == self._vocab_size - 1 and not is_distribution(context.get_logits_ith(row)):
            raise NotFinite
        self._is_checked = True

    def _draw_allowed(self, context: llama.LlamaContext, row: int) -> int:
        if self._error is not None:
            raise self._error
        allowed, self._allowed = self._allowed, None
        assert allowed is not None, "it is computed"
        if self._may_draw_twice:
            trial = self._chain.clone()
            self._new_token_id = trial.sample(context, row)
            if allowed[self._new_token_id]:
                self._chain = trial
                return self._new_token_id
            # With the same random number, the neighbour of the refused token would come too often.
            _copy_link(trial, self._chain, len(self._links))
        banned = [*self._banned, *np.flatnonzero(~allowed).tolist()]
        if self._num_to_min_tokens and len(held := self._ends.union(banned)) < self._vocab_size:
            banned = [*held]  # otherwise an end is all that can follow
        masked = self._rebuilt(banned)
        self._new_token_id = masked.sample(context, row)
        if not allowed[self._new_token_id]:
            raise self._nothing_can_follow()
        self._copy_state(masked, self._chain)
        return self._new_token_id

    def _nothing_can_follow(self) -> CannotContinue:
        text = "nothing can follow: every token is ruled out, with bad_words or logit_bias"
        return CannotContinue(text, self._constraint_field)

    def _banned_now(self) -> frozenset[int]:
        return self._banned | self._ends if self._num_to_min_tokens else self._banned

    def _rebuilt(self, banned: Iterable[int]) -> llama.LlamaSampler:
        """Return the chain in its present state, but with these tokens banned."""
        chain = self._build(banned)
        self._copy_state(self._chain, chain)
        return chain

    def _build(self, banned: Iterable[int]) -> llama.LlamaSampler:
        """Return a new chain: the biases, then the other links."""
        biases = [*self._biases.items(), *zip(banned, itertools.repeat(-math.inf))]
        return _chain(methodcaller("add_logit_bias", self._vocab_size, biases), *self._links)

    def _copy_state(self, source: llama.LlamaSampler, target: llama.LlamaSampler) -> None:
        """Copy random number generator, penalties' history and mirostat's estimate; the biases have no state."""
        for index in range(1, 1 + len(self._links)):
            _copy_link(source, target, index)


def _chain(*links: _Link) -> llama.LlamaSampler:
    chain = llama.LlamaSampler(llama.LlamaSamplerChainParams())
    for add_to in links:
        add_to(chain)
    return chain


def _copy_link(source: llama.LlamaSampler, target: llama.LlamaSampler, index: int) -> None:
    source.chain_get(index).copy_to(target.chain_get(index))


def _links(sampling: SamplingParams, vocab_size: int, context_window: int) -> Sequence[_Link]:
    """Return the links behind the biases."""
    links: list[_Link] = []
    scope, frequency, presence = (vocab_size, context_window), sampling.frequency_penalty, sampling.presence_penalty
    if sampling.repetition_penalty != 1.0:
        links.append(methodcaller("add_penalties", *scope, sampling.repetition_penalty, 0.0, 0.0))
    if frequency or presence:
        links.append(methodcaller("add_penalties", *scope, 1.0, frequency, presence))
    if sampling.temperature == 0.0:
        return [*links, methodcaller("add_greedy")]
    links.append(methodcaller("add_temp", sampling.temperature))
    seed = _fold_seed(sampling.seed)
    if sampling.mirostat is not None:  # llama.cpp's target is in bits, too
        mirostat = sampling.mirostat
        return [*links, methodcaller("add_mirostat_v2", seed, mirostat.target, mirostat.learning_rate)]
    if sampling.top_k:
        links.append(methodcaller("add_top_k", sampling.top_k))
    if sampling.top_p < 1.0:
        links.append(methodcaller("add_top_p", sampling.top_p, 1))
    if sampling.min_p:
        links.append(methodcaller("add_min_p", sampling.min_p, 1))
    return [*links, methodcaller("add_dist", seed)]


def _fold_seed(seed: int, num_drawn: int = 0) -> int:
    """Return 32 bits of a 64-bit seed and a position, for llama.cpp. Nearby ones give distant results."""
    data = seed.to_bytes(8, "little") + num_drawn.to_bytes(8, "little")
    folded = int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little")
    return 0 if folded == _RANDOM_SEED else folded
