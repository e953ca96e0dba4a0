"""Shared by both kinds of reply: the token counts of a request, and the padding of events."""

from __future__ import annotations

import secrets
import string
from collections import defaultdict
from collections.abc import Mapping

from frontend.protocol.answers import Usage
from model_repository.contract import output

_PADDING_BLOCK = 16  # characters
_PADDING_ALPHABET = string.ascii_letters + string.digits


def total_usage(usages: Mapping[int, output.Usage], num_per_prompt: int) -> Usage:
    """Return the token counts of a request: each prompt counts once, each completion counts.

    Args:
        usages: by the number of the completion. Completions of one prompt have consecutive numbers.
        num_per_prompt: completions of each prompt.
    """
    prompts = defaultdict[int, list[output.Usage]](list)
    for index, usage in usages.items():
        prompts[index // num_per_prompt].append(usage)
    prompt_tokens = sum(same[0].num_input_tokens for same in prompts.values())
    completion_tokens = sum(each.num_output_tokens for each in usages.values())
    # Completions of one prompt reuse each other's KV tokens: the smallest count is from before the request.
    cached_tokens = sum(min(each.num_cached_tokens for each in same) for same in prompts.values())
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "audio_tokens": 0,
        },
    }


def padding(num_chars: int) -> str:
    """Return 1 to 16 random characters that pad a text to whole blocks: event sizes then say little about the text."""
    return "".join(secrets.choice(_PADDING_ALPHABET) for _ in range(_PADDING_BLOCK - num_chars % _PADDING_BLOCK))
