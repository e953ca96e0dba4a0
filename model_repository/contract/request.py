"""Requests, from the HTTP body to the engine: each field declares the tensor that carries it.

A gRPC client of the public ensemble sends the tensors, named as in NVIDIA's TensorRT-LLM ensemble where that has the
field. Frontend, tokenizer and engine exchange the messages themselves, in MessagePack.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from model_repository.contract.spec import TensorSpec
from model_repository.reasoning_formats import ReasoningFormat

MAX_STOP_WORDS = 16  # each token is compared with each stop word: 16 cost 3 us more per token than OpenAI's 4
MAX_BAD_WORDS, MAX_BAD_WORD_CHARS = 256, 64

MAX_TOKEN_IDS = 1024  # one field's
MAX_IMAGES = 16
IMAGE_MARKER = "<image>"  # the place of an image in a prompt's text
IMAGE_PLACE = -1  # the same among the token ids that the engine gets
MAX_BATCH_REQUESTS = 32  # a batch is one message
MAX_TOP_LOGPROBS = 20
MAX_IGNORED_PLACES, MAX_PLACE_CHARS = 32, 200  # keywords of schemas that are named to the client
MAX_STREAM_INTERVAL_MS = 1000  # the longest time for which a client may let tokens wait

_NotEmpty = Annotated[str, Meta(min_length=1)]


class ContextOverflow(StrEnum):
    """What happens when the prompt and `max_tokens` together exceed the context window."""

    TRUNCATE = "truncate"  # max_tokens is lowered to the room that the prompt leaves
    ERROR = "error"  # the request is refused


class Mirostat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mirostat 2.0: keeps the surprise of each token near a target, instead of truncating the distribution."""

    target: Annotated[
        float,
        TensorSpec(
            "mirostat_target",
            low=0,
            high=20,
            doc="bits of surprise; sent, Mirostat 2.0 replaces top_p, top_k and min_p",
        ),
    ] = 1.5
    learning_rate: Annotated[
        float,
        TensorSpec(
            "mirostat_lr",
            low=0,
            high=1,
            is_low_open=True,
            doc="the learning rate (default 0.1); sent, Mirostat is on",
        ),
    ] = 0.1


class SamplingParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is sampled. The defaults sample from the model's own distribution."""

    temperature: Annotated[
        float, TensorSpec(low=0, high=2, doc="0 is greedy, as is a request without any sampling input")
    ] = 1.0
    top_p: Annotated[
        float, TensorSpec(low=0, high=1, doc="draw from the likeliest tokens that together have this probability")
    ] = 1.0
    top_k: Annotated[int, TensorSpec(low=-1, doc="draw from this number of likeliest tokens; 0 and -1 are off")] = 0
    min_p: Annotated[
        float,
        TensorSpec(low=0, high=1, doc="leave out tokens below this share of the likeliest one's probability"),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        TensorSpec(low=0, high=2, is_low_open=True, doc="above 1 makes tokens of prompt and completion less likely"),
    ] = 1.0
    presence_penalty: Annotated[
        float, TensorSpec(low=-2, high=2, doc="subtracted from the logits of tokens that the completion has")
    ] = 0.0
    frequency_penalty: Annotated[
        float, TensorSpec(low=-2, high=2, doc="the same, once for each time that the completion has the token")
    ] = 0.0
    logit_bias: Annotated[
        Mapping[int, float],
        TensorSpec("logit_bias_token_ids", low=0, has_token_ids=True, doc="tokens to bias"),
        TensorSpec("logit_bias_values", low=-100, high=100, doc="one for each of them; -100 bans, 100 forces"),
    ] = field(default_factory=dict)
    mirostat: Mirostat | None = None  # replaces top_p, top_k and min_p
    seed: Annotated[
        int,
        TensorSpec(
            datatype="UINT64",
            doc="same seed and inputs, same text, but not on TensorRT-LLM's PyTorch backend; default: a random one",
        ),
        Meta(ge=0),
    ] = 0

    def __post_init__(self) -> None:
        if self.top_k == -1:  # one value for one meaning
            force_setattr(self, "top_k", 0)


class OutputFormat(StrEnum):
    """The languages that describe a structured output."""

    JSON_OBJECT = "json"  # any JSON object; no content
    JSON_SCHEMA = "json_schema"  # a JSON schema, as JSON
    REGEX = "regex"  # matches the whole completion
    CHOICE = "choice"  # a JSON list of texts
    GRAMMAR = "ebnf_grammar"  # GBNF; a grammar in llguidance's dialect of Lark could keep its compiler busy without end


class StructuredOutput(Struct, frozen=True, omit_defaults=True):
    """The form that the whole completion must have."""

    format: Annotated[
        OutputFormat,
        TensorSpec(
            "guided_decoding_guide_type",
            doc="`json`, `json_schema`, `regex`, `choice` or `ebnf_grammar`; empty: none",
        ),
    ]
    content: Annotated[str, TensorSpec("guided_decoding_guide", doc="the schema, expression, list or grammar")] = ""
    is_strict: Annotated[
        bool,
        TensorSpec(
            "guided_decoding_strict",
            doc="with a JSON schema; true (default): refuse a keyword that cannot be enforced; false: ignore it",
        ),
    ] = True


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about a completion except its prompt. It travels unchanged from the frontend to the engine."""

    max_tokens: Annotated[
        int,
        TensorSpec(low=0, doc="the largest number of completion tokens (default 16); 0 only to score an echoed prompt"),
    ] = 16
    min_tokens: Annotated[
        int,
        TensorSpec(
            low=0,
            doc="neither end tokens nor stop words end a completion of fewer tokens; a complete structured output does",
        ),
    ] = 0
    stop: Annotated[
        tuple[_NotEmpty, ...],
        TensorSpec(
            "stop_words",
            max_items=MAX_STOP_WORDS,
            doc=f"texts that end the completion, {MAX_STOP_WORDS} at most; left out of it",
        ),
    ] = ()
    bad_words: Annotated[
        tuple[_NotEmpty, ...],
        TensorSpec(
            max_items=MAX_BAD_WORDS,
            max_chars=MAX_BAD_WORD_CHARS,
            doc=f"texts that the completion does not contain: {MAX_BAD_WORDS} of {MAX_BAD_WORD_CHARS} characters at "
            "most",
        ),
    ] = ()
    allowed_token_ids: Annotated[
        tuple[int, ...],
        TensorSpec(
            low=0,
            max_items=MAX_TOKEN_IDS,
            has_token_ids=True,
            doc=f"the only tokens that the completion may have, end tokens among them: {MAX_TOKEN_IDS} at most",
        ),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        TensorSpec(
            low=0,
            max_items=MAX_TOKEN_IDS,
            has_token_ids=True,
            doc="tokens that end the completion; left out of its text",
        ),
    ] = ()
    include_stop: Annotated[
        bool, TensorSpec("include_stop_str_in_output", doc="true: the text keeps the stop word that ended it")
    ] = False
    ignore_eos: Annotated[bool, TensorSpec(doc="true: the model's own end tokens do not end the completion")] = False
    truncate_prompt_tokens: Annotated[
        int | None,
        TensorSpec(
            low=-1,
            doc="the prompt keeps only this number of its last tokens; -1: those that max_tokens leave of the context "
            "window",
        ),
    ] = None
    overflow: Annotated[
        ContextOverflow,
        TensorSpec(
            "context_length_exceeded_behavior",
            doc="`truncate` (default): max_tokens is lowered to what the context window leaves; `error`: refuse",
        ),
    ] = ContextOverflow.TRUNCATE
    sampling: SamplingParams = field(default_factory=SamplingParams)
    structured_output: StructuredOutput | None = None
    thinking_budget: Annotated[
        int | None,
        TensorSpec(low=0, doc="with messages, for a model that thinks: tokens after which the thinking ends"),
    ] = None
    lora_name: Annotated[str, TensorSpec(doc="one of the model's LoRA adapters; empty: none")] = ""
    is_echo: Annotated[
        bool,
        TensorSpec(
            "exclude_input_in_output", is_negated=True, doc="true (default); false: the text begins with the prompt"
        ),
    ] = False
    has_logprobs: Annotated[
        bool,
        TensorSpec(
            "return_log_probs", doc="true: log probabilities of the text's tokens, an echoed prompt's among them"
        ),
    ] = False
    num_top_logprobs: Annotated[
        int,
        TensorSpec(
            "top_logprobs",
            low=0,
            high=MAX_TOP_LOGPROBS,
            doc="with return_log_probs: the number of most likely tokens",
        ),
    ] = 0
    # Likely tokens for each prompt token; None: the prompt is not scored. A gRPC client asks for an echo instead.
    num_prompt_logprobs: int | None = None
    has_token_ids: Annotated[
        bool, TensorSpec("return_token_ids", doc="true: the ids of the text's and the prompt's tokens")
    ] = False
    has_usage: Annotated[
        bool, TensorSpec("return_usage", doc="with stream: every response has the token counts so far")
    ] = False
    has_timing: Annotated[
        bool, TensorSpec("return_perf_metrics", doc="true: the times of arrival, start, first and last token")
    ] = False
    is_stream: Annotated[bool, TensorSpec("stream", doc="false (default): one response with the whole text")] = False
    stream_interval_ms: Annotated[
        int | None,
        TensorSpec(
            low=0,
            high=MAX_STREAM_INTERVAL_MS,
            doc="with stream: the longest time for which tokens gather under load (default: the model's setting)",
        ),
    ] = None
    priority: Annotated[
        int,
        TensorSpec(
            low=-1,
            high=1,
            doc="priority in the queue: -1 counts as 10 s earlier, 1 as 10 s later",
        ),
    ] = 0
    sender: Annotated[
        str,
        TensorSpec(doc="name of the sender: prompts and grammars of one sender wait for each other, and share limits"),
    ] = ""
    cache_salt: Annotated[
        str, TensorSpec(doc="requests reuse the KV tokens of an earlier prompt only if both have the same salt")
    ] = ""
    cancel_key: Annotated[
        str, TensorSpec(doc="an unguessable name of this request alone, by which the engine's `control` can cancel it")
    ] = ""
    resume_token_ids: Annotated[
        tuple[int, ...] | None,
        TensorSpec(
            low=0,
            has_token_ids=True,
            doc="the completion's token_ids so far, of a request that was cut: the responses go on behind them",
        ),
    ] = None

    marks: bytes = b""  # the frontend's, of the prompt: contract/marks.py
    keep_s: float = 0.0  # the frontend's: for which the prompt's KV tokens stay after the completion, if they can

    @property
    def num_logprobs(self) -> int | None:
        """The number of most likely tokens for each token's log probability; None: no log probabilities."""
        return self.num_top_logprobs if self.has_logprobs else None


class ToolUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tools that a chat offers, and whether the model must call one of them."""

    tools: Annotated[
        tuple[Mapping[str, Any], ...],
        TensorSpec(is_json=True, doc="with messages: JSON list of OpenAI's tool objects, functions and custom tools"),
    ]
    choice: Annotated[str, TensorSpec("tool_choice", doc="`none`, `auto` (default), `required` or `function:NAME`")] = (
        "auto"
    )
    is_parallel: Annotated[
        bool, TensorSpec("parallel_tool_calls", doc="true (default): more than one call may follow")
    ] = True


class TextPrompt(Struct, frozen=True, omit_defaults=True, tag="text"):
    """Text of a completions request: strings of added tokens in it are parsed as tokens."""

    text: Annotated[str, TensorSpec("text_input", doc="prompt as text; strings of added tokens in it are parsed")]
    suffix: Annotated[
        str, TensorSpec(doc="with text_input: fill in the middle between the two, by the model's own tokens")
    ] = ""


class ChatPrompt(Struct, frozen=True, omit_defaults=True, tag="chat"):
    """A conversation for the model's chat template: its text never becomes a special token."""

    messages: Annotated[
        tuple[Mapping[str, Any], ...],  # OpenAI's message objects, `content` a string
        TensorSpec(is_json=True, doc="JSON list of chat messages for the model's chat template; text, or text parts"),
    ]
    tool_use: ToolUse | None = None
    template_kwargs: Annotated[
        Mapping[str, Any],
        TensorSpec("chat_template_kwargs", is_json=True, doc="JSON object: further variables for the template"),
    ] = field(default_factory=dict)
    add_generation_prompt: Annotated[bool, TensorSpec(doc="true (default): open the assistant's message")] = True
    continue_final_message: Annotated[
        bool, TensorSpec(doc="true: continue the last message; add_generation_prompt must be false")
    ] = False
    max_prompt_tokens: int | None = None  # the oldest turns are left out until the rest has no more; None: no limit


class TokenPrompt(Struct, frozen=True, tag="tokens"):
    token_ids: Annotated[tuple[int, ...], TensorSpec("input_ids", doc="prompt as token ids")]


class PairPrompt(Struct, frozen=True, tag="pair"):
    """A pair of texts for a model that scores: of a reranker the query and a document."""

    texts: Annotated[
        tuple[str, ...],
        TensorSpec("text_pair", shape=(2,), doc="two texts, for a model that scores: of a reranker query and document"),
    ]


type Prompt = TextPrompt | ChatPrompt | TokenPrompt | PairPrompt


class GenerationRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completion of one prompt, complete: later stages fill in no default."""

    prompt: Prompt
    params: Params
    images: Annotated[
        tuple[bytes, ...],
        TensorSpec(max_items=MAX_IMAGES, doc="PNG, JPEG, WebP or GIF files, one for each `<image>` in the prompt"),
    ] = ()
    request_id: str = ""  # the HTTP request's, for logs: printable ASCII
    group: str = ""  # the frontend's: requests of one group go to one replica if they can; empty: any


class Thinking(Struct, frozen=True, omit_defaults=True):
    """How a completion thinks before its answer."""

    format: ReasoningFormat
    is_open: bool  # the prompt ends with the begin marker; otherwise the model may write it
    budget: int | None = None  # tokens after which the end marker is forced; None: no limit
    is_off: bool = False  # the prompt is behind the thinking: a grammar holds from the first token on
    has_tokens: bool = False  # the vocabulary has the markers as tokens: the same text in other tokens is none
    call: str = ""  # begins a tool call; empty: the completion has none, or its format has no such marker


class EngineRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt that fits the context window, and everything else about its completion."""

    prompt_token_ids: tuple[int, ...]  # IMAGE_PLACE for each image
    max_tokens: int  # fits the context window together with the prompt; 0: only the prompt is computed
    params: Params = field(default_factory=Params)
    images: tuple[bytes, ...] = ()  # files
    end_token_ids: tuple[int, ...] = ()  # end this completion, besides the model's own end tokens
    echo: tuple[bytes, ...] = ()  # the bytes of each prompt token in the echoed text; empty: no echo
    grammar: str = ""  # the form of the whole completion, as llguidance compiles it; empty: any text
    is_combined: bool = False  # the grammar has calls or heads of messages, not only the request's structured output
    grammar_bytes: int = 0  # memory of the compiled grammar; 0: not known
    ignored_keywords: tuple[str, ...] = ()  # places in the request's schemas; one more than MAX_IGNORED_PLACES at most
    thinking: Thinking | None = None  # None: all text is the answer
    request_id: str = ""

    @property
    def resumed_token_ids(self) -> tuple[int, ...]:
        """The first tokens of the completion, which its client has already."""
        return self.params.resume_token_ids or ()

    @property
    def is_redrawn(self) -> bool:
        """Whether the resumed tokens are drawn again: Mirostat's estimate follows from each draw."""
        return bool(self.resumed_token_ids) and self.params.sampling.mirostat is not None

    @property
    def replayed_token_ids(self) -> tuple[int, ...]:
        """The resumed tokens that are computed with the prompt."""
        return () if self.is_redrawn else self.resumed_token_ids

    @property
    def num_scored_logprobs(self) -> int | None:
        """The number of most likely tokens for each prompt token's log probability; None: the prompt has none."""
        if self.params.resume_token_ids is not None:  # the client has them
            return None
        counts = (self.params.num_logprobs if self.echo else None, self.params.num_prompt_logprobs)
        return max((count for count in counts if count is not None), default=None)


class RequestBatch(Struct, frozen=True):
    """Frontend to tokenizer: requests of one output stream, each with a number that the sender chooses."""

    stream: str  # the key of the output stream
    items: Annotated[tuple[tuple[int, GenerationRequest], ...], Meta(max_length=MAX_BATCH_REQUESTS)]


class EngineRequestBatch(Struct, frozen=True):
    """Tokenizer to engine: the same requests; a refused one is replaced by its error message."""

    stream: str  # empty: the response to this batch is the output stream, and the batch has one item
    items: Annotated[tuple[tuple[int, EngineRequest | str], ...], Meta(max_length=MAX_BATCH_REQUESTS)]


class TokenizeRequest(Struct, frozen=True, omit_defaults=True):
    """Frontend to tokenizer: a prompt that is only tokenized."""

    prompt: Prompt
    add_special_tokens: bool = True  # text prompts only
    sender: str = ""  # see Params
    has_strings: bool = True


class DetokenizeRequest(Struct, frozen=True, omit_defaults=True):
    """Frontend to tokenizer: a request for the text of token ids."""

    token_ids: tuple[int, ...]
    has_special_tokens: bool = False  # show them in the text
    sender: str = ""  # see Params


class TokenizeAnswer(Struct, frozen=True):
    token_ids: tuple[int, ...]
    strings: tuple[str, ...]  # each token as the vocabulary writes it, with has_strings
