"""Outputs, from the engine to the client, and the engine's statistics."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, TypedDict

from msgspec import Struct, field

from model_repository.contract.spec import TensorSpec
from model_repository.metric_family import counter, gauge, library_gauge

# Triton's process knows whether a client is gone. To ask it takes longer than all other work of the detokenizer on a
# batch, so only every fourth batch asks. Four batches follow each other within a second.
BATCHES_PER_DISCONNECT_CHECK = 4


class FinishReason(StrEnum):
    """Why a sequence ended, as the engine saw it. A cancelled sequence has no client, and so no reason."""

    STOP = "stop"  # an end-of-generation token, or a stop sequence
    LENGTH = "length"  # max_tokens, or the context window


_LAST = "first and last response; with return_usage every one"


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts of a sequence, so far or at its end."""

    num_input_tokens: Annotated[int, TensorSpec(doc=_LAST)]
    num_output_tokens: Annotated[int, TensorSpec(doc=f"{_LAST}; the end-of-generation token counts too")]
    num_cached_tokens: Annotated[int, TensorSpec(doc=f"{_LAST}; input tokens with a reused KV cache")] = 0
    num_reasoning_tokens: Annotated[
        int, TensorSpec(doc=f"{_LAST}; output tokens of the model's thinking, its markers included")
    ] = 0


_CLOCK = "last response, with return_perf_metrics: nanoseconds of the monotonic clock of the engine's machine, when"


class Timing(Struct, frozen=True, kw_only=True):
    """Times of a finished sequence, by the monotonic clock of the engine's machine."""

    arrival_time_ns: Annotated[int, TensorSpec(datatype="INT64", doc=f"{_CLOCK} it came to the engine")]
    first_scheduled_time_ns: Annotated[int, TensorSpec(datatype="INT64", doc=f"{_CLOCK} it left the queue")]
    first_token_time_ns: Annotated[int, TensorSpec(datatype="INT64", doc=f"{_CLOCK} its first token was drawn")]
    last_token_time_ns: Annotated[int, TensorSpec(datatype="INT64", doc=f"{_CLOCK} its last token was drawn")]


class DrawnLogprob(Struct, frozen=True, array_like=True):
    """The log probability of a token in the model's raw distribution, and the most likely tokens at its position."""

    logprob: float | None  # None: of the first token of a prompt, or not reported
    top: tuple[tuple[int, float], ...] = ()  # token id and log probability, most likely first
    rank: int | None = None  # a prompt token's place among all tokens; the most likely one has 1


class DeltaDetails(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a token delta that few requests ask for."""

    prompt_token_ids: tuple[int, ...] = ()  # first delta only, with echo, has_token_ids or prompt_logprobs
    echo: tuple[bytes, ...] = ()  # first delta only, with echo: the bytes of each prompt token
    logprobs: tuple[DrawnLogprob, ...] = ()  # the echoed tokens', then the delta's
    prompt_logprobs: tuple[DrawnLogprob, ...] = ()  # first delta only, with num_prompt_logprobs
    cum_logprob: float | None = None  # last delta only
    has_token_ids: bool = False
    stop_reason: str | int | None = None  # last delta only
    timing: Timing | None = None  # last delta only


class TokenDelta(Struct, frozen=True, omit_defaults=True, array_like=True):
    """Engine to detokenizer: the tokens of one sequence whose text is final.

    A delta without tokens, finish reason and details says that the engine has accepted the request.
    """

    token_ids: tuple[int, ...] = ()
    num_cut_bytes: int = 0  # bytes of the last token that are not text: a stop sequence, or an end token
    finish_reason: FinishReason | None = None
    usage: Usage | None = None  # set with finish_reason, or in every delta if the request asked for it
    details: DeltaDetails | None = None
    spans: tuple[int, ...] = ()  # bytes of thinking and of answer, in turns; an odd number: the thinking goes on


class Announcement(TypedDict):
    """Engine to frontend: the engine has accepted a request, of whose schemas it does not follow all keywords."""

    ignored_keywords: tuple[str, ...]  # see EngineRequest


class VectorChunk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Engine to client: the whole answer to one request of a model that embeds or scores."""

    embedding: Annotated[
        bytes,
        TensorSpec(
            datatype="FP32",
            shape=(-1,),
            doc="the prompt's vector, of length 1; of a model that scores: a number for each label, before sigmoid or "
            "softmax",
        ),
    ]  # float32, little-endian
    prompt_token_ids: Annotated[
        tuple[int, ...], TensorSpec("input_token_ids", doc="first response, with return_token_ids: the prompt")
    ] = ()
    usage: Usage
    timing: Timing | None = None  # if the request asked for it
    # Of every vector; they do not travel.
    finish_reason: ClassVar = FinishReason.STOP
    num_tokens: ClassVar = 0
    is_text: ClassVar[Literal[False]] = False


class OutputBatch(Struct, frozen=True, array_like=True):
    """Engine to detokenizer: new tokens, or error messages, of the sequences of one output stream.

    The first batch of a frontend's stream is empty and says that the stream is open. A later empty batch only checks
    whether the client is still connected. A vector goes to the client without a detokenizer, in a ChunkBatch.
    """

    stream: int  # the engine's own number, 64 random bits, by which the detokenizer cancels
    serial: int  # counts from 0, so that the client notices a lost batch
    is_single: bool  # the stream of one request of the public ensemble, answered by its tensors
    items: tuple[tuple[int, TokenDelta | Announcement | str], ...] = ()
    vectors: tuple[tuple[int, VectorChunk], ...] = ()

    @property
    def is_disconnect_check(self) -> bool:
        """Whether the last stage must check the client's connection: no other stage can see it."""
        return not (self.items or self.vectors) or self.serial % BATCHES_PER_DISCONNECT_CHECK == 0


class TopLogprob(Struct, frozen=True, array_like=True):
    """One of the most likely tokens at a position."""

    token_id: int
    token_bytes: bytes
    logprob: float


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token of the text with its natural-log probability in the model's raw distribution."""

    token_id: int
    token_bytes: bytes  # its part of the text: the bytes of all tokens of a chunk concatenate to the chunk's text
    logprob: float | None  # None: the first token of a prompt
    top: tuple[TopLogprob, ...] = ()  # most likely first
    rank: int | None = None  # a prompt token's place among all tokens; the most likely one has 1


class GenerationChunk(Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A piece of a completion. Only the last one carries `finish_reason` and `timing`."""

    text: Annotated[str, TensorSpec("text_output", shape=(-1,), doc="the text since the last response")]
    token_ids: Annotated[
        tuple[int, ...],
        TensorSpec(doc="of the text, with return_token_ids or return_log_probs; an echoed prompt first"),
    ] = ()
    logprobs: Annotated[
        tuple[bytes, ...],  # see `codec.pack_logprobs`
        TensorSpec("token_bytes", doc="with return_log_probs: the bytes that each of token_ids adds to the text"),
        TensorSpec(
            "output_log_probs",
            "FP32",
            doc="with return_log_probs: of each of token_ids, raw; NaN for an echoed prompt's first token",
        ),
        TensorSpec(
            "top_logprob_token_ids",
            "INT32",
            doc="with top_logprobs: that number for each of token_ids, most likely first; -1: none",
        ),
        TensorSpec("top_logprob_token_bytes", doc="with top_logprobs: the bytes of each of top_logprob_token_ids"),
        TensorSpec(
            "top_logprob_values", "FP32", doc="with top_logprobs: the log probability of each of top_logprob_token_ids"
        ),
    ] = ()
    num_prompt_tokens: Annotated[
        int, TensorSpec("num_echoed_tokens", doc="the number of token_ids of this response that echo the prompt")
    ] = 0
    prompt_token_ids: Annotated[
        tuple[int, ...], TensorSpec("input_token_ids", doc="first response, with return_token_ids: the prompt")
    ] = ()
    finish_reason: Annotated[FinishReason | None, TensorSpec(doc="last response only: `stop` or `length`")] = None
    stop_reason: Annotated[
        str | int | None,
        TensorSpec(
            is_json=True,
            doc="last response only: the stop word (JSON string) or token id (JSON number) that ended the completion",
        ),
    ] = None  # None: the model ended it
    usage: Usage | None = None  # the last chunk's; every chunk has it if the request asked for it
    cum_logprob: Annotated[
        float | None,
        TensorSpec("cum_log_probs", doc="last response, with return_log_probs: the sum over the completion's text"),
    ] = None
    timing: Timing | None = None  # if the request asked for it
    spans: Annotated[
        tuple[int, ...],
        TensorSpec(
            "num_thinking_chars",
            doc="if text_output has thinking: characters of thinking, with its markers, and of the answer, in turns",
        ),
    ] = ()  # an odd number: the thinking goes on
    prompt_logprobs: tuple[bytes, ...] = ()  # the frontend's: no tensor carries them
    vector: None = None  # frontends and Tritons until November 2026 have a field here
    num_tokens: int = 1  # of the completion, for the counts of a stream that is cut; an older Triton sends none
    packed_token_ids: bytes = b""  # the frontend's: these tokens, int32 in the machine's order, for `resume_token_ids`

    @property
    def is_text(self) -> bool:
        """Whether the chunk carries only text, as almost every chunk does."""
        return not self.spans and self._has_text_alone

    @property
    def is_thinking(self) -> bool:
        """Whether the chunk carries only text, all of it thinking."""
        return len(self.spans) == 1 and self._has_text_alone

    @property
    def _has_text_alone(self) -> bool:
        lists = self.token_ids or self.logprobs or self.prompt_token_ids
        return self.finish_reason is None and not lists and self.usage is None


type Chunk = GenerationChunk | VectorChunk


class ChunkBatch(Struct, frozen=True, array_like=True):
    """Last stage to client: the chunks, or error messages, of an output batch, by the client's numbers."""

    serial: int
    items: tuple[tuple[int, GenerationChunk | Announcement | str], ...] = ()
    vectors: tuple[tuple[int, VectorChunk], ...] = ()


class LibraryStats(Struct, kw_only=True):
    """The state of a library that schedules by itself, after its last step, and sums since the load."""

    is_known: bool = False  # otherwise there is no state, only sums
    num_queued: Annotated[int, library_gauge("queued", "Requests in the queue inside TensorRT-LLM")] = 0
    num_scheduled: Annotated[int, library_gauge("scheduled", "Requests in TensorRT-LLM's last step")] = 0
    num_paused: Annotated[
        int,
        library_gauge(
            "paused",
            "Requests that TensorRT-LLM has paused: others use their KV blocks, and it computes them again later",
        ),
    ] = 0
    num_host_blocks_used: Annotated[
        int, library_gauge("host_blocks_used", "Blocks of the KV cache in the machine's memory")
    ] = 0
    max_host_blocks: Annotated[
        int,
        library_gauge(
            "host_blocks_max", "Blocks of the KV cache that fit in the machine's memory; 0 before release 1.3"
        ),
    ] = 0
    num_steps: Annotated[int, counter("library_steps", "Steps of TensorRT-LLM.")] = 0
    step_s: Annotated[float, counter("library_step_seconds", "Time of these steps, added up.")] = 0.0
    num_reused_blocks: Annotated[
        int, counter("library_reused_blocks", "KV blocks of prompts that TensorRT-LLM found in its cache.")
    ] = 0
    num_missed_blocks: Annotated[
        int, counter("library_missed_blocks", "KV blocks of prompts that it had to compute.")
    ] = 0


class DeviceState(Struct, frozen=True, kw_only=True):
    """The memory of a device that computes layers of the model."""

    used_bytes: Annotated[
        int, gauge("device_used_bytes", "Memory that the model takes of the graphics card `device`, as planned.")
    ]
    free_bytes: Annotated[
        int, gauge("device_free_bytes", "Memory of the graphics card `device` that no program takes.")
    ]


_UNKNOWN = "; NaN if the runtime does not know it."


class RuntimeState(Struct, frozen=True, kw_only=True):
    """The part of EngineStats that the runtime knows."""

    num_active: Annotated[int, gauge("sequences_active", "Sequences in prefill or decoding.")]
    num_waiting: Annotated[int, gauge("sequences_waiting", "Sequences in the queue.")]
    num_kv_tokens_used: Annotated[int | None, gauge("kv_tokens_used", f"KV tokens of active sequences{_UNKNOWN}")]
    max_kv_tokens: Annotated[int | None, gauge("kv_tokens_max", f"KV tokens that fit in the KV cache{_UNKNOWN}")]
    num_draft_tokens: Annotated[int, counter("draft_tokens", "Tokens drafted by speculation.")] = 0
    num_accepted_tokens: Annotated[int, counter("accepted_tokens", "Drafted tokens that were right.")] = 0
    # Of all adapters in the runtime's process, or that its library never frees.
    adapter_bytes: Annotated[int, gauge("adapter_bytes", "Bytes of LoRA adapters in memory.")] = 0
    devices: Mapping[str, DeviceState] = {}  # by name
    library: LibraryStats = field(default_factory=LibraryStats)  # not known if the runtime schedules the steps itself


class EngineStats(RuntimeState, frozen=True, kw_only=True):
    """The engine's answer to every `control` message."""

    epoch: int  # a new number at every load: a changed one means that earlier sequences are gone
    num_steps: Annotated[int, counter("steps", "Steps with tokens or embeddings.")]
    num_step_tokens: Annotated[int, counter("tokens", "Tokens generated.")]  # vectors count, too
    max_step_sequences: Annotated[int, gauge("max_step_sequences", "Largest number of sequences in one step.")]
    num_finished: Annotated[int, counter("finished", "Finished sequences.")]
    num_cancelled: Annotated[int, counter("cancelled", "Cancelled sequences.")]
    num_images: Annotated[int, counter("images", "Images computed; not those that were found in the KV cache.")]
    num_image_tokens: Annotated[int, counter("image_tokens", "Tokens of these images.")]
    image_s: Annotated[float, counter("image_seconds", "Time spent on computing images.")]
    num_streams: int  # output streams of frontends that are open
    num_output_batches: Annotated[int, counter("output_batches", "Output batches sent, to frontends and gRPC clients.")]
    num_output_items: Annotated[int, counter("output_items", "Token deltas, vectors and errors in those batches.")]
    last_cancel_to_free_ms: float  # time from the cancel's arrival until the KV tokens are free
    cancel_to_free_ms: Annotated[
        float, counter("cancel_to_free_seconds", "Time from each cancel to free KV tokens, added up.")
    ]
    step_age_ms: Annotated[float, gauge("step_age_seconds", "Age of the running step.")]  # 0 between steps
    adapters: dict[str, str]  # LoRA adapters: name to source folder; empty source: part of the artifact
    num_unloading: int  # running and waiting sequences whose LoRA adapter has been unloaded
    is_draining: bool = False  # a frontend should prefer another replica; requests are still served
    kept_marks: bytes = b""  # of the prompts in the KV cache, see contract/marks.py; only with Triton's key
