"""OpenAI's requests to generation requests. Pure except for random numbers."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from frontend.errors import ContextLengthExceeded, InvalidRequest, UnsupportedValue
from frontend.protocol.body import ModelBody, value_by_two_names
from frontend.protocol.chat import ChatCompletionRequest, ChatMessage
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.fields import GenerationBody
from frontend.protocol.tokenization import TokenizeRequest
from frontend.protocol.tools import PastToolCall, ToolChoice
from frontend.translate.data_uris import image_from_data_uri, images_from_data_uris
from frontend.triton.models import ModelName, ServedModel
from model_repository.capabilities import Capability
from model_repository.contract.request import (
    IMAGE_MARKER,
    MAX_IMAGES,
    ChatPrompt,
    ContextOverflow,
    GenerationRequest,
    Mirostat,
    OutputFormat,
    Params,
    Prompt,
    SamplingParams,
    StructuredOutput,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.contract.rules import num_kept_tokens, prompt_too_long
from model_repository.model_parameters import API_SAMPLING, REASONING_FIELDS, THINKING_FIELD, RequestDefaults

_SWITCHES = ("enable_thinking", "thinking")  # a chat template's: Qwen3's and others', DeepSeek-V3.1's
# The budget, as a share of max_tokens, where the template reads no effort. Source: OpenRouter's documentation.
_EFFORT_SHARES = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95}
_UINT64 = 2**64 - 1
_LLAMA_CPP_TARGET = 5.0  # Mirostat's default target with llama.cpp's field `mirostat`
_MAX_TOKEN_CHARS = 256  # the longest token of any known vocabulary; Llama 3 has 128


def chat_to_requests(
    chat: ChatCompletionRequest,
    name: ModelName,
    defaults: RequestDefaults,
    request_id: str = "",
    may_fetch: bool = False,
    max_prompt_tokens: int | None = None,
) -> list[GenerationRequest]:
    """Return a generation request for each choice of a chat.

    Args:
        request_id: for logs.
        may_fetch: an image that is named by its URL is left empty, to be fetched later; otherwise it is refused.
        max_prompt_tokens: see ChatPrompt.

    Raises:
        ContextLengthExceeded: the messages are too long for any tokenizer.
    """
    max_tokens = _max_tokens(chat, defaults.chat_max_tokens, name)
    num_logprobs = (chat.top_logprobs or 0) if chat.logprobs else None
    params = _params(chat, name, defaults, max_tokens=max_tokens, num_logprobs=num_logprobs)
    prompt = _chat_prompt(chat, chat.messages, _tool_use(chat), name, max_prompt_tokens)
    if chat.truncate_prompt_tokens is None and max_prompt_tokens is None:
        _check_num_chars(sum([len(message["content"]) for message in prompt.messages]), "messages", name.model)
    request = GenerationRequest(
        prompt=prompt, params=params, images=_images(chat, name, may_fetch), request_id=request_id
    )
    return _repeated(request, chat.n or 1)


def completion_to_requests(
    completion: CompletionRequest, name: ModelName, defaults: RequestDefaults, request_id: str = ""
) -> list[GenerationRequest]:
    """Return a generation request for each completion of each prompt, in the order of the prompts.

    Raises:
        ContextLengthExceeded: a prompt is longer than the context window.
    """
    num_drawn = completion.best_of or completion.n or 1
    is_ranked = num_drawn > (completion.n or 1)
    params = _params(
        completion,
        name,
        defaults,
        max_tokens=_max_tokens(completion, defaults.completion_max_tokens, name),
        # The best candidate is the one with the likeliest tokens.
        num_logprobs=0 if is_ranked and completion.logprobs is None else completion.logprobs,
        is_echo=bool(completion.echo),
    )
    images = images_from_data_uris(completion.images or ())
    requests: list[GenerationRequest] = []
    for index, text_or_ids in enumerate(completion.prompt):
        place = f"prompt[{index}]" if len(completion.prompt) > 1 else "prompt"
        prompt: Prompt
        if isinstance(text_or_ids, list):
            # Truncated before it is sent: a body may have millions of ids.
            num_kept = num_kept_tokens(params, len(text_or_ids), name.model.parameters.context_window)
            check_num_tokens(num_kept, place, name.model)
            prompt = TokenPrompt(tuple(text_or_ids[-num_kept:]))
        else:
            if completion.truncate_prompt_tokens is None:
                check_prompt_size(text_or_ids, place, name.model)
            prompt = TextPrompt(text_or_ids, completion.suffix or "")
        request = GenerationRequest(prompt=prompt, params=params, images=images, request_id=request_id)
        requests += _repeated(request, num_drawn)
    return requests


def check_num_tokens(num_tokens: int, field: str, model: ServedModel, *, counted: str = "") -> None:
    """Check that a field fits the context window; `counted` says in the error how its tokens were counted.

    Raises:
        ContextLengthExceeded: it has too many tokens.
    """
    if num_tokens > model.parameters.context_window:
        message = prompt_too_long(model.parameters.context_window, f"{counted}{num_tokens} tokens")
        raise ContextLengthExceeded(f"{field}: {message}", param=field)


def check_prompt_size(prompt: str | Sequence[int], field: str, model: ServedModel) -> None:
    """Refuse a prompt that cannot fit into the context window, before it is sent.

    Raises:
        ContextLengthExceeded: it has too many tokens, or characters for them.
    """
    if isinstance(prompt, str):
        _check_num_chars(len(prompt), field, model)
    else:
        check_num_tokens(len(prompt), field, model)


def _check_num_chars(num_chars: int, field: str, model: ServedModel) -> None:
    """Refuse a text that no tokenizer can fit into the context window, before it is sent."""
    check_num_tokens(-(-num_chars // _MAX_TOKEN_CHARS), field, model, counted="at least ")


def tokenize_to_prompt(request: TokenizeRequest, name: ModelName) -> Prompt:
    """Return the prompt to tokenize."""
    if request.messages is None:
        return TextPrompt(request.prompt or "")
    tools = tuple(tool.definition.as_tool() for tool in request.tools or ())
    return _chat_prompt(request, request.messages, ToolUse(tools=tools) if tools else None, name)


def ignored_fields(body: ModelBody, name: ModelName) -> list[str]:
    """Return the places of fields that the model's runtime or chat template does not read."""
    parameters = name.model.parameters
    fields = set(parameters.template_fields)
    places = []
    # Mirostat's tokens are drawn by the engine stage, whatever the runtime.
    if isinstance(body, GenerationBody) and body.seed is not None and _mirostat(body) is None:
        places += ["seed"] * (Capability.SEED not in parameters.capabilities)
    if Capability.PROMPT_CACHE not in parameters.capabilities:
        places += body.cache_fields()
    if not parameters.reasoning_format:
        places += [place for place, variable in body.thinking_controls() if variable not in fields]
    if isinstance(body, ChatCompletionRequest | TokenizeRequest):
        places += [f"chat_template_kwargs.{key}" for key in body.chat_template_kwargs or () if key not in fields]
        if "name" not in fields:
            places += [f"messages[{i}].name" for i, message in enumerate(body.messages or ()) if message.name]
    if not fields & {*REASONING_FIELDS, THINKING_FIELD}:
        places += body.past_thinking()
    return places


def _chat_prompt(
    body: ChatCompletionRequest | TokenizeRequest,
    messages: Sequence[ChatMessage],
    tool_use: ToolUse | None,
    name: ModelName,
    max_prompt_tokens: int | None = None,
) -> ChatPrompt:
    fields = name.model.parameters.template_fields
    kwargs = body.chat_template_kwargs or {}
    if isinstance(body, ChatCompletionRequest):
        kwargs = _thinking_kwargs(body, name) | kwargs
    if "lora_name" in fields:
        kwargs = {**kwargs, "lora_name": name.lora_name}  # what a template allows may depend on the adapter
    return ChatPrompt(
        messages=(*_instructions(messages, name), *[message_for_template(message, fields) for message in messages]),
        tool_use=tool_use,
        template_kwargs=kwargs,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        max_prompt_tokens=max_prompt_tokens,
    )


def _instructions(messages: Sequence[ChatMessage], name: ModelName) -> list[dict[str, Any]]:
    """Return the message with the preset's system prompt for a conversation without one."""
    has_own = any(message.role in ("system", "developer") for message in messages)
    if name.preset is None or not name.preset.system or has_own:
        return []
    return [{"role": "system", "content": name.preset.system}]


def _thinking_kwargs(chat: ChatCompletionRequest, name: ModelName) -> dict[str, Any]:
    """Return the template's variables that switch its model's thinking.

    Raises:
        UnsupportedValue: it cannot be switched off.
    """
    parameters, effort = name.model.parameters, chat.reasoning_effort
    is_read = "reasoning_effort" in parameters.template_fields
    kwargs: dict[str, Any] = {"reasoning_effort": effort} if effort is not None and is_read else {}
    is_on, field = chat.enable_thinking, "enable_thinking"
    if is_on is None and effort is not None and not is_read:
        is_on, field = effort != "none", "reasoning_effort"
    if is_on is None:
        return kwargs
    switches = thinking_switches(name)
    if parameters.reasoning_format and not is_on and not switches:
        raise UnsupportedValue(f"{field}: the model {name.requested} always thinks", param=field)
    return kwargs | dict.fromkeys(switches, is_on)


def thinking_switches(name: ModelName) -> list[str]:
    """Return the template's variables that switch its model's thinking on and off."""
    return [switch for switch in _SWITCHES if switch in name.model.parameters.template_fields]


def _thinking_budget(chat: GenerationBody, name: ModelName, max_tokens: int) -> int | None:
    """Return the largest number of thinking tokens; None: no limit, or there is no thinking."""
    parameters = name.model.parameters
    if not isinstance(chat, ChatCompletionRequest) or not parameters.reasoning_format:
        return None
    share = (
        None if "reasoning_effort" in parameters.template_fields else _EFFORT_SHARES.get(chat.reasoning_effort or "")
    )
    budget = chat.thinking_budget()
    return budget if budget is not None or share is None else int(share * max_tokens)


def _params(
    body: GenerationBody,
    name: ModelName,
    defaults: RequestDefaults,
    *,
    max_tokens: tuple[int, bool],
    num_logprobs: int | None,
    is_echo: bool = False,
) -> Params:
    overflow = ContextOverflow(body.context_length_exceeded_behavior or defaults.context_length_exceeded_behavior)
    limit, fills_window = max_tokens
    include_stop = body.include_stop_str_in_output
    return Params(
        max_tokens=limit,
        min_tokens=body.min_tokens or 0,
        stop=defaults.stop if body.stop is None else tuple(body.stop),
        bad_words=tuple(body.bad_words or ()),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        include_stop=defaults.include_stop_str_in_output if include_stop is None else include_stop,
        ignore_eos=bool(body.ignore_eos),
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        overflow=ContextOverflow.TRUNCATE if fills_window else overflow,
        sampling=_sampling(body, defaults),
        structured_output=_structured_output(body),
        lora_name=name.lora_name,
        is_echo=is_echo,
        thinking_budget=_thinking_budget(body, name, limit),
        has_logprobs=num_logprobs is not None,
        num_top_logprobs=num_logprobs or 0,
        num_prompt_logprobs=body.prompt_logprobs,
        has_token_ids=bool(body.return_token_ids),
        has_usage=body.stream_options is not None and bool(body.stream_options.continuous_usage_stats),
        has_timing=True,  # metrics and the header Server-Timing need it
        is_stream=bool(body.stream),
        stream_interval_ms=body.stream_interval_ms,
        keep_s=body.keep_s,
    )


def _repeated(request: GenerationRequest, num_drawn: int) -> list[GenerationRequest]:
    """Return a request for each choice. Choice i draws with `seed + i`. The prompt's log probabilities come once."""
    params, requests = request.params, []
    for index in range(num_drawn):
        own = replace(params, cancel_key=secrets.token_hex(16))
        if index:
            sampling = replace(params.sampling, seed=(params.sampling.seed + index) & _UINT64)
            own = replace(own, sampling=sampling, num_prompt_logprobs=None)
        requests.append(replace(request, params=own))
    return requests


def _max_tokens(
    body: ChatCompletionRequest | CompletionRequest, default: int | None, name: ModelName
) -> tuple[int, bool]:
    """Return the limit, and whether it means the rest of the context window."""
    for limit in (body.max_completion_tokens, body.max_tokens, default):
        if limit is not None:
            return limit, False
    return name.model.parameters.context_window, True


def _sampling(body: GenerationBody, defaults: RequestDefaults) -> SamplingParams:
    seed = defaults.seed if body.seed is None else body.seed
    return SamplingParams(
        **{name: getattr(defaults, name) if (value := getattr(body, name)) is None else value for name in API_SAMPLING},
        logit_bias={int(token_id): bias for token_id, bias in (body.logit_bias or {}).items()},
        mirostat=_mirostat(body),
        seed=secrets.randbits(64) if seed is None else seed & _UINT64,
    )


def _mirostat(body: GenerationBody) -> Mirostat | None:
    target = value_by_two_names(body, "mirostat_target", "mirostat_tau")
    rate = value_by_two_names(body, "mirostat_lr", "mirostat_eta")
    if body.mirostat != 2 and target is None and rate is None:
        return None
    default = Mirostat(target=_LLAMA_CPP_TARGET) if body.mirostat == 2 else Mirostat()
    return Mirostat(
        target=default.target if target is None else target,
        learning_rate=default.learning_rate if rate is None else rate,
    )


def _structured_output(body: GenerationBody) -> StructuredOutput | None:
    if body.structured_outputs is not None:
        return body.structured_outputs.structured_output()
    if body.regex is not None:
        return StructuredOutput(OutputFormat.REGEX, body.regex)
    if body.ebnf is not None:
        return StructuredOutput(OutputFormat.GRAMMAR, body.ebnf)
    return body.response_format.structured_output() if body.response_format is not None else None


def _tool_use(chat: ChatCompletionRequest) -> ToolUse | None:
    tools = chat.named_tools()
    if not tools:
        return None
    choice = chat.tool_choice or chat.function_call or ToolChoice(type="auto")
    return ToolUse(
        tools=tuple(tool.as_tool() for _, tool in tools),
        choice=choice.words(),
        # The deprecated form has one call at most.
        is_parallel=chat.parallel_tool_calls is not False and not chat.functions,
    )


def message_for_template(message: ChatMessage, template_fields: Collection[str] = ()) -> dict[str, Any]:
    """Return a message for the chat template. Parts are joined by a line break, as in vLLM.

    Args:
        message: the client's message.
        template_fields: fields that the template reads. It gets the reasoning under each name that it reads.
    """
    texts = [
        IMAGE_MARKER if part.type == "image_url" else part.text or part.refusal or "" for part in message.content or ()
    ]
    if message.refusal:
        texts = [*filter(None, texts), message.refusal]
    reasoning = message.reasoning_content or message.reasoning or None
    past = list(message.tool_calls or ())
    if message.function_call is not None:
        past = [PastToolCall(id="call_0", function=message.function_call)]
    calls = [call.for_template() for call in past]
    fields: dict[str, Any] = {"role": message.role, "content": "\n".join(texts)}
    named = {"name": message.name, "tool_call_id": message.tool_call_id, "tool_calls": calls or None}
    named |= {name: reasoning for name in REASONING_FIELDS if name in template_fields}
    named |= {"thinking": reasoning} if THINKING_FIELD in template_fields else {}
    return fields | {key: value for key, value in named.items() if value is not None}


def _images(chat: ChatCompletionRequest, name: ModelName, may_fetch: bool) -> tuple[bytes, ...]:
    urls = list(chat.image_urls())
    if urls and Capability.IMAGES not in name.model.parameters.capabilities:
        place, _ = urls[0]
        raise UnsupportedValue(f"{place}: the model {name.requested} reads no images", param=place)
    if len(urls) > MAX_IMAGES:
        raise InvalidRequest(f"messages: {len(urls)} images: a request may have {MAX_IMAGES}", param="messages")
    images = tuple(
        b"" if may_fetch and url.startswith(("http:", "https:")) else image_from_data_uri(url, place)
        for place, url in urls
    )
    for index, message in enumerate(chat.messages if images else ()):
        for number, part in enumerate(message.content or ()):
            if IMAGE_MARKER in (part.text or ""):
                place = f"messages[{index}].content[{number}].text"
                rule = f"`{IMAGE_MARKER}` is the place of an image: a text beside images must not have it"
                raise InvalidRequest(f"{place}: {rule}", param=place)
    return images
