"""The types of the answers. They are plain dictionaries: a stream makes one for each chunk."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

from pydantic import Field, WithJsonSchema

type ServiceTier = Literal["default", "flex", "priority"]


class PromptTokensDetails(TypedDict):
    """Parts of prompt_tokens."""

    cached_tokens: int
    cache_write_tokens: int  # the others: the cache has them from now on
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


class Timing(TypedDict):
    """Milliseconds of each phase of a completion; of several, the slowest one's."""

    tokenize: float  # includes the way to the engine and back
    queue: float
    prefill: float
    decode: float


type FinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]
type StopReason = str | int | None


# --- completions -----------------------------------------------------------------------------------------------------
class CompletionLogprobs(TypedDict):
    """Four lists with an item for each token of the text."""

    text_offset: list[int]  # characters of prompt and text before the token
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(TypedDict):
    """A token that could be at a place of the prompt."""

    logprob: float
    rank: int | None  # 1 is the likeliest token
    decoded_token: str


class CompletionChoice(TypedDict):
    """A completion, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: StopReason
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]  # a stream has it in a choice's first piece
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]  # by token id; None: the first token


class _Completion(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[ServiceTier]  # if the request has one


class _CompletionEvent(_Completion):
    usage: NotRequired[Usage | None]
    timing: NotRequired[Timing | None]  # the last event's, with stream_options.include_timing; None: not known
    obfuscation: NotRequired[str]


class TextCompletion(_CompletionEvent):
    """The answer of /v1/completions, and each event of its stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


# --- chat completions ------------------------------------------------------------------------------------------------
class TopLogprob(TypedDict):
    """A likely token at this position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the content."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """The log probabilities of a message's tokens."""

    content: list[TokenLogprob]
    refusal: None


class FunctionCall(TypedDict, total=False):
    """A function's name and its arguments as JSON; in a stream, pieces of both."""

    name: str
    arguments: str


class CustomCall(TypedDict, total=False):
    """A custom tool's name and its input; in a stream, pieces of both."""

    name: str
    input: str


class ToolCall(TypedDict):
    """A call of a tool: of a function or a custom one, as its type says."""

    id: str
    type: Literal["function", "custom"]
    function: NotRequired[FunctionCall]
    custom: NotRequired[CustomCall]


class ToolCallDelta(TypedDict):
    """A chunk's addition to a call. Only the first one has id and type."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function", "custom"]]
    function: NotRequired[FunctionCall]
    custom: NotRequired[CustomCall]


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


class ChatCompletion(_Completion):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]  # by token id; None: the first token


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


class StoredChat(ChatCompletion):
    """A stored answer to a chat."""

    metadata: dict[str, Any]


class ChatList(TypedDict):
    """A page of stored chats."""

    object: Literal["list"]
    data: list[StoredChat]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredMessage(TypedDict):
    """A message of a stored chat, as it was sent, with the text of its content."""

    id: str
    role: str
    content: str | None
    content_parts: list[dict[str, Any]] | None  # None: the content is a text


class MessageList(TypedDict):
    """A page of the messages of a stored chat."""

    object: Literal["list"]
    data: list[StoredMessage]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ChatCompletionChunk(_CompletionEvent):
    """An event of a chat completion's stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    prompt_token_ids: NotRequired[list[int]]  # the first event has it


# --- Anthropic's messages --------------------------------------------------------------------------------------------
class TextBlock(TypedDict):
    """Text for the reader."""

    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    """The model's thinking."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


type ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock
type MessageStopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ThinkingTokens(TypedDict):
    """A part of output_tokens."""

    thinking_tokens: int


class MessageUsage(TypedDict):
    """Token counts. input_tokens leaves out those that the cache had, or that it keeps as the request demands."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class Message(TypedDict):
    """The answer of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: MessageStopReason | None  # None: not yet
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(TypedDict):
    """The first event of a stream."""

    type: Literal["message_start"]
    message: Message


class Ping(TypedDict):
    """An event without content."""

    type: Literal["ping"]


class BlockStart(TypedDict):
    """The beginning of a block."""

    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class TextAddition(TypedDict):
    """More text."""

    type: Literal["text_delta"]
    text: str


class ThinkingAddition(TypedDict):
    """More thinking."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureAddition(TypedDict):
    """The signature at the end of the thinking."""

    type: Literal["signature_delta"]
    signature: str


class InputAddition(TypedDict):
    """More of a call's arguments, as JSON."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    """An addition to a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextAddition | ThinkingAddition | SignatureAddition | InputAddition


class BlockStop(TypedDict):
    """The end of a block."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(TypedDict):
    """How the answer ended."""

    stop_reason: MessageStopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    """The end of the answer, with all its tokens."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(TypedDict):
    """The last event of a stream."""

    type: Literal["message_stop"]


class MessageTokens(TypedDict):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


type MessageErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
]


class MessageErrorDetails(TypedDict):
    """An error in Anthropic's form."""

    type: MessageErrorType
    message: str


class MessageError(TypedDict):
    """The body of every error of Anthropic's endpoints, and the event that ends a stream with an error."""

    type: Literal["error"]
    error: MessageErrorDetails
    request_id: str


MessageEvent = Annotated[
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | MessageError,
    Field(title="MessageEvent", discriminator="type"),
]


# --- embeddings ------------------------------------------------------------------------------------------------------
_VECTOR = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "format": "byte"}]}


class Embedding(TypedDict):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[Any, WithJsonSchema(_VECTOR)]


class EmbeddingUsage(TypedDict):
    """Token counts of an embeddings request."""

    prompt_tokens: int
    total_tokens: int


class EncoderAnswer(TypedDict):
    """The fields that all answers without a completion have."""

    id: str
    model: str
    service_tier: NotRequired[ServiceTier]  # if the request has one
    usage: EmbeddingUsage


class EmbeddingList(EncoderAnswer):
    """The answer of /v1/embeddings, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]


class RankedText(TypedDict):
    """The text of a ranked document."""

    text: str


class RankedDocument(TypedDict):
    """One document of a ranking."""

    index: int  # in the request
    relevance_score: float
    document: NotRequired[RankedText]  # with return_documents


class Ranking(EncoderAnswer):
    """The answer of /v1/rerank, the best document first."""

    results: list[RankedDocument]


class Score(TypedDict):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class Scores(EncoderAnswer):
    """The answer of /v1/score, in the order of the pairs."""

    object: Literal["list"]
    created: int
    data: list[Score]


class Classification(TypedDict):
    """The label of one input."""

    index: int
    label: str
    probs: list[float]  # of each label
    num_classes: int


class Classifications(EncoderAnswer):
    """The answer of /v1/classify, in the order of the inputs."""

    object: Literal["list"]
    created: int
    data: list[Classification]


# --- the other endpoints ---------------------------------------------------------------------------------------------
class ModelCardStatus(TypedDict, total=False):
    """The state of a model: a request for one that is not loaded has it loaded."""

    value: Required[str]  # unloaded, loading, loaded, unloading or failed
    memory_bytes: int  # that it holds when it is loaded
    device_bytes: dict[str, int]  # the same of graphics cards, by name
    progress: float  # of its load, 0 to 1
    position: int  # in the line of models that wait for a load: 0 is loading
    idle_s: float  # seconds since its last use
    expires_s: float  # seconds until it is unloaded without further use
    cause: str  # of the failure of its last load


class ModelCard(TypedDict):
    """One model in /v1/models."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    task: Literal["generate", "embed", "score"]
    max_model_len: int
    tool_call_format: str  # "plain": that of the chat template is unknown, or the template takes no tools
    reasoning_format: str | None  # None: the model does not think
    default_parameters: dict[str, Any]  # of a chat, where they differ from the API document's defaults
    status: ModelCardStatus


class ModelList(TypedDict):
    """The answer of /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class MessageModel(TypedDict):
    """One model in /v1/models, in Anthropic's form."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str


class MessageModelList(TypedDict):
    """A page of /v1/models in Anthropic's form."""

    data: list[MessageModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


type AnyModel = ModelCard | MessageModel  # the second one for the header `anthropic-version`
type AnyModelList = ModelList | MessageModelList


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
