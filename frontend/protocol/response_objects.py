"""The types of the answers of OpenAI's Responses API, and of the events of its streams."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field

from frontend.protocol.answers import ServiceTier, TokenLogprob

type ItemStatus = Literal["in_progress", "completed", "incomplete"]
type ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


# --- items of the output ---------------------------------------------------------------------------------------------
class OutputText(TypedDict):
    """Text for the reader."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class OutputMessage(TypedDict):
    """The model's answer."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(TypedDict):
    """Text of the model's thinking."""

    type: Literal["reasoning_text"]
    text: str


class SummaryText(TypedDict):
    """Text of the model's thinking, for a client that asks for a summary."""

    type: Literal["summary_text"]
    text: str


class Reasoning(TypedDict):
    """The model's thinking, as content or as a summary."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: NotRequired[str]  # if the request includes it: the thinking in an opaque form


class FunctionCallItem(TypedDict):
    """A call of a function; the arguments are JSON."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: NotRequired[str]  # of the tool, if it has one
    arguments: str


class CustomCallItem(TypedDict):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    input: str


class CompactionItem(TypedDict):
    """A summary that stands for the conversation before it, in an opaque form."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


type OutputItem = CompactionItem | OutputMessage | Reasoning | FunctionCallItem | CustomCallItem


# --- the answer ------------------------------------------------------------------------------------------------------
class InputTokensDetails(TypedDict):
    """Parts of input_tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """Parts of output_tokens."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Token counts of a request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    """Why an answer failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(TypedDict):
    """Why an answer is incomplete."""

    reason: Literal["max_output_tokens"]


class ConversationId(TypedDict):
    """The stored conversation of an answer."""

    id: str


class Response(TypedDict):
    """The answer of /v1/responses. Most fields repeat the request's."""

    id: str
    object: Literal["response"]
    created_at: int  # unix seconds
    completed_at: int | None
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None  # None: not yet
    store: bool  # whether the answer is stored
    background: bool
    previous_response_id: str | None
    conversation: ConversationId | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: ServiceTier
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


class StoredItem(TypedDict):
    """A stored item of an input or an output, in the form of its type."""

    id: str
    type: str


class ItemList(TypedDict):
    """A page of stored items."""

    object: Literal["list"]
    data: list[StoredItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Conversation(TypedDict):
    """A stored conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int  # unix seconds
    metadata: dict[str, str]


class Deleted(TypedDict):
    """Something stored that is deleted now."""

    id: str
    object: str
    deleted: Literal[True]


class Compaction(TypedDict):
    """The answer of /v1/responses/compact: a conversation in short."""

    id: str
    object: Literal["response.compaction"]
    created_at: int  # unix seconds
    output: list[OutputItem]
    usage: ResponseUsage | None


class InputTokens(TypedDict):
    """The answer of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


# --- the events of a stream ------------------------------------------------------------------------------------------
class _Numbered(TypedDict):
    sequence_number: int  # the place of the event in the stream, from 0


class ResponseEvent(_Numbered):
    """The beginning or the end of the stream, with the answer so far."""

    type: Literal[
        "response.created",
        "response.queued",  # in the background only, as the last one
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
    ]
    response: Response


class ItemEvent(_Numbered):
    """The beginning or the end of an item."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _OfItem(_Numbered):
    item_id: str
    output_index: int


class PartEvent(_OfItem):
    """The beginning or the end of a part of an item."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputText | ReasoningText


class SummaryPartEvent(_OfItem):
    """The beginning or the end of a summary's part."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    summary_index: int
    part: SummaryText


class TopTextLogprob(TypedDict):
    """A likely token at this position."""

    token: str
    logprob: float


class TextLogprob(TopTextLogprob):
    """A token of the text."""

    top_logprobs: list[TopTextLogprob]


class OutputTextDelta(_OfItem):
    """More text."""

    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[TextLogprob]


class OutputTextDone(_OfItem):
    """The whole text."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[TextLogprob]


class ReasoningTextDelta(_OfItem):
    """More thinking."""

    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ReasoningTextDone(_OfItem):
    """The whole thinking."""

    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class SummaryTextDelta(_OfItem):
    """More of a summary."""

    type: Literal["response.reasoning_summary_text.delta"]
    summary_index: int
    delta: str


class SummaryTextDone(_OfItem):
    """The whole summary."""

    type: Literal["response.reasoning_summary_text.done"]
    summary_index: int
    text: str


class CallDelta(_OfItem):
    """More of a call's arguments or input."""

    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str


class ArgumentsDone(_OfItem):
    """The whole arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    arguments: str


class InputDone(_OfItem):
    """The whole input of a custom tool."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


class ErrorEvent(_Numbered):
    """An error; the failed answer follows."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None


ResponseStreamEvent = Annotated[
    ResponseEvent
    | ItemEvent
    | PartEvent
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | SummaryPartEvent
    | SummaryTextDelta
    | SummaryTextDone
    | CallDelta
    | ArgumentsDone
    | InputDone
    | ErrorEvent,
    Field(title="ResponseStreamEvent", discriminator="type"),
]
