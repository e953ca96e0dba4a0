"""What the tokenizer stage does with a request: all of it but Triton."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from model_repository import contract
from model_repository.capabilities import Capability
from model_repository.contract import TensorSpec
from model_repository.errors import InvalidRequest
from model_repository.generation import GenerationRequest, Guide, Prompt, TextPrompt
from model_repository.prompt_reading import read_prompt
from model_repository.request_reading import tensors_to_request
from model_repository.stage_messages import EngineRequest, TokenizeOptions
from model_repository.tensors import Tensors, array, json_value
from model_repository.tokenizer.checks import check_capabilities, fitting_max_tokens
from model_repository.tokenizer.constraint import callable_tools, constraint
from model_repository.tokenizer.prompt import PromptEncoder, prompt_field
from model_repository.tokenizer.recent import Recent
from model_repository.tokenizer.text_limit import check_num_bytes, window_limit
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from model_repository.tool_formats import TOOL_FORMATS, ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """What the stage's config.pbtxt says of the model."""

    context_window: int  # tokens of prompt and completion together
    runtime: str
    capabilities: frozenset[Capability]
    tool_call_format: str

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> StageConfig:
        """Read the parameters of config.pbtxt."""
        return cls(
            context_window=int(parameters["context_window"]),
            runtime=parameters["runtime"],
            capabilities=frozenset(map(Capability, json.loads(parameters["capabilities"]))),
            tool_call_format=parameters["tool_call_format"],
        )


def _num_bytes(found: tuple[Guide | None] | InvalidRequest) -> int:
    return 0 if isinstance(found, InvalidRequest) or found[0] is None else sys.getsizeof(found[0].content)


class GrammarNotChecked(Exception):
    """The request's grammar must be checked first, and the caller does not want to wait for it."""

    def __init__(self, sender: str) -> None:
        super().__init__()
        self.sender = sender


class TokenizerStage:
    """Turns a request for a text into a request for the engine, or refuses it.

    Args:
        files: the model's tokenizer and chat templates.
        byte_table: the bytes of each token id.
        config: the model.
        check: returns the constraint of a request, as `constraint` does, within bounds where the request is a client's.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        byte_table: Sequence[bytes],
        config: StageConfig,
        check: Callable[[GenerationRequest, ToolFormat], Guide | None] = constraint,
    ) -> None:
        self._config = config
        self._tool_format = TOOL_FORMATS[config.tool_call_format]
        self._prompts = PromptEncoder(files, byte_table, config.tool_call_format)
        tokens = (*byte_table, *(token.encode() for token in self._prompts.vocabulary.added_tokens))
        self._limit = window_limit(config.context_window, tokens)
        self._check_constraint = check
        # A refusal is kept too: whoever sends the same again does not pay for it with the time of others.
        self._constraints: Recent[tuple[Guide | None] | InvalidRequest] = Recent(_num_bytes)

    def answer(self, tensors: Tensors, *, may_wait: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Return the stage's outputs for its inputs: a request for the engine, or only the tokens of its prompt.

        Raises:
            InvalidRequest: as `tensors_to_request`, `encode` and `tokenize`.
            GrammarNotChecked: as `encode`.
        """
        if contract.TOKENIZE.name in tensors:
            options = TokenizeOptions.from_json(json_value(tensors, contract.TOKENIZE, None))
            token_ids, strings = self.tokenize(read_prompt(tensors), options)
            outputs: tuple[tuple[TensorSpec, Sequence[Any]], ...] = (
                (contract.PROMPT_TOKEN_IDS, token_ids),
                (contract.TOKEN_STRINGS, strings),
            )
        else:
            request = self.encode(tensors_to_request(tensors), may_wait=may_wait)
            outputs = (
                (contract.PROMPT_TOKEN_IDS, request.prompt_token_ids),
                (contract.ENGINE_PARAMS, (request.params_json(),)),
            )
        return {spec.name: array(spec, *elements) for spec, elements in outputs}

    def encode(self, request: GenerationRequest, *, may_wait: bool = True) -> EngineRequest:
        """Return the engine's request: prompt as token ids, `max_tokens` lowered to what the window leaves.

        Raises:
            GrammarNotChecked: it has a grammar that was not checked lately, and the caller may not wait.
            PromptTooLong: prompt and completion do not fit the context window.
            Unsupported: the model or its runtime cannot honour it.
            InvalidRequest: it is malformed, not in the vocabulary, or refused by the chat template.
        """
        guide = self._constraint(request, may_wait=may_wait)
        self._check(request if guide == request.guide else dataclasses.replace(request, guide=guide))
        field = prompt_field(request.prompt).name
        prompt = self._prompts.encode(request.prompt, is_echo=request.is_echo, limit=self._limit)
        # A text without tokens of its own is no prompt, even where the tokenizer puts a BOS token before it.
        if not prompt.token_ids or request.prompt == TextPrompt(""):
            raise InvalidRequest("the prompt is empty", field)
        return EngineRequest(
            prompt_token_ids=prompt.token_ids,
            max_tokens=fitting_max_tokens(request, len(prompt.token_ids), self._config.context_window, field),
            sampling=request.sampling,
            stop=request.stop,
            stop_token_ids=request.stop_token_ids,
            bad_words=request.bad_words,
            end_token_ids=() if request.ignore_eos else prompt.end_token_ids,
            include_stop=request.include_stop,
            ignore_eos=request.ignore_eos,
            min_tokens=request.min_tokens,
            echo=prompt.echo,
            num_logprobs=request.num_logprobs,
            has_token_ids=request.has_token_ids,
            has_usage=request.has_usage,
            has_timing=request.has_timing,
            guide=guide,
            sender=request.sender,
            lora_name=request.lora_name,
            is_stream=request.is_stream,
            priority=request.priority,
            cancel_key=request.cancel_key,
            delivery_key=request.delivery_key,
            delivery_number=request.delivery_number,
            stream_interval_ms=request.stream_interval_ms,
        )

    def tokenize(self, prompt: Prompt, options: TokenizeOptions) -> tuple[tuple[int, ...], list[str]]:
        """Return a prompt's token ids, even if too many for the window, and each token in the vocabulary's own form.

        Raises:
            Unsupported, InvalidRequest: as of a request with this prompt.
        """
        encoded = self._prompts.encode(prompt, add_special_tokens=options.add_special_tokens, limit=check_num_bytes)
        token_ids = encoded.token_ids
        return token_ids, [self._prompts.vocabulary.token_string(token_id) for token_id in token_ids]

    def _constraint(self, request: GenerationRequest, *, may_wait: bool) -> Guide | None:
        made_of = (request.guide, callable_tools(request), request.ignore_eos)
        if made_of[:2] == (None, None):
            return None

        def check() -> tuple[Guide | None] | InvalidRequest:
            if not may_wait:
                raise GrammarNotChecked(request.sender)
            try:
                return (self._check_constraint(request, self._tool_format),)
            except InvalidRequest as exc:
                return type(exc)(exc.text, exc.field)  # without the frames that this one holds

        found = self._constraints.get(made_of, check)
        if isinstance(found, InvalidRequest):
            raise type(found)(found.text, found.field)
        return found[0]

    def _check(self, request: GenerationRequest) -> None:
        has_tools = callable_tools(request) is not None
        check_capabilities(request, self._config.capabilities, self._config.runtime, has_tools=has_tools)
        vocabulary = self._prompts.vocabulary
        vocabulary.check(request.sampling.logit_bias, contract.LOGIT_BIAS_TOKEN_IDS.name)
        vocabulary.check(request.stop_token_ids, contract.STOP_TOKEN_IDS.name)
