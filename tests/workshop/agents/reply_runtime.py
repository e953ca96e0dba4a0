"""A runtime that plays the replies of a file in place of sampling. An import adds it to the table of runtimes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer

from model_repository.capabilities import Capability
from model_repository.contract.request import EngineRequest
from model_repository.engine.synthetic import SyntheticRuntime
from model_repository.model_parameters import ModelParameters
from model_repository.runtimes import RUNTIMES, RuntimeEntry
from model_repository.tool_formats import TOOL_FORMATS, ToolFormat

NAME = "replies"
REPLIES = Path(__file__).parent / "replies.yaml"


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any] = {}


class Reply(Struct, frozen=True, forbid_unknown_fields=True):
    """A completion, and the prompts that it belongs to."""

    when: str  # regular expression that is found in the prompt
    thinking: str = ""  # left out where the request has switched thinking off
    text: str = ""
    calls: tuple[Call, ...] = ()

    def completion(self, request: EngineRequest, tool_format: ToolFormat) -> str:
        """Write the reply as a model with this notation of calls does."""
        thinking = ""
        if request.thinking is not None:
            markers = request.thinking.format
            thinking = f"{markers.begin * (not request.thinking.is_open)}{self.thinking}{markers.end}"
        calls = [(call.name, json.dumps(call.arguments)) for call in self.calls]
        parts = (self.text, tool_format.calls_text(calls) if calls else "")
        return thinking + "\n".join(part for part in parts if part)


class ReplyRuntime(SyntheticRuntime):
    """Plays a reply: the first one with a `when` that matches the prompt. It enforces no schema or grammar."""

    def __init__(self, config: ModelParameters, byte_table: Sequence[bytes]) -> None:
        super().__init__(config, byte_table)
        self._byte_table = byte_table
        self._tool_format = TOOL_FORMATS[config.tool_call_format]
        self._tokenizer = Tokenizer.from_file(str(config.artifact_dir / "tokenizer" / "tokenizer.json"))
        self._replies = msgspec.yaml.decode(REPLIES.read_bytes(), type=tuple[Reply, ...])

    def _completion(self, request: EngineRequest) -> Iterator[int]:
        prompt = b"".join(self._byte_table[token_id] for token_id in request.prompt_token_ids).decode()
        reply = next(reply for reply in self._replies if re.search(reply.when, prompt, re.DOTALL))
        text = reply.completion(request, self._tool_format)
        return iter([*self._tokenizer.encode(text, add_special_tokens=False).ids, self._eos_token_id])


RUNTIMES[NAME] = RuntimeEntry(f"{__name__}:{ReplyRuntime.__name__}", frozenset(Capability) - {Capability.LOGPROBS})
