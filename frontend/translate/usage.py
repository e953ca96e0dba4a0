"""Token counts of a request, from those of its completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from frontend.protocol.answers import Usage
from model_repository.contract import output


def total_usage(usages: Mapping[int, output.Usage], num_per_prompt: int) -> Usage:
    """Return the counts of a request: each prompt counts once, every completion that was drawn of it counts.

    Args:
        usages: by completion, those of one prompt beside each other; of those that have said something.
        num_per_prompt: how many completions a prompt has.
    """
    prompts = defaultdict[int, list[output.Usage]](list)
    for index, usage in usages.items():
        prompts[index // num_per_prompt].append(usage)
    prompt_tokens = sum(same[0].num_input_tokens for same in prompts.values())
    completion_tokens = sum(each.num_output_tokens for each in usages.values())
    # Completions of one prompt reuse each other's cells: what was there before is what the least of them found.
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
