"""The bodies of OpenAI's Responses API.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from frontend.protocol.body import Body, Forms, ModelBody, OpenBody, Refused, TypedBody, broken_rule, declared
from frontend.protocol.chat import MESSAGES_LENGTH, FilePart, refuse_too_many_parts
from frontend.protocol.prompt_cache import CacheBreakpoint, PromptCacheOptions, Retention
from frontend.protocol.tools import Definition, FunctionName, tool_choice_from
from model_repository.contract.rules import MAX_TOOLS
from model_repository.contract.spec import MAX_INT32

# The fields of a part, and of an item, by its type, the required ones first.
_PARTS: Forms = {
    "input_text": (("text",), ()),
    "output_text": (("text",), ()),
    "refusal": (("refusal",), ()),
    "input_image": (("image_url",), ("detail",)),
    "input_file": ((), ("file_data", "file_url", "filename", "detail")),
    "summary_text": (("text",), ()),
    "reasoning_text": (("text",), ()),
}
_ITEMS: Forms = {
    "message": (("role", "content"), ()),
    "reasoning": ((), ("summary", "content", "encrypted_content")),
    "function_call": (("call_id", "name", "arguments"), ("namespace",)),
    "function_call_output": (("call_id", "output"), ()),
    "custom_tool_call": (("call_id", "name", "input"), ("namespace",)),
    "custom_tool_call_output": (("call_id", "output"), ()),
    "compaction": (("encrypted_content",), ()),
    "compaction_trigger": ((), ()),
}
REFERENCE = "item_reference"
# Skipped and listed, each with the reason.
_SKIPPED = {
    REFERENCE: "replaced by the item, if it is stored",
    **dict.fromkeys(
        (
            "code_interpreter_call",
            "file_search_call",
            "image_generation_call",
            "mcp_approval_request",
            "mcp_approval_response",
            "mcp_call",
            "mcp_list_tools",
            "program",
            "program_output",
            "tool_search_call",
            "tool_search_output",
            "web_search_call",
        ),
        "a call by OpenAI's servers, which have used its result in the text behind it",
    ),
    **dict.fromkeys(
        (
            "apply_patch_call",
            "apply_patch_call_output",
            "computer_call",
            "computer_call_output",
            "local_shell_call",
            "local_shell_call_output",
            "shell_call",
            "shell_call_output",
        ),
        "a call of a tool that is offered by OpenAI's servers only, and its result",
    ),
}
COMPACTION, COMPACTION_TRIGGER = "compaction", "compaction_trigger"
CALLS = ("function_call", "custom_tool_call")
_THOUGHTS = {"summary_text", "reasoning_text"}
_SEAL = "conch:"
_TOOLS = ("function", "custom")
_INCLUDABLE = ("reasoning.encrypted_content", "message.output_text.logprobs")


class ResponsePart(TypedBody):
    """A piece of a message, of a tool's output or of the model's thinking."""

    forms = _PARTS
    shared = ("type", "prompt_cache_breakpoint")
    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {"annotations": ([],), "logprobs": ([],)}
    refused = FilePart.refused

    type: Literal["input_text", "output_text", "refusal", "input_image", "input_file", "summary_text", "reasoning_text"]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    def ignored_values(self) -> Iterator[str]:
        if self.detail not in (None, "auto"):  # the model itself decides how it cuts an image
            yield "detail"

    @field_validator("type", mode="before")
    @classmethod
    def _refuse_other_types(cls, value: Any) -> Any:
        if value in ("input_audio", "input_video"):
            raise PydanticCustomError("unsupported_value", "only texts, input_image and input_file are supported")
        return value

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        is_stored = "file_id" in (self.model_extra or {})
        if self.type == "input_file" and (self.file_data is None) == (self.file_url is None) and not is_stored:
            raise broken_rule("file_data", "expected either file_data or file_url")
        return self


def _parts(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


type Parts = Annotated[
    list[ResponsePart], FailFast(), BeforeValidator(_parts, json_schema_input_type=str | list[ResponsePart])
]


class ResponseItem(OpenBody):
    """An item of the conversation. Some types, such as `web_search_call`, are skipped and listed."""

    forms = _ITEMS
    skipped = _SKIPPED
    shared = ("type", "id", "status", "phase")

    type: str
    id: Annotated[str | None, Field(max_length=256)] = None  # of an item that comes back, as the next two
    status: str | None = None
    phase: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Parts | None = None
    summary: Parts | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: FunctionName | None = None
    namespace: FunctionName | None = None
    arguments: str | None = None
    input: str | None = None
    output: Parts | None = None

    def thinking(self) -> str:
        """Return the model's thinking in an item of reasoning; empty: there is none that is readable."""
        opened = None if self.encrypted_content is None else opened_thinking(self.encrypted_content)
        if opened is not None:
            return opened
        return "\n\n".join(part.text or "" for part in self.content or self.summary or ())

    def ignored_values(self) -> Iterator[str]:
        is_thinking = self.type == "reasoning" and self.encrypted_content is not None
        if is_thinking and opened_thinking(self.encrypted_content or "") is None:
            yield "encrypted_content"

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        is_thought = self.type == "reasoning"
        for name in ("content", "summary", "output"):
            for index, part in enumerate(getattr(self, name) or ()):
                if (part.type in _THOUGHTS) != is_thought:
                    raise broken_rule(f"{name}[{index}].type", f"does not go with an item of the type {self.type}")
        return self


def name_in(namespace: str | None, name: str) -> str:
    """Return the name by which the model knows a tool of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def sealed_thinking(text: str) -> str:
    """Return the model's thinking in the opaque form of `encrypted_content`. It is not secret."""
    return _SEAL + base64.b64encode(text.encode()).decode()


def opened_thinking(sealed: str) -> str | None:
    """Return the thinking from its opaque form; None: another server wrote it."""
    try:
        return base64.b64decode(sealed.removeprefix(_SEAL), validate=True).decode() if _SEAL in sealed else None
    except ValueError:
        return None


def _items(value: Any) -> Any:
    """Return the conversation as items: a text is a message of the user, and an item with a role a message."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("input_type", "Input should be a valid string or a list of items")
    return [
        {"type": "message", **item} if isinstance(item, dict) and "role" in item and "type" not in item else item
        for item in refuse_too_many_parts(value)
    ]


type Items = Annotated[
    list[ResponseItem],
    FailFast(),
    MESSAGES_LENGTH,
    BeforeValidator(_items, json_schema_input_type=str | list[ResponseItem]),
]


class ConversationRef(Body):
    """A stored conversation."""

    id: str


def _conversation_ref(value: Any) -> Any:
    return {"id": value} if isinstance(value, str) else value


class GrammarFormat(TypedBody):
    """The form of a custom tool's input: any text, or a grammar's."""

    forms: ClassVar[Forms] = {"grammar": (("syntax", "definition"), ())}

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Definition | None = None


class ResponseTool(OpenBody):
    """A tool of the client, or several in a namespace. Other types are OpenAI's own tools: skipped and listed."""

    forms: ClassVar[Forms] = {
        "function": (("name",), ("description", "parameters", "strict")),
        "custom": (("name",), ("description", "format")),
        "namespace": (("name", "tools"), ("description",)),
    }
    type: str
    name: FunctionName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # true: a keyword that cannot be enforced is refused, not ignored
    format: GrammarFormat | None = None
    tools: Annotated[list[ResponseTool] | None, FailFast(), Field(max_length=MAX_TOOLS)] = None

    @model_validator(mode="after")
    def _check_depth(self) -> Self:
        for index, tool in enumerate(self.tools or ()):
            if tool.type == "namespace":
                raise broken_rule(f"tools[{index}].type", "a namespace has no others in it")
        return self

    def ignored_values(self) -> Iterator[str]:
        if self.type == "namespace" and self.description is not None:  # the model sees the functions alone
            yield "description"


class NamedResponseTool(OpenBody):
    """A tool by its name. OpenAI's own tools have none; they are skipped and listed."""

    forms: ClassVar[Forms] = dict.fromkeys(_TOOLS, (("name",), ()))

    type: str
    name: FunctionName | None = None


class ResponseToolChoice(TypedBody):
    """Which tools the model may or must call."""

    forms: ClassVar[Forms] = {**NamedResponseTool.forms, "allowed_tools": (("mode", "tools"), ())}

    type: Literal["none", "auto", "required", "function", "custom", "allowed_tools"]
    name: FunctionName | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedResponseTool] | None, Field(min_length=1, max_length=MAX_TOOLS)] = None

    @property
    def word(self) -> str:
        """The choice if it is a word alone, else empty."""
        return self.type if self.type in ("none", "auto", "required") else ""


class ResponseTextFormat(TypedBody):
    """The form of the answer."""

    forms: ClassVar[Forms] = {"json_schema": (("name", "schema_"), ("description", "strict"))}
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str | None, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None  # true: a keyword that cannot be enforced is refused, not ignored


class ResponseText(Body):
    """The form of the answer."""

    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}

    format: ResponseTextFormat | None = None


class ReasoningConfig(Body):
    """How long the model thinks, and whether the answer has the thinking as a summary. It is never abridged."""

    effort: Annotated[str | None, Field(max_length=32)] = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # deprecated name


class ResponseStreamOptions(Body):
    """Additions to a stream."""

    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}


class ContextManagement(Body):
    """When a summary takes the place of the conversation so far."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1, le=MAX_INT32)]  # tokens of the prompt


class InputTokensRequest(ModelBody):
    """The body of POST /v1/responses/input_tokens: what the prompt depends on."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "prompt": Refused(),
        "moderation": Refused(),
    }

    input: Items
    previous_response_id: str | None = None
    conversation: Annotated[ConversationRef | None, BeforeValidator(_conversation_ref)] = None
    instructions: str | None = None
    tools: Annotated[list[ResponseTool] | None, FailFast(), Field(max_length=MAX_TOOLS)] = None
    tool_choice: Annotated[
        ResponseToolChoice | None,
        BeforeValidator(
            tool_choice_from, json_schema_input_type=Literal["none", "auto", "required"] | ResponseToolChoice | None
        ),
    ] = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: ResponseText | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if all(item.is_skipped and item.type != REFERENCE for item in self.input):
            raise broken_rule("input", "has no item of a type that is served here")
        for index, item in enumerate(self.input[:-1]):
            if item.type == COMPACTION_TRIGGER:
                raise broken_rule(f"input[{index}].type", "a compaction_trigger is the last item")
        if self.previous_response_id is not None and self.conversation is not None:
            raise broken_rule("conversation", "excludes previous_response_id")
        return self

    def references(self) -> list[str]:
        """Return the ids of the stored items that the input refers to."""
        return [item.id for item in self.input if item.type == REFERENCE and item.id is not None]

    def thinking_controls(self) -> Iterator[tuple[str, str]]:
        if self.effort is not None:
            yield "reasoning.effort", "reasoning_effort"

    def past_thinking(self) -> Iterator[str]:
        return (f"input[{index}]" for index, item in enumerate(self.input) if item.type == "reasoning")

    def offered_tools(self) -> Iterator[tuple[str, str, ResponseTool, str]]:
        """Yield the functions and custom tools with name for the model, namespace (or an empty one), and place."""
        for index, tool in enumerate(self.tools or ()):
            is_space = tool.type == "namespace"
            for number, inner in enumerate(tool.tools or () if is_space else (tool,)):
                if inner.type in _TOOLS:
                    namespace = (tool.name or "") if is_space else ""
                    place = f"tools[{index}]" + (f".tools[{number}]" if is_space else "")
                    yield name_in(namespace, inner.name or ""), namespace, inner, place

    @property
    def text_format(self) -> ResponseTextFormat | None:
        return None if self.text is None else self.text.format

    @property
    def effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def summary(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.summary or self.reasoning.generate_summary


class ResponsesRequest(InputTokensRequest):
    """The body of POST /v1/responses."""

    store: bool | None = None  # null: as true
    background: bool | None = None
    context_management: Annotated[list[ContextManagement] | None, Field(max_length=1)] = None
    max_output_tokens: Annotated[int | None, Field(ge=1, le=MAX_INT32)] = None
    max_tool_calls: Annotated[int | None, Field(ge=1)] = None  # of OpenAI's own tools: there are none
    temperature: float | None = declared("temperature")
    top_p: float | None = declared("top_p")
    top_logprobs: int | None = declared("top_logprobs")
    include: Annotated[list[str] | None, FailFast()] = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Retention | None = None

    @property
    def has_encrypted_content(self) -> bool:
        """Whether the thinking comes in an opaque form too."""
        return "reasoning.encrypted_content" in (self.include or ())

    @property
    def has_logprobs(self) -> bool:
        """Whether the text has log probabilities."""
        return "message.output_text.logprobs" in (self.include or ())

    def ignored_values(self) -> Iterator[str]:
        for index, name in enumerate(self.include or ()):
            if name not in _INCLUDABLE:
                yield f"include[{index}]"

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.top_logprobs and not self.has_logprobs:
            raise broken_rule("top_logprobs", "needs `message.output_text.logprobs` in include")
        if self.background and self.store is False:
            raise broken_rule("background", "needs a stored answer: leave `store: false` out")
        if self.background and self.input[-1].type == COMPACTION_TRIGGER:
            raise broken_rule("background", "excludes compaction_trigger")
        if self.stream_options is not None and not self.stream:
            raise broken_rule("stream_options", "`stream_options` can only be used when `stream` is True")
        return self


class CompactRequest(InputTokensRequest):
    """The body of POST /v1/responses/compact. Behind a stored answer the input may be missing."""

    prompt_cache_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _end_with_trigger(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("input") is None and value.get("previous_response_id") is not None:
            return {**value, "input": [{"type": COMPACTION_TRIGGER}]}
        return value
