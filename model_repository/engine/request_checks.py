"""Checks and parts of requests, for every runtime with a vocabulary of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection

from model_repository.contract.request import IMAGE_PLACE, EngineRequest, SamplingParams
from model_repository.contract.spec import token_ids_of
from model_repository.engine.bad_words import BadWords, TokenIndex
from model_repository.engine.thinking_constraint import ThinkingBudget, ThinkingConstraint
from model_repository.engine.token_constraint import AllowedTokenIds, TokenConstraint
from model_repository.errors import InvalidRequest, UnknownAdapter

_BAN_BIAS = -100.0  # a bias this low is a ban: a sum alone could leave the token possible


def check_request(
    request: EngineRequest, vocab_size: int, adapters: Collection[str], *, has_images: bool = False
) -> None:
    """Refuse unknown tokens, which may fail a runtime's whole batch, and unknown adapters.

    Raises:
        InvalidRequest, UnknownAdapter: names the input, the value and the accepted ones.
    """
    if not request.prompt_token_ids:
        raise InvalidRequest("the prompt must not be empty", "prompt_token_ids")
    ids = [("prompt_token_ids", request.prompt_token_ids), ("end_token_ids", request.end_token_ids)]
    for name, token_ids in (*ids, *token_ids_of(request.params)):
        low = IMAGE_PLACE if has_images and name == "prompt_token_ids" else 0
        unknown = next((token_id for token_id in token_ids if not low <= token_id < vocab_size), None)
        if unknown is not None:
            raise InvalidRequest(f"{unknown}: token ids are from 0 to {vocab_size - 1}", name)
    if request.params.lora_name and request.params.lora_name not in adapters:
        raise UnknownAdapter(f"{request.params.lora_name!r}: expected one of {sorted(adapters)}", "lora_name")


def split_biases(sampling: SamplingParams) -> tuple[dict[int, float], frozenset[int]]:
    """Return the biases by token, and the banned tokens."""
    banned = frozenset(token_id for token_id, bias in sampling.logit_bias.items() if bias <= _BAN_BIAS)
    return {token_id: bias for token_id, bias in sampling.logit_bias.items() if token_id not in banned}, banned


def combined_constraint(
    request: EngineRequest, grammar: TokenConstraint | None, index: Callable[[], TokenIndex], vocab_size: int
) -> TokenConstraint | None:
    """Return all constraints of a request as one; None: every token may follow.

    Args:
        request: the request.
        grammar: the request's, compiled; None: it has none, or the runtime itself enforces it.
        index: returns the vocabulary's index; called only if a constraint needs it.
        vocab_size: the number of the model's logits.
    """
    params, thinking, constraint = request.params, request.thinking, grammar
    if thinking is not None and constraint is not None and not (thinking.format.head or thinking.is_off):
        constraint = ThinkingConstraint(thinking, index(), constraint)
    if thinking is not None and thinking.budget is not None:
        constraint = ThinkingBudget(thinking, index(), constraint)
    if params.bad_words:
        constraint = BadWords(params.bad_words, index(), constraint)
    if params.allowed_token_ids:
        constraint = AllowedTokenIds(params.allowed_token_ids, vocab_size, constraint)
    return constraint


def replayed(constraint: TokenConstraint | None, request: EngineRequest) -> TokenConstraint | None:
    """Return a constraint behind the tokens of a request that are replayed.

    Raises:
        InvalidRequest: it does not allow them.
    """
    for token_id in request.replayed_token_ids:
        if constraint is not None and not constraint.accept_token(token_id):
            raise InvalidRequest(f"{token_id} cannot follow the tokens before it", "resume_token_ids")
    return constraint


def constraint_field(request: EngineRequest) -> str:
    """Return the input to blame if no token can follow: the first one that restricts tokens; empty without any."""
    restricting = {
        "guided_decoding_guide": request.grammar,
        "bad_words": request.params.bad_words,
        "allowed_token_ids": request.params.allowed_token_ids,
    }
    return next((name for name, value in restricting.items() if value), "")
