"""Outputs, from the engine to the reader, and the engine's statistics."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from model_repository.contract.spec import TensorSpec

# Whether the reader is gone is known in another process, and asking takes longer than all else that the detokenizer
# does for a batch: it asks for every fourth batch only. They follow each other within a second.
BATCHES_PER_DISCONNECT_CHECK = 4


class FinishReason(StrEnum):
    """Why a sequence ended, as the engine saw it. A cancelled sequence has no reader, so it has no reason."""

    STOP = "stop"  # an end-of-generation token, or a stop sequence
    LENGTH = "length"  # max_tokens, or the context window


_LAST = "last response; with return_usage every one"


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts of a sequence: of a finished one, or as they are so far."""

    num_input_tokens: Annotated[int, TensorSpec(doc=_LAST)]
    num_output_tokens: Annotated[int, TensorSpec(doc=f"{_LAST}; the end-of-generation token counts too")]
    num_cached_tokens: Annotated[int, TensorSpec(doc=f"{_LAST}: input tokens whose KV cache was reused")] = 0


_CLOCK = "last response, with return_perf_metrics: nanoseconds of the monotonic clock of the engine's machine, when"


class Timing(Struct, frozen=True, kw_only=True):
    """The times of a finished sequence, by the monotonic clock of the engine's machine."""

    arrival_time_ns: Annotated[int, TensorSpec(datatype="INT64", doc=f"{_CLOCK} it came to the engine")]
    first_scheduled_time_ns: Annotated[int, TensorSpec(datatype="INT64", doc=f"{_CLOCK} it left the queue")]
    first_token_time_ns: Annotated[int, TensorSpec(datatype="INT64", doc=f"{_CLOCK} its first token was drawn")]
    last_token_time_ns: Annotated[int, TensorSpec(datatype="INT64", doc=f"{_CLOCK} its last token was drawn")]


class DrawnLogprob(Struct, frozen=True, array_like=True):
    """The log probability of a token in the model's raw distribution, and the most likely ones in its place."""

    logprob: float | None  # None: the first token of a prompt
    top: tuple[tuple[int, float], ...] = ()  # token id and log probability, most likely first


class DeltaDetails(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a token delta that few requests ask for."""

    prompt_token_ids: tuple[int, ...] = ()  # first delta only, with echo or has_token_ids
    echo: tuple[bytes, ...] = ()  # first delta only, with echo: the bytes of each prompt token
    logprobs: tuple[DrawnLogprob, ...] = ()  # of the echoed tokens, then of the delta's
    cum_logprob: float | None = None  # last delta only
    has_token_ids: bool = False
    has_special_tokens: bool = False  # show special tokens in the text: only for /detokenize
    stop_reason: str | int | None = None  # last delta only
    timing: Timing | None = None  # last delta only


class TokenDelta(Struct, frozen=True, omit_defaults=True, array_like=True):
    """Engine to detokenizer: the tokens of one sequence whose text is final.

    A delta without tokens, finish reason and details says that the engine has the request.
    """

    token_ids: tuple[int, ...] = ()
    num_cut_bytes: int = 0  # at the end of the last token, not part of the text: a stop sequence, or an end token
    finish_reason: FinishReason | None = None
    usage: Usage | None = None  # with finish_reason; else where the request asked for it
    details: DeltaDetails | None = None


class OutputBatch(Struct, frozen=True, array_like=True):
    """Engine to detokenizer: new tokens of the sequences of one output stream, or the messages of their errors.

    The first batch of a frontend's stream is empty and says that the stream is open. A later empty one only finds out
    whether the reader is still there.
    """

    stream: int  # the engine's own number, by which the detokenizer cancels
    serial: int  # counts from 0, so that a reader sees when a batch is lost
    is_single: bool  # the stream of one request of the public ensemble: answered by its tensors
    items: tuple[tuple[int, TokenDelta | str], ...] = ()

    @property
    def is_disconnect_check(self) -> bool:
        """Whether the detokenizer, the only stage that can see it, finds out if the reader is still there."""
        return not self.items or self.is_single or self.serial % BATCHES_PER_DISCONNECT_CHECK == 0


class TopLogprob(Struct, frozen=True, array_like=True):
    """A token that could have stood here."""

    token_id: int
    token_bytes: bytes
    logprob: float


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token of the text with its natural-log probability in the model's raw distribution."""

    token_id: int
    token_bytes: bytes  # its part of the text; the bytes of a chunk's tokens concatenate to its text
    logprob: float | None  # None: the first token of an echoed prompt, which nothing precedes
    top: tuple[TopLogprob, ...] = ()  # most likely first


class GenerationChunk(Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A piece of a completion. The last one, and only it, carries `finish_reason` and `timing`."""

    text: Annotated[str, TensorSpec("text_output", shape=(-1,), doc="the text since the last response")]
    token_ids: Annotated[
        tuple[int, ...],
        TensorSpec(doc="of the text, with return_token_ids or return_log_probs; an echoed prompt first"),
    ] = ()
    logprobs: Annotated[
        tuple[TokenLogprob, ...],
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
        int, TensorSpec("num_echoed_tokens", doc="how many of this response's token_ids are the echoed prompt's")
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
    usage: Usage | None = None  # of the last one; of the others where the request asked for it
    cum_logprob: Annotated[
        float | None,
        TensorSpec("cum_log_probs", doc="last response, with return_log_probs: the sum over the completion's text"),
    ] = None
    timing: Timing | None = None  # where the request asked for it

    @property
    def is_text(self) -> bool:
        """Whether it says nothing but its text, as almost every chunk."""
        lists = self.token_ids or self.logprobs or self.prompt_token_ids
        return self.finish_reason is None and not lists and self.usage is None


class ChunkBatch(Struct, frozen=True, array_like=True):
    """Detokenizer to reader: the chunks of an output batch, or the messages of errors, by the reader's numbers."""

    serial: int
    items: tuple[tuple[int, GenerationChunk | str], ...] = ()


class EngineStats(Struct, frozen=True, kw_only=True):
    """The engine's answer to every `control` message."""

    epoch: int  # a new number at every load: another one means that the engine's sequences are gone
    num_active: int  # sequences with KV cache cells: in prefill or decoding
    num_waiting: int
    num_cells_used: int  # KV cache cells of active sequences
    num_cells: int
    num_steps: int  # since the load
    num_step_tokens: int  # completion tokens drawn in those steps
    max_step_sequences: int  # the most sequences that one step gave a token
    num_finished: int
    num_cancelled: int
    num_streams: int  # output streams of frontends that are open
    num_output_batches: int  # sent, to whomever
    num_output_items: int  # token deltas and errors in them
    last_cancel_to_free_ms: float  # from the cancel's arrival to the moment when its cells are free
    cancel_to_free_ms: float  # of all cancels together, since the load
    step_age_ms: float  # how long the step in progress has been running; 0 between steps
    adapters: dict[str, str]  # LoRA adapters by name: from where each was loaded; empty: it is the artifact's own
    adapter_bytes: int  # of all that are in memory
    num_unloading: int  # sequences under way whose adapter is not offered any more
    is_draining: bool = False  # a frontend with another replica should use that one; requests are served all the same
