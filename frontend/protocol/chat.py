"""The body of a chat completion request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from frontend.protocol.body import Body, Refused, broken_rule, declared, optional, value_by_two_names
from frontend.protocol.fields import REFUSED, GenerationBody
from frontend.protocol.prompt_cache import CacheBreakpoint
from frontend.protocol.tools import (
    FunctionCallChoice,
    FunctionDefinition,
    PastFunctionCall,
    PastToolCall,
    Tool,
    ToolChoice,
    ToolChoiceInput,
    ToolDefinition,
    function_call_from,
    not_too_large,
    tool_choice_from,
)
from model_repository.contract.rules import MAX_TOOLS
from model_repository.contract.spec import MAX_INT32
from model_repository.model_parameters import REASONING_FIELDS

# Switch the thinking, or set its budget, or show it.
_THINKING_FIELDS = (
    "reasoning_effort",
    "enable_thinking",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "include_reasoning",
)
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096  # all messages together


class ImageUrl(Body):
    """An image as a data URI, or as a URL if the server may fetch it."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None

    def ignored_values(self) -> Iterator[str]:
        if self.detail in ("low", "high"):  # the model itself decides how it cuts an image
            yield "detail"


class FilePart(Body):
    """A document: its bytes in a data URI or in base64, or a URL if the server may fetch it."""

    refused: ClassVar[Mapping[str, Refused]] = {"file_id": Refused(instead="data in the request: no file is stored")}

    file_data: str | None = None
    filename: str | None = None

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        if self.file_data is None and "file_id" not in (self.model_extra or {}):
            raise broken_rule("file_data", "required")
        return self


class ContentPart(Body):
    """A piece of a message's content."""

    type: Literal["text", "refusal", "image_url", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: Annotated[
        ImageUrl | None, BeforeValidator(lambda value: {"url": value} if isinstance(value, str) else value)
    ] = None
    file: FilePart | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _refuse_other_types(cls, value: Any) -> Any:
        if value in ("input_audio", "video_url", "audio_url"):
            raise PydanticCustomError("unsupported_value", "only text, image_url and file parts are supported")
        return value

    @model_validator(mode="after")
    def _check_fields_of_type(self) -> Self:
        if getattr(self, self.type) is None:
            raise broken_rule(self.type, f'required when type is "{self.type}"')
        for name in {"text", "refusal", "image_url", "file"} - {self.type}:
            if getattr(self, name):
                raise broken_rule(name, f'`{name}` is allowed only with type "{name}"')
        return self


def content_parts(value: Any) -> Any:
    """Return content as a list of parts: a string is one part."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("content_type", "Input should be a valid string or a list of content parts")


type ChatContent = Annotated[
    list[ContentPart], FailFast(), BeforeValidator(content_parts, json_schema_input_type=str | list[ContentPart])
]


class ChatMessage(Body):
    """One message of a conversation."""

    refused: ClassVar[Mapping[str, Refused]] = {"audio": Refused()}
    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {"annotations": ([],)}

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: ChatContent | None = None
    name: str | None = None
    tool_calls: Annotated[list[PastToolCall] | None, FailFast()] = None
    function_call: PastFunctionCall | None = None  # deprecated form of tool_calls
    refusal: str | None = None  # the assistant's content if it refused
    reasoning_content: str | None = None
    reasoning: str | None = None  # another name of reasoning_content
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check_fields_of_role(self) -> Self:
        is_assistant = self.role == "assistant"
        if self.content is None and not is_assistant:
            raise broken_rule("content", "required, except in an assistant's message")
        if (self.tool_calls or self.function_call) and not is_assistant:
            raise broken_rule("tool_calls", "only an assistant's message has them")
        if self.refusal and not is_assistant:
            raise broken_rule("refusal", "only an assistant's message has one")
        if self.role == "tool" and self.tool_call_id is None:
            raise broken_rule("tool_call_id", "required in a tool's message")
        return self


_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}


def messages_from(value: Any) -> Any:
    """Return messages as objects. A text, or each text of a list, is a message of the user (Horay.ai's form)."""
    if isinstance(value, str):
        value = [value]
    value = refuse_too_many_parts(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return [{"role": "user", "content": item} for item in value]
    return value


def refuse_too_many_parts(value: Any) -> Any:
    """Count messages and parts before they are checked: checking thousands of them takes long."""
    if isinstance(value, list):
        if len(value) > MAX_MESSAGES:
            raise PydanticCustomError("too_long", f"{len(value)} messages are more than {MAX_MESSAGES}")
        num_parts = sum(map(_num_parts, value))
        if num_parts > MAX_CONTENT_PARTS:
            raise PydanticCustomError("too_long", f"{num_parts} content parts are more than {MAX_CONTENT_PARTS}")
    return value


def _num_parts(owner: Any) -> int:
    """Return the number of parts in a message, or in a part or an item with parts of its own, as results of tools."""
    if not isinstance(owner, dict):
        return 0
    lists = [parts for name in ("content", "output", "summary") if isinstance(parts := owner.get(name), list)]
    return sum(len(parts) + sum(map(_num_parts, parts)) for parts in lists) + _num_parts(owner.get("source"))


def past_thinking(messages: Iterable[ChatMessage]) -> Iterator[str]:
    """Yield the places of the thinking in messages."""
    for index, message in enumerate(messages):
        yield from (f"messages[{index}].{name}" for name in REASONING_FIELDS if getattr(message, name))


def check_last_message(continue_final_message: bool | None, add_generation_prompt: bool | None) -> None:
    """Check that the last message is not both continued and followed by a new one."""
    if continue_final_message and add_generation_prompt is not False:
        raise broken_rule("continue_final_message", "needs add_generation_prompt to be false")


MESSAGES_LENGTH = Field(min_length=1, max_length=MAX_MESSAGES)
type MessagesInput = str | Annotated[list[str], MESSAGES_LENGTH] | Annotated[list[ChatMessage], MESSAGES_LENGTH]


class ChatCompletionRequest(GenerationBody):
    """The body of POST /v1/chat/completions."""

    refused: ClassVar[Mapping[str, Refused]] = REFUSED | {
        "prompt": Refused(),
        "echo": Refused(False),
        "suffix": Refused(),
        "best_of": Refused(1),
        "images": Refused([]),
    }

    messages: Annotated[
        list[ChatMessage],
        FailFast(),
        MESSAGES_LENGTH,
        Field(description="the conversation; a text is one message of the user"),
        BeforeValidator(messages_from, json_schema_input_type=MessagesInput),
    ]
    store: bool | None = optional(True, "store the chat, for GET /v1/chat/completions")
    max_tokens: int | None = optional(3, "maximum number of completion tokens", ge=1, le=MAX_INT32)
    logprobs: bool | None = optional(True, "log probabilities of the tokens, of the raw distribution")
    top_logprobs: int | None = declared(
        "top_logprobs", 2, "number of likeliest tokens at each position", needs={"logprobs": True}
    )
    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS), AfterValidator(not_too_large)] = optional(
        [_TOOL], "functions and custom tools"
    )
    tool_choice: Annotated[
        ToolChoice | None, BeforeValidator(tool_choice_from, json_schema_input_type=ToolChoiceInput | None)
    ] = optional("required", "the tool that the model must call", needs={"tools": [_TOOL]})
    parallel_tool_calls: bool | None = optional(False, "false: at most one call", needs={"tools": [_TOOL]})
    functions: Annotated[
        list[FunctionDefinition] | None, Field(max_length=MAX_TOOLS), AfterValidator(not_too_large)
    ] = optional([_TOOL["function"]], "deprecated form of tools")
    function_call: Annotated[
        ToolChoice | None, BeforeValidator(function_call_from, json_schema_input_type=FunctionCallChoice | None)
    ] = optional({"name": "f"}, "deprecated form of tool_choice", needs={"functions": [_TOOL["function"]]})
    reasoning_effort: str | None = optional(
        "high",
        "for the chat template of a model that thinks. If it reads none, `none` switches thinking off,"
        " and other words set a share of the completion as the budget",
        max_length=32,
    )
    enable_thinking: bool | None = optional(False, "switches the thinking of a model on or off")
    thinking_budget_tokens: int | None = declared("thinking_budget", 8, "tokens after which the thinking ends")
    thinking_token_budget: int | None = declared("thinking_budget", 8, "thinking_budget_tokens by vLLM's name")
    include_reasoning: bool | None = optional(False, "false: the answer leaves the model's thinking out")
    chat_template_kwargs: dict[str, Any] | None = optional(
        {"a": 1}, "variables for the model's chat template; others than it reads are listed in x-ignored-params"
    )
    add_generation_prompt: bool | None = optional(False, "false: no new message of the assistant begins")
    continue_final_message: bool | None = optional(
        True, "continue the last message", needs={"add_generation_prompt": False}
    )

    @model_validator(mode="after")
    def _check_chat_fields(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise broken_rule("top_logprobs", "needs logprobs to be true")
        if self.tools and self.functions:
            raise broken_rule("functions", "they are the deprecated form of tools: send one of the two")
        if self.function_call is not None and self.tools:
            raise broken_rule("function_call", "goes with functions; tools have tool_choice")
        if self.tool_choice is not None and self.functions:
            raise broken_rule("tool_choice", "goes with tools; functions have function_call")
        names, custom = self.tool_names(), self.custom_names()
        for name in custom & {tool.function.name for tool in self.tools or () if tool.function is not None}:
            raise broken_rule("tools", f"{name} is the name of a function and of a custom tool")
        for field in ("tool_choice", "function_call"):
            choice: ToolChoice | None = getattr(self, field)
            if choice is None:
                continue
            for name, kind in choice.types().items():
                if name not in names or (name in custom) != (kind == "custom"):
                    raise broken_rule(field, f"names the {kind} {name}, which is not offered")
            if choice.type == "required" and not names:
                raise broken_rule(field, "needs tools to choose from")
        self.thinking_budget()
        check_last_message(self.continue_final_message, self.add_generation_prompt)
        return self

    def thinking_budget(self) -> int | None:
        """Return the largest number of thinking tokens, by either name."""
        budget: int | None = value_by_two_names(self, "thinking_budget_tokens", "thinking_token_budget")
        return budget

    def thinking_controls(self) -> Iterator[tuple[str, str]]:
        return ((name, name) for name in _THINKING_FIELDS if getattr(self, name) is not None)

    def past_thinking(self) -> Iterator[str]:
        return past_thinking(self.messages)

    def cache_breakpoints(self) -> Iterator[CacheBreakpoint]:
        for message in self.messages:
            for part in message.content or ():
                if part.prompt_cache_breakpoint is not None:
                    yield part.prompt_cache_breakpoint

    def image_urls(self) -> Iterator[tuple[str, str]]:
        """Yield the place of each image in the body, and its URL or data URI."""
        for index, message in enumerate(self.messages):
            for number, part in enumerate(message.content or ()):
                if part.image_url is not None:
                    yield f"messages[{index}].content[{number}].image_url.url", part.image_url.url

    def may_call(self) -> bool:
        """Whether the answer may have calls of tools."""
        choice = self.tool_choice or self.function_call
        return bool(self.offered_tools()) and (choice is None or choice.type != "none")

    def must_call(self) -> bool:
        """Whether the answer is a call: then text is the beginning of a call that was cut."""
        choice = self.tool_choice or self.function_call
        return choice is not None and choice.words() not in ("none", "auto")

    def tool_names(self) -> set[str]:
        """Return the names of the tools in `tools` or `functions`."""
        return {tool.name for tool in self.offered_tools()}

    def custom_names(self) -> set[str]:
        """Return the names of the custom tools."""
        return {tool.custom.name for tool in self.tools or () if tool.custom is not None}

    def offered_tools(self) -> list[ToolDefinition]:
        """Return the tools in `tools` or `functions`."""
        return [*[tool.definition for tool in self.tools or ()], *(self.functions or ())]

    def named_tools(self) -> list[tuple[int, ToolDefinition]]:
        """Return the tools that the prompt names, each with its number in `tools` or `functions`."""
        allowed = self.tool_choice and self.tool_choice.allowed_tools and self.tool_choice.types()
        return [each for each in enumerate(self.offered_tools()) if allowed is None or each[1].name in allowed]
