"""Log probabilities from what TensorRT-LLM returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from model_repository.contract.output import DrawnLogprob
from model_repository.engine.logprobs import token_logprob
from model_repository.engine.tensorrt_llm.tensors import to_array


def drawn_logprob(entry: Mapping[int, Any], token_id: int, num_top: int) -> DrawnLogprob:
    """Return a drawn token's log probability and the most likely ones; of equal ones the lower ids.

    Args:
        entry: token id to TensorRT-LLM's Logprob: the most likely ones, and the token drawn.
        token_id: the token drawn.
        num_top: how many of the most likely ones are wanted.
    """
    values = sorted(
        ((item, float(value.logprob)) for item, value in entry.items()), key=lambda pair: (-pair[1], pair[0])
    )
    return DrawnLogprob(float(entry[token_id].logprob), tuple(values[:num_top]))


def prompt_logprobs(
    context_logits: Any, prompt_token_ids: Sequence[int], num_top: int, vocab_size: int
) -> Iterator[DrawnLogprob]:
    """Yield the log probability of each prompt token; takes milliseconds a token, so not for an event loop.

    TensorRT-LLM's own `prompt_logprobs` hold the most likely tokens only, of which the prompt's may be none.

    Args:
        context_logits: [num_prompt_tokens, num_logits], at least vocab_size; row t is what follows token t.
        prompt_token_ids: the prompt.
        num_top: how many of the most likely ones are wanted.
        vocab_size: the tokens that there are.
    """
    yield DrawnLogprob(None)  # nothing precedes the first token
    for row, token_id in enumerate(prompt_token_ids[1:]):
        yield token_logprob(to_array(context_logits[row])[:vocab_size], token_id, num_top)
