"""What writes the answer to a request that generates, and what its kinds share: a parser, token counts, padding."""

from __future__ import annotations

import secrets
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from frontend.errors import APIError
from frontend.output_parser.messages import output_parser
from frontend.output_parser.parser import OutputParser, TextParser
from frontend.protocol.answers import Timing, Usage
from frontend.protocol.chat import ChatCompletionRequest
from frontend.stream_record import StreamRecord
from frontend.triton.models import ModelName
from model_repository.contract import output
from model_repository.contract.output import GenerationChunk, VectorChunk
from model_repository.reasoning_formats import REASONING_FORMATS

_PADDING_BLOCK = 16  # characters

type Event = Mapping[str, Any]
type Keep = Callable[[Mapping[str, Any]], Awaitable[bool]]  # stores a complete answer; returns whether it is stored


class WholeReply[Kind: (GenerationChunk, VectorChunk)](Protocol):
    """Writes the answer to one request."""

    id: str
    num_per_prompt: int  # completions of each prompt
    record: StreamRecord | None = None  # the completions in figures, for their times

    def kept(self, index: int, chunk: Kind) -> Kind:
        """Return a completion's only chunk as `whole` needs it. The event loop runs between two of them."""
        return chunk

    async def finish(self, index: int, chunk: Kind) -> None:
        """Note the last chunk of a completion before its events are made, such as to store the answer first."""
        return

    def whole(self, chunks: Sequence[Kind]) -> Event:
        """Return the answer without a stream, from one chunk for each completion, as `kept` returned it.

        Its long parts are lazy lists.
        """


class Reply(WholeReply[GenerationChunk], Protocol):
    """Writes the answer to one request, whole or event by event. An event is a JSON object."""

    has_names: bool = False  # the name of each event, its `type`, goes on a line before it
    has_done: bool = True  # [DONE] is the last event; some clients wait for it after an error too
    is_numbered: bool = False  # each event has its place in the stream, as `sequence_number`
    has_whole: bool = False  # it keeps the whole answer of a stream in memory

    def opening(self, first: GenerationChunk) -> Sequence[Event]:
        """Return the events before the first chunk of all."""

    def plain_part(self, index: int, chunk: GenerationChunk) -> str | None:
        """Return the part that a chunk's text extends, if the events of such chunks differ in their text alone.

        The encoder then writes the chunk: `events` does not get it.
        """

    def plain_events(self, index: int, sample: GenerationChunk) -> Sequence[Event]:
        """Return the events of such a chunk, for a text that is not a part of the answer."""
        return self.events(index, sample)

    def events(self, index: int, chunk: GenerationChunk) -> Sequence[Event]:
        """Return the events of a chunk; after the last chunk of all, also those that end the answer."""

    def failure(self, error: APIError) -> Sequence[Event]:
        """Return the events that end a stream with an error."""
        return (error.envelope(),)


def chat_parsers(chat: ChatCompletionRequest, name: ModelName, number: int = 1) -> list[OutputParser | TextParser]:
    """Return parsers of as many answers to a chat. They share the schemas of its tools."""
    parameters = name.model.parameters
    tool_format = parameters.tool_call_format if chat.may_call() else ""
    reasoning_format = REASONING_FORMATS.get(parameters.reasoning_format)
    if not tool_format and reasoning_format is None:
        only_text: OutputParser | TextParser = TextParser()
        return [only_text] * number
    schemas, custom_names = {tool.name: tool.parameters or {} for tool in chat.offered_tools()}, chat.custom_names()
    return [output_parser(tool_format, reasoning_format, schemas, custom_names) for _ in range(number)]


_PADDING_ALPHABET = string.ascii_letters + string.digits


def total_usage(usages: Mapping[int, output.Usage], num_per_prompt: int) -> Usage:
    """Return the token counts of a request: each prompt counts once, each completion counts.

    Args:
        usages: by the number of the completion. Completions of one prompt have consecutive numbers.
        num_per_prompt: completions of each prompt.
    """
    prompts, cached = dict[int, int](), dict[int, int]()  # by number of the prompt
    completion_tokens = reasoning_tokens = 0
    for index, usage in usages.items():
        prompt = index // num_per_prompt
        prompts[prompt] = usage.num_input_tokens
        # Completions of one prompt reuse each other's KV tokens: the smallest count is from before the request.
        cached[prompt] = min(usage.num_cached_tokens, cached.get(prompt, usage.num_cached_tokens))
        completion_tokens += usage.num_output_tokens
        reasoning_tokens += usage.num_reasoning_tokens
    prompt_tokens = sum(prompts.values())
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": (num_cached := sum(cached.values())),
            "cache_write_tokens": prompt_tokens - num_cached,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "audio_tokens": 0,
        },
    }


def timing(record: StreamRecord | None) -> Timing | None:
    """Return the milliseconds of each phase of the slowest completion; None: the engine has not told them."""
    if record is None or record.slowest is None:
        return None
    tokenize, queue, prefill, decode = (round(seconds * 1000, 3) for seconds in record.slowest.by_name().values())
    return {"tokenize": tokenize, "queue": queue, "prefill": prefill, "decode": decode}


def padding(num_chars: int) -> str:
    """Return 1 to 16 random characters that pad a text to whole blocks: event sizes then say little about the text."""
    return "".join(secrets.choice(_PADDING_ALPHABET) for _ in range(_PADDING_BLOCK - num_chars % _PADDING_BLOCK))
