"""The tokenizer stage, without Triton."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from model_repository.capabilities import Capability, callable_tools
from model_repository.contract.client_request import tensors_to_request
from model_repository.contract.codec import Tensors, message_tensor, pack, payload_of, unpack
from model_repository.contract.request import (
    ChatPrompt,
    DetokenizeRequest,
    EngineRequest,
    EngineRequestBatch,
    GenerationRequest,
    PairPrompt,
    Prompt,
    RequestBatch,
    TextPrompt,
    Thinking,
    TokenizeAnswer,
    TokenizeRequest,
)
from model_repository.contract.rules import (
    check_prompt,
    check_request,
    fitting_max_tokens,
    num_kept_tokens,
    printable_id,
)
from model_repository.contract.spec import token_ids_of
from model_repository.contract.tensors import DETOKENIZE, ENGINE_REQUESTS, REQUEST_BATCH, TEXT, TOKENIZE, TOKENS
from model_repository.errors import InvalidRequest, Unsupported, stage_error
from model_repository.model_facts import Task
from model_repository.model_parameters import ModelParameters
from model_repository.tokenizer.bounded_cache import BoundedCache
from model_repository.tokenizer.checks import check_capabilities, check_embedding
from model_repository.tokenizer.constraint import ConstraintChecker, Form, is_new_message
from model_repository.tokenizer.custom_tools import Patterns, as_functions, input_grammars
from model_repository.tokenizer.prompt import PromptEncoder, prompt_field
from model_repository.tokenizer.text_limit import check_num_bytes, longest_token, truncated_limit, window_limit
from model_repository.tokenizer.token_text import TokenText
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from model_repository.tool_formats import TOOL_FORMATS

_ANY_TEXT = Form()


def _num_bytes(found: Form | Patterns | InvalidRequest) -> int:
    match found:
        case Form(grammar):
            return sys.getsizeof(grammar)
        case InvalidRequest():
            return 0
    return sum(map(sys.getsizeof, found))


class GrammarNotChecked(Exception):
    """A grammar of the request must be checked first, and the caller cannot wait for that."""


type Message = TokenizeRequest | DetokenizeRequest | RequestBatch | GenerationRequest  # the last: a gRPC client's


class TokenizerStage:
    """Turns a request for a text into a request for the engine, or refuses it.

    Args:
        checker: reads schemas and grammars.
        sign: returns a message for the engine with its signature.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        byte_table: Sequence[bytes],
        model: ModelParameters,
        checker: ConstraintChecker,
        sign: Callable[[bytes], bytes] = lambda message: message,
    ) -> None:
        self._model = model
        self._is_encoder = model.task is not Task.GENERATE
        self._tool_format = TOOL_FORMATS[model.tool_call_format]
        has_images = Capability.IMAGES in model.capabilities
        formats = model.tool_call_format, model.reasoning_format
        self._prompts = PromptEncoder(
            files, byte_table, *formats, has_images=has_images, has_token_types=model.has_token_types
        )
        tokens = (*byte_table, *(token.encode() for token in self._prompts.vocabulary.added_tokens))
        self._token_text = TokenText(files.tokenizer, byte_table)
        self._longest = longest_token(tokens)
        self._limit = window_limit(model.context_window, self._longest)
        self._truncated_limit = truncated_limit(self._limit)
        self._checker = checker
        self._sign = sign
        # Refusals are kept too, so that repeated bad requests cost no further time.
        self._checked: BoundedCache[Form | Patterns | InvalidRequest] = BoundedCache(_num_bytes)

    def read(self, tensors: Tensors, request_id: str = "") -> Message:
        """Return the message in the stage's inputs.

        Raises:
            InvalidRequest: as `tensors_to_request`, or it is not a message.
        """
        if TOKENIZE.name in tensors:
            return unpack(TokenizeRequest, payload_of(tensors, TOKENIZE), TOKENIZE.name)
        if DETOKENIZE.name in tensors:
            return unpack(DetokenizeRequest, payload_of(tensors, DETOKENIZE), DETOKENIZE.name)
        if REQUEST_BATCH.name in tensors:
            return unpack(RequestBatch, payload_of(tensors, REQUEST_BATCH), REQUEST_BATCH.name)
        return tensors_to_request(tensors, request_id)

    def answer(self, message: Message, *, may_wait: bool = True) -> Tensors:
        """Return the stage's output for a message: requests for the engine, or only tokens or a text.

        Raises:
            InvalidRequest: as `encode`, `tokenize` and `TokenText.of`; in a batch, errors are items.
            GrammarNotChecked: as `encode`.
        """
        match message:
            case TokenizeRequest():
                return message_tensor(TOKENS, pack(self.tokenize(message, may_wait=may_wait)))
            case DetokenizeRequest():
                return message_tensor(TEXT, self._token_text.of(message).encode())
            case RequestBatch(stream, items):
                encoded = tuple((number, self._encode_item(each, may_wait=may_wait)) for number, each in items)
            case GenerationRequest():
                stream, encoded = "", ((0, self.encode(message, may_wait=may_wait)),)
        return message_tensor(ENGINE_REQUESTS, self._sign(pack(EngineRequestBatch(stream, encoded))))

    def _encode_item(self, request: GenerationRequest, *, may_wait: bool) -> EngineRequest | str:
        try:
            return self.encode(request, may_wait=may_wait)
        except GrammarNotChecked:
            raise
        except BaseException as exc:  # a panic in Rust code is not an Exception
            return stage_error(exc, printable_id(request.request_id)).message()

    def encode(self, request: GenerationRequest, *, may_wait: bool = True) -> EngineRequest:
        """Return the engine's request: prompt as token ids, `max_tokens` lowered to the room in the context window.

        Raises:
            GrammarNotChecked: its grammar was not checked recently, and the caller cannot wait.
            InvalidRequest: it is malformed, too long for the context window, or the model cannot honour it.
        """
        check_request(request)
        owner = request.params.cache_salt or request.params.sender
        known = self._with_functions(request.prompt, owner, may_wait=may_wait)
        if known is not request.prompt:
            request = replace(request, prompt=known)
        form = self._form(request, owner, may_wait=may_wait)
        self._check(request)
        field = prompt_field(request.prompt)
        params, window = request.params, self._model.context_window
        if self._is_encoder:
            params = replace(params, max_tokens=0)
        limit = self._limit if params.truncate_prompt_tokens is None else self._truncated_limit
        asked, images = self._without_oldest_turns(request.prompt, request.images, owner)
        prompt = self._prompts.encode(
            asked,
            num_images=len(images),
            is_echo=params.is_echo,
            limit=limit,
            owner=owner,
        )
        num_kept = num_kept_tokens(params, len(prompt.token_ids), window)
        prompt = self._prompts.truncated(prompt, num_kept, keeps_beginning=self._is_encoder, owner=owner)
        # A text without tokens of its own is not a prompt, even if the tokenizer adds a BOS token.
        if not prompt.token_ids or request.prompt == TextPrompt(""):
            raise InvalidRequest("the prompt is empty", field)
        return EngineRequest(
            prompt_token_ids=prompt.token_ids,
            max_tokens=fitting_max_tokens(params, len(prompt.token_ids), window, field),
            params=params,
            images=images,
            end_token_ids=() if params.ignore_eos else prompt.end_token_ids,
            echo=prompt.echo,
            grammar=form.grammar,
            is_combined=form.is_combined,
            grammar_bytes=form.num_bytes,
            ignored_keywords=form.ignored_keywords,
            thinking=None if prompt.thinking is None else self._thinking(prompt.thinking, request),
            request_id=printable_id(request.request_id),
        )

    def _thinking(self, thinking: Thinking, request: GenerationRequest) -> Thinking:
        call = "" if callable_tools(request.prompt) is None else self._tool_format.trigger
        return replace(thinking, budget=request.params.thinking_budget, call=call)

    def tokenize(self, request: TokenizeRequest, *, may_wait: bool = True) -> TokenizeAnswer:
        """Return a prompt's tokens, even if they exceed the context window.

        Raises:
            GrammarNotChecked: as `encode`.
            Unsupported, InvalidRequest: as for a request with this prompt.
        """
        check_prompt(request.prompt)
        prompt = self._with_functions(request.prompt, request.sender, may_wait=may_wait)
        prompt, _ = self._without_oldest_turns(prompt, (), request.sender)
        encoded = self._prompts.encode(
            prompt,
            add_special_tokens=request.add_special_tokens,
            limit=check_num_bytes,
            owner=request.sender,
        )
        shown_ids = encoded.token_ids if request.has_strings else ()
        return TokenizeAnswer(encoded.token_ids, tuple(map(self._prompts.vocabulary.token_string, shown_ids)))

    def _with_functions(self, prompt: Prompt, owner: str, *, may_wait: bool) -> Prompt:
        """Return a prompt with its custom tools as functions, as the model and the rest of this stage know them."""
        tool_use = callable_tools(prompt)
        if tool_use is None or not isinstance(prompt, ChatPrompt):
            return prompt
        grammars = input_grammars(tool_use.tools)
        patterns: Patterns = ()
        if any(grammars):
            found = self._kept((owner, grammars), lambda: self._checker.patterns(grammars), may_wait=may_wait)
            assert isinstance(found, tuple)
            patterns = found
        tools = as_functions(tool_use.tools, patterns)
        return replace(prompt, tool_use=replace(tool_use, tools=tools))

    def _without_oldest_turns(
        self, prompt: Prompt, images: tuple[bytes, ...], owner: str
    ) -> tuple[Prompt, tuple[bytes, ...]]:
        """Return a prompt, and its images, as they fit the limit that a conversation may have."""
        if not isinstance(prompt, ChatPrompt) or (limit := prompt.max_prompt_tokens) is None:
            return prompt, images
        return self._prompts.fitting(prompt, images, limit, limit * self._longest, owner)

    def _form(self, request: GenerationRequest, owner: str, *, may_wait: bool) -> Form:
        tool_use, output = callable_tools(request.prompt), request.params.structured_output
        if tool_use is None and output is None:
            return _ANY_TEXT
        inputs = (owner, output, tool_use, request.params.ignore_eos, is_new_message(request.prompt))
        form = self._kept(inputs, lambda: self._checker.form(request, self._tool_format), may_wait=may_wait)
        assert isinstance(form, Form)
        return form

    def _kept(self, inputs: object, check: Callable[[], Form | Patterns], *, may_wait: bool) -> Form | Patterns:
        """Return the kept result for equal inputs, or make it. Others than the owner must not learn of it."""

        def make() -> Form | Patterns | InvalidRequest:
            if not may_wait:
                raise GrammarNotChecked
            try:
                return check()
            except InvalidRequest as exc:
                return type(exc)(exc.text, exc.field)  # a copy has no references to stack frames

        found = self._checked.get(inputs, make)
        if isinstance(found, InvalidRequest):
            raise type(found)(found.text, found.field)
        return found

    def _check(self, request: GenerationRequest) -> None:
        check_capabilities(request, self._model.capabilities, self._model.runtime)
        if self._is_encoder:
            check_embedding(request)
        if isinstance(request.prompt, PairPrompt) and self._model.task is not Task.SCORE:
            raise Unsupported("this model does not score pairs", "text_pair")
        for name, token_ids in token_ids_of(request.params):
            self._prompts.vocabulary.check(token_ids, name)
        can_think = self._model.reasoning_format and isinstance(request.prompt, ChatPrompt)
        if request.params.thinking_budget is not None and not can_think:
            raise Unsupported("needs messages, and a model that thinks", "thinking_budget")
