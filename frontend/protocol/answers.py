"""The types of the answers. They are plain dictionaries: a stream makes one for each chunk."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

type ServiceTier = Literal["default", "flex", "priority"]


class PromptTokensDetails(TypedDict):
    """Parts of prompt_tokens."""

    cached_tokens: int
    audio_tokens: int


class CompletionTokensDetails(TypedDict):
    """Parts of completion_tokens."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    audio_tokens: int


class Usage(TypedDict):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


type FinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]
type StopReason = str | int | None


# --- completions -----------------------------------------------------------------------------------------------------
class CompletionLogprobs(TypedDict):
    """Four lists with an item for each token of the text."""

    text_offset: list[int]  # characters of prompt and text before the token
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """A completion, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: StopReason
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]  # a stream has it in a choice's first piece


class TextCompletion(TypedDict):
    """The answer of /v1/completions, and each event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[ServiceTier]  # if the request has one
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    obfuscation: NotRequired[str]


# --- chat completions ------------------------------------------------------------------------------------------------
class TopLogprob(TypedDict):
    """A likely token at this position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TypedDict):
    """A token of the content."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """The log probabilities of a message's tokens."""

    content: list[TokenLogprob]
    refusal: None


class FunctionCall(TypedDict, total=False):
    """A function's name and its arguments as JSON; in a stream, pieces of both."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ToolCallDelta(TypedDict):
    """A chunk's addition to a call. Only the first one has id and type."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionCall


class AssistantMessage(TypedDict):
    """The whole answer of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning_content: NotRequired[str]  # the model's thinking
    reasoning: NotRequired[str]  # the same, by OpenRouter's and vLLM's name
    tool_calls: NotRequired[list[ToolCall]]
    function_call: NotRequired[FunctionCall]


class ChatChoice(TypedDict):
    """A chat completion."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: StopReason
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[ServiceTier]  # if the request has one
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]


class Delta(TypedDict, total=False):
    """A chunk's addition to the assistant's message."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    reasoning: str
    tool_calls: list[ToolCallDelta]
    function_call: FunctionCall


class ChunkChoice(TypedDict):
    """A piece of a chat completion."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[StopReason]
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    """An event of a chat completion's stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[ServiceTier]  # if the request has one
    choices: list[ChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]  # the first event has it
    obfuscation: NotRequired[str]


# --- the other endpoints ---------------------------------------------------------------------------------------------
class ModelCard(TypedDict):
    """One model in /v1/models."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    tool_call_format: str  # "plain": that of the chat template is unknown, or the template takes no tools
    reasoning_format: str | None  # None: the model does not think
    default_parameters: dict[str, Any]  # sampling fields that differ from the API document's defaults


class ModelList(TypedDict):
    """The answer of /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokenization(TypedDict):
    """The answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenization(TypedDict):
    """The answer of /detokenize."""

    prompt: str


class Version(TypedDict):
    """The answer of /version."""

    version: str


class Error(TypedDict):
    """An error in OpenAI's form."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorDetail(TypedDict):
    """One broken rule in FastAPI's form."""

    loc: list[str | int]
    msg: str
    type: str


class ErrorEnvelope(TypedDict):
    """The body of every error; `detail` is a list for validation failures only."""

    error: Error
    detail: str | list[ErrorDetail]
