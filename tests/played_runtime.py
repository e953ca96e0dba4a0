"""A runtime that plays a text of the prompt in place of sampling. `register` adds it to the table of runtimes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from model_repository.capabilities import Capability
from model_repository.contract.request import EngineRequest
from model_repository.engine.synthetic import SyntheticRuntime
from model_repository.model_parameters import ModelParameters
from model_repository.runtimes import RUNTIMES, RuntimeEntry

NAME = "played"
_PLAYED = re.compile(r"\bPLAY\((.*)\)PLAY\b", re.DOTALL)


def prompt_of(text: str) -> str:
    """Return the prompt that has a text as its completion. In the text, `~` only ends a token."""
    return f"PLAY({text})PLAY"


class PlayedRuntime(SyntheticRuntime):
    """Plays the text of a prompt with the tokens of the vocabulary. It enforces no schema or grammar."""

    def __init__(self, config: ModelParameters, byte_table: Sequence[bytes]) -> None:
        super().__init__(config, byte_table)
        self._byte_table = byte_table
        self._tokenizer = Tokenizer.from_file(str(config.artifact_dir / "tokenizer" / "tokenizer.json"))

    def _completion(self, request: EngineRequest) -> Iterator[int]:
        found = _PLAYED.search(b"".join(self._byte_table[token_id] for token_id in request.prompt_token_ids).decode())
        parts = found[1].split("~") if found else ["Hi"]  # to a health check
        for part in parts:
            yield from self._tokenizer.encode(part, add_special_tokens=False).ids
        yield self._eos_token_id


def register() -> None:
    """Add it, in Triton's stage or for a build."""
    entry = RuntimeEntry(f"{__name__}:{PlayedRuntime.__name__}", frozenset(Capability) - {Capability.LOGPROBS})
    RUNTIMES[NAME] = entry
