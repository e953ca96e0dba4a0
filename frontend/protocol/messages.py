"""The bodies of Anthropic's Messages API.

Source: https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, model_validator

from frontend.protocol.body import Body, Forms, ModelBody, OpenBody, TypedBody, broken_rule, declared
from frontend.protocol.chat import MESSAGES_LENGTH, content_parts, refuse_too_many_parts
from frontend.protocol.prompt_cache import CacheControl
from frontend.protocol.tools import FunctionName
from model_repository.contract.request import MAX_STOP_WORDS
from model_repository.contract.rules import MAX_TOOLS
from model_repository.contract.spec import MAX_INT32

# The fields of a block by its type, the required ones first.
_FIELDS: Forms = {
    "text": (("text",), ()),
    "image": (("source",), ()),
    "document": (("source",), ("title", "context")),
    "thinking": (("thinking",), ("signature",)),
    "tool_use": (("id", "name", "input"), ()),
    "tool_result": (("tool_use_id",), ("content", "is_error")),
}
# Skipped and listed, each with the reason.
_SKIPPED = {
    "redacted_thinking": "only Anthropic's servers can read it",
    "server_tool_use": "a call by Anthropic's servers, which have used its result in the text behind it",
    **dict.fromkeys(
        (
            "advisor_tool_result",
            "bash_code_execution_tool_result",
            "code_execution_tool_result",
            "text_editor_code_execution_tool_result",
            "tool_search_tool_result",
            "web_fetch_tool_result",
            "web_search_tool_result",
        ),
        "the result of such a call",
    ),
    **dict.fromkeys(
        ("mcp_tool_listing", "mcp_tool_result", "mcp_tool_use"), "a call by Anthropic's servers, its tools"
    ),
    "fallback": "a mark between the answers of two models, which is in no prompt",
    "tool_reference": "the name of a tool that was found: the model knows all tools of the request",
}
_READ = {"text", "image", "document"}  # by a user, and by the model in the result of a tool
_BLOCKS_OF_ROLES = {
    "user": {*_READ, "tool_result"},
    "assistant": {"text", "thinking", "tool_use"},
    "system": {"text"},
    "developer": {"text"},
}


class BlockSource(TypedBody):
    """The bytes of an image, its URL, or the text or the blocks of a document."""

    forms: ClassVar[Forms] = {
        "base64": (("media_type", "data"), ()),
        "url": (("url",), ()),
        "text": (("data",), ("media_type",)),
        "content": (("content",), ()),
    }

    type: Literal["base64", "url", "text", "content"]
    content: Content | None = None
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class InputBlock(OpenBody):
    """A piece of a message's content. Some types, such as `server_tool_use`, are skipped and listed."""

    forms = _FIELDS
    shared = ("type", "cache_control")
    skipped = _SKIPPED

    type: str
    text: str | None = None
    source: BlockSource | None = None
    thinking: str | None = None
    signature: str | None = None  # any is accepted
    id: str | None = None
    name: FunctionName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    title: str | None = None  # a document's name
    context: str | None = None  # what the model shall know of a document
    content: Content | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.source is not None and self.source.type in ("text", "content") and self.type == "image":
            raise broken_rule("source.type", "an image has base64 or a url")
        for index, block in enumerate((self.source and self.source.content) or ()):
            if block.type not in ("text", "image"):
                raise broken_rule(f"source.content[{index}].type", "a document has texts and images")
        _check_types(self.content or (), _READ, "a tool's result")
        return self


type Content = Annotated[
    list[InputBlock], FailFast(), BeforeValidator(content_parts, json_schema_input_type=str | list[InputBlock])
]


def _check_types(blocks: list[InputBlock] | tuple[()], allowed: set[str], owner: str) -> None:
    for index, block in enumerate(blocks):
        if not block.is_skipped and block.type not in allowed:
            raise broken_rule(f"content[{index}].type", f"{owner} has no blocks of the type {block.type}")


class InputMessage(Body):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    @model_validator(mode="after")
    def _check_blocks(self) -> Self:
        _check_types(self.content, _BLOCKS_OF_ROLES[self.role], f"the role {self.role}")
        return self


class SystemBlock(Body):
    """A part of the system prompt."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


type SystemContent = Annotated[
    list[SystemBlock], FailFast(), BeforeValidator(content_parts, json_schema_input_type=str | list[SystemBlock])
]


class MessageTool(OpenBody):
    """A tool of the client. Anthropic's own tools have other types; they are skipped and listed."""

    forms: ClassVar[Forms] = dict.fromkeys((None, "custom"), (("name", "input_schema"), ("description", "strict")))
    shared = ("type", "cache_control")

    type: str | None = None
    cache_control: CacheControl | None = None
    name: FunctionName | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None  # true: a keyword that cannot be enforced is refused, not ignored


class MessageToolChoice(TypedBody):
    """Which tools the model may or must call."""

    forms: ClassVar[Forms] = {"tool": (("name",), ())}
    shared = ("type", "disable_parallel_tool_use")

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(TypedBody):
    """Whether the model thinks, and for how many tokens at most."""

    forms: ClassVar[Forms] = {"enabled": (("budget_tokens",), ())}

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = declared("thinking_budget")


class OutputFormat(Body):
    """The JSON schema of the answer."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    """The form of the answer, and the effort of the thinking."""

    effort: Annotated[str | None, Field(max_length=32)] = None
    format: OutputFormat | None = None


class Metadata(Body):
    """Bookkeeping."""

    user_id: str | None = None


class CountTokensRequest(ModelBody):
    """The body of POST /v1/messages/count_tokens: what the prompt depends on."""

    messages: Annotated[list[InputMessage], FailFast(), MESSAGES_LENGTH, BeforeValidator(refuse_too_many_parts)]
    system: SystemContent | None = None
    tools: Annotated[list[MessageTool] | None, FailFast(), Field(max_length=MAX_TOOLS)] = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    def cache_controls(self) -> Iterator[CacheControl]:
        """Yield the marks in the prompt, and that of the whole prompt."""
        blocks = (block for message in self.messages for block in message.content)
        for each in (self, *(self.tools or ()), *(self.system or ()), *blocks):
            if each.cache_control is not None:
                yield each.cache_control

    def cache_fields(self) -> Iterator[str]:
        return iter(["cache_control"] if any(self.cache_controls()) else [])

    def thinking_controls(self) -> Iterator[tuple[str, str]]:
        if self.thinking is not None:
            yield "thinking", "thinking"
        if self.output_config is not None and self.output_config.effort is not None:
            yield "output_config.effort", "reasoning_effort"

    def past_thinking(self) -> Iterator[str]:
        for index, message in enumerate(self.messages):
            for number, block in enumerate(message.content):
                if block.thinking is not None:
                    yield f"messages[{index}].content[{number}]"


class MessagesRequest(CountTokensRequest):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT32)]
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1)]] | None, Field(max_length=MAX_STOP_WORDS)] = None
    temperature: float | None = declared("temperature")
    top_p: float | None = declared("top_p")
    top_k: int | None = declared("top_k")
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def bookkeeping(self) -> dict[str, Any]:
        """Return the client's labels for the log."""
        user_id = self.metadata and self.metadata.user_id
        return {"user": user_id} if user_id is not None else {}
