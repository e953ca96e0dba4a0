"""What is asked of a model and what it answers, as plain values: no I/O, no Triton, no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why a sequence ended, as the engine saw it. A cancelled sequence has no reader, so it has no reason."""

    STOP = "stop"  # an end-of-generation token, or a stop sequence
    LENGTH = "length"  # max_tokens, or the context window


class ContextOverflow(StrEnum):
    """What happens when prompt and `max_tokens` together exceed the context window."""

    TRUNCATE = "truncate"  # max_tokens is lowered to what the prompt leaves
    ERROR = "error"  # the request is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirostat:
    """Mirostat 2.0: keeps the surprise of each token near a target, instead of truncating the distribution."""

    target: float = 1.5  # bits of surprise per token
    learning_rate: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. The defaults draw from the model's own distribution."""

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # 0 keeps only the most likely token
    top_k: int = 0  # 0 is off
    min_p: float = 0.0  # 0 is off; else tokens below this share of the most likely one's probability are left out
    repetition_penalty: float = 1.0  # over prompt and completion
    presence_penalty: float = 0.0  # over the completion only
    frequency_penalty: float = 0.0  # over the completion only
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id to what is added; -100 bans, 100 forces
    mirostat: Mirostat | None = None  # in place of top_p, top_k and min_p
    seed: int = 0  # 64 bits, unsigned


class GuideKind(StrEnum):
    """The languages in which the form of a completion can be prescribed."""

    JSON_OBJECT = "json"  # any JSON object; no content
    JSON_SCHEMA = "json_schema"  # a JSON schema, as JSON
    REGEX = "regex"  # of the whole completion
    CHOICE = "choice"  # a JSON list of texts
    GRAMMAR = "ebnf_grammar"  # GBNF
    LARK = "lark_grammar"  # llguidance's dialect of Lark: only the stages' own, never a request's


@dataclass(frozen=True, slots=True)
class Guide:
    """What the whole completion must look like."""

    kind: GuideKind
    content: str = ""
    is_strict: bool = True  # of a JSON schema: each of its constraints is enforced, or else the request refused
    num_bytes: int = field(default=0, compare=False)  # of memory that it takes compiled; 0: not compiled yet


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools that a chat offers, and whether the model must call one."""

    tools: tuple[Mapping[str, Any], ...]  # OpenAI's tool objects, of type function
    choice: str = "auto"  # none, auto, required, or `function:NAME`
    is_parallel: bool = True  # more than one call may follow


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text as a completions client sends it: strings of added tokens in it are parsed as tokens."""

    text: str
    suffix: str = ""  # not empty: fill in the middle between text and suffix


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the model's chat template: text inside it never becomes a special token."""

    messages: tuple[Mapping[str, Any], ...]  # OpenAI's message objects, `content` a string
    tool_use: ToolUse | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # further names for the template
    add_generation_prompt: bool = True  # open the assistant's turn
    continue_final_message: bool = False  # leave the last message's turn open instead: the completion goes on with it


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that is already token ids."""

    token_ids: tuple[int, ...]


type Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One completion of one prompt, complete: nothing downstream fills in a default."""

    prompt: Prompt
    max_tokens: int  # 0: only together with echo
    sampling: SamplingParams
    overflow: ContextOverflow = ContextOverflow.TRUNCATE
    stop: tuple[str, ...] = ()  # none of them empty
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()  # texts that the completion does not contain; none of them empty
    include_stop: bool = False  # the text ends with the stop sequence that ended it
    ignore_eos: bool = False  # the model's own end tokens do not end it
    min_tokens: int = 0  # before it neither end tokens nor stop sequences end it
    is_echo: bool = False  # the text begins with the prompt
    num_logprobs: int | None = None  # None: none; 0: of the tokens drawn; k: and of the k most likely beside them
    has_token_ids: bool = False  # chunks carry their token ids
    has_usage: bool = False  # every chunk of a stream says how many tokens there are so far
    has_timing: bool = False  # the last chunk says when things happened
    guide: Guide | None = None
    lora_name: str = ""
    images: tuple[bytes, ...] = ()
    is_stream: bool = False  # false: one chunk with everything
    cancel_key: str = ""  # unguessable; empty: cancelled by sequence number only
    delivery_key: str = ""  # of the stream of deliveries to which its chunks go; empty: they answer the request
    delivery_number: int = 0  # its name there
    stream_interval_ms: int | None = None  # under load its tokens may gather for so long; None: as the model is served
    priority: int = 0  # -1: it passes others that wait for the engine, 1: they pass it; in the end nobody is passed
    sender: str = ""  # grammars of one sender are compiled one after the other
    request_id: str = ""  # what logs call the request that it belongs to: printable ASCII


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a sequence: of a finished one, or as they are so far."""

    num_input_tokens: int
    num_output_tokens: int  # every token the engine produced, the end-of-generation token among them
    num_cached_tokens: int = 0  # of the input, those whose KV cache cells were reused


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When things happened to a finished sequence, by the monotonic clock of the engine's machine."""

    arrival_time_ns: int  # at the engine
    first_scheduled_time_ns: int  # out of the runtime's queue
    first_token_time_ns: int  # drawn
    last_token_time_ns: int


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """A token that could have stood here."""

    token_id: int
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the text with its natural-log probability in the model's raw distribution."""

    token_id: int
    token_bytes: bytes  # what it adds to the text; the bytes of a chunk's tokens concatenate to its text
    logprob: float | None  # None: the first token of an echoed prompt, which nothing precedes
    top: tuple[TopLogprob, ...] = ()  # most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChunk:
    """A piece of a completion. The last one, and only it, carries `finish_reason` and `timing`."""

    text: str
    token_ids: tuple[int, ...] = ()  # where the request asked for them; an echoed prompt's first
    logprobs: tuple[TokenLogprob, ...] = ()  # where the request asked for them; an echoed prompt's first
    num_prompt_tokens: int = 0  # how many of token_ids and logprobs are the echoed prompt's
    prompt_token_ids: tuple[int, ...] = ()  # of the first chunk, where the request asked for token ids
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop sequence, or the token id, that ended it; None: the model did
    usage: Usage | None = None  # of the last one; of the others where the request asked for it
    timing: Timing | None = None  # where the request asked for it

    @property
    def is_text(self) -> bool:
        """Whether it says nothing but its text, as almost every chunk."""
        lists = self.token_ids or self.logprobs or self.prompt_token_ids
        return self.finish_reason is None and not lists and self.usage is None
