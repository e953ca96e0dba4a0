"""Fields of a request that /set knows, and the names that users of Ollama type."""

from __future__ import annotations

import json
from typing import Any

SETTINGS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "logit_bias",
    "stop",
    "response_format",
    "reasoning_effort",
    "enable_thinking",
    "chat_template_kwargs",
)
OF_OLLAMA = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}  # its name and ours

_OF_MODEL = "a property of the served model: `conch build --help` lists them"
_NO_SAMPLER = "no engine here samples with this: top_p or min_p may do"
# Ollama's words without a field, each with the reason or the way here.
REFUSED = {
    "num_ctx": "`conch run MODEL --context-window N` sets the window, and `conch serve` too",
    "num_keep": "the system prompt stays, and the oldest questions make room",
    "repeat_last_n": "repetition_penalty counts the whole prompt and completion",
    "penalize_newline": "repetition_penalty counts all tokens",
    "typical_p": _NO_SAMPLER,
    "tfs_z": _NO_SAMPLER,
    **dict.fromkeys(("num_gpu", "main_gpu", "num_thread", "num_batch", "use_mmap", "numa"), _OF_MODEL),
    **dict.fromkeys(("wordwrap", "nowordwrap"), "the terminal itself wraps lines"),
}


def value_of(text: str) -> Any:
    """Return the value that a text has as JSON, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
