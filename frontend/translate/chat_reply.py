"""The answer to a chat request, whole or event by event."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

import msgspec.structs

from frontend.json_pieces import lazy_list
from frontend.output_parser.deltas import ArgumentsDelta, CallBegin, OutputDelta, ReasoningDelta, TextDelta
from frontend.protocol.answers import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChunkChoice,
    CustomCall,
    Delta,
    FinishReason,
    FunctionCall,
    ToolCall,
)
from frontend.protocol.chat import ChatCompletionRequest
from frontend.translate.logprobs import chat_logprobs, prompt_logprobs
from frontend.translate.reply import Keep, Reply, chat_parsers, padding, timing, total_usage
from frontend.triton.chunk_queue import joined
from frontend.triton.models import ModelName
from model_repository.contract import output
from model_repository.contract.output import GenerationChunk


class ChatReply(Reply):
    """Writes the answer to one chat.

    Args:
        chat: the request.
        name: the model, by the client's name.
        created: unix seconds.
        keep: stores the answer; None: it is not stored.
    """

    def __init__(self, chat: ChatCompletionRequest, name: ModelName, created: int, keep: Keep | None = None) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(16)}"
        self._chat = chat
        self._keep = keep
        self.has_whole = keep is not None
        self._kept: dict[int, list[GenerationChunk]] = {}  # the chunks of each choice, if they are stored
        self.num_per_prompt = chat.n or 1
        self._created = created
        self._name = name
        self._service_tier = chat.tier()
        options = chat.stream_options
        self._has_usage = options is not None and bool(options.include_usage)
        self._has_running_usage = options is not None and bool(options.continuous_usage_stats)
        self._is_padded = options is not None and bool(options.include_obfuscation)
        self._has_timing = options is not None and bool(options.include_timing)
        self._has_logprobs = bool(chat.logprobs)
        self._has_token_ids = bool(chat.return_token_ids)
        self._names_ids = bool(chat.return_tokens_as_token_ids)
        self._is_deprecated = bool(chat.functions)
        tool_choice = chat.tool_choice or chat.function_call
        self._is_named = tool_choice is not None and tool_choice.type == "function"
        self._has_no_content = chat.must_call()
        self._has_reasoning = chat.include_reasoning is not False
        self._parsers = chat_parsers(chat, name, self.num_per_prompt)
        self._num_running = self.num_per_prompt
        self._usages: dict[int, output.Usage] = {}  # choice to usage
        self._is_plain = not (chat.may_call() or self._is_padded or self._has_logprobs or self._has_token_ids)

    def opening(self, first: GenerationChunk) -> Sequence[ChatCompletionChunk]:
        """Return the events with the role, one for each choice."""
        if first.usage is not None:
            self._usages[0] = msgspec.structs.replace(first.usage, num_output_tokens=0)
        role: Delta = {"role": "assistant", "content": ""}
        events = [self._chunk(self._piece(index, role)) for index in range(self.num_per_prompt)]
        if first.prompt_token_ids:
            events[0]["prompt_token_ids"] = list(first.prompt_token_ids)
        return events

    def plain_part(self, index: int, chunk: GenerationChunk) -> str | None:
        """See Reply."""
        part = self._parsers[index].plain_part(chunk) if self._is_plain and chunk.text else None
        if part is not None:
            self._note(index, chunk)
        return part

    def _note(self, index: int, chunk: GenerationChunk) -> None:
        if self.has_whole:
            self._kept.setdefault(index, []).append(chunk)

    async def finish(self, index: int, chunk: GenerationChunk) -> None:
        """See Reply. What is stored is the answer without a stream."""
        self._note(index, chunk)
        chunks = [self._kept[number] for number in sorted(self._kept) if self._kept[number][-1].finish_reason]
        if self._keep is not None and len(chunks) == self.num_per_prompt:
            reply = ChatReply(self._chat, self._name, self._created)
            reply.id = self.id
            await self._keep(reply.whole([joined(parts) for parts in chunks]))

    def events(self, index: int, chunk: GenerationChunk) -> Sequence[ChatCompletionChunk]:
        """Return the events of a chunk; after the last chunk of all, also the usage if the client wants it."""
        if chunk.finish_reason is None:
            self._note(index, chunk)
        if chunk.usage is not None:
            self._usages[index] = chunk.usage
        pieces = [self._piece(index, delta) for delta in self._deltas(index, chunk)]
        if not pieces and (chunk.finish_reason is not None or chunk.logprobs or chunk.token_ids):
            pieces = [self._piece(index, {})]
        if pieces and self._has_logprobs:
            pieces[0]["logprobs"] = self._logprobs(chunk)
        if pieces and self._has_token_ids:
            pieces[0]["token_ids"] = list(chunk.token_ids)
        if chunk.finish_reason is not None:
            pieces[-1]["finish_reason"] = self._finish_reason(index, chunk.finish_reason)
            pieces[-1]["stop_reason"] = chunk.stop_reason
            self._num_running -= 1
        events = [self._chunk(piece) for piece in pieces]
        if chunk.finish_reason is not None and not self._num_running:
            self._close(events)
        return events

    def _close(self, events: list[ChatCompletionChunk]) -> None:
        """Add what the client wants to know at the end of the stream."""
        if self._has_usage:
            closing = self._chunk()
            closing["usage"] = total_usage(self._usages, self.num_per_prompt)
            events.append(closing)
        if self._has_timing:
            events[-1]["timing"] = timing(self.record)

    def whole(self, chunks: Sequence[GenerationChunk]) -> ChatCompletion:
        """Return the answer without a stream, from one chunk for each choice."""
        usages = {index: chunk.usage for index, chunk in enumerate(chunks) if chunk.usage is not None}
        whole: ChatCompletion = {
            "id": self.id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._name.requested,
            "system_fingerprint": self._name.model.parameters.fingerprint,
            "choices": lazy_list(lambda: itertools.starmap(self._whole_choice, enumerate(chunks))),
            "usage": total_usage(usages, len(chunks)),
        }
        if self._service_tier is not None:
            whole["service_tier"] = self._service_tier
        if chunks[0].prompt_token_ids:
            whole["prompt_token_ids"] = list(chunks[0].prompt_token_ids)
        if chunks[0].prompt_logprobs:
            whole["prompt_logprobs"] = prompt_logprobs(chunks[0].prompt_logprobs)
        return whole

    def _whole_choice(self, index: int, chunk: GenerationChunk) -> ChatChoice:
        message = self._message(self._deltas(index, chunk))
        assert chunk.finish_reason is not None, "the only chunk of a completion is its last"
        whole: ChatChoice = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(chunk) if self._has_logprobs else None,
            "finish_reason": self._finish_reason(index, chunk.finish_reason),
            "stop_reason": chunk.stop_reason,
        }
        if self._has_token_ids:
            whole["token_ids"] = list(chunk.token_ids)
        return whole

    def _logprobs(self, chunk: GenerationChunk) -> ChatLogprobs:
        is_whole = self._has_token_ids or self._names_ids
        tokens = partial(chat_logprobs, chunk.logprobs, has_ids=self._names_ids, is_whole=is_whole)
        return {"content": lazy_list(tokens), "refusal": None}

    def _message(self, deltas: Sequence[Delta]) -> AssistantMessage:
        content = "".join(delta.get("content", "") for delta in deltas)
        reasoning = "".join(delta.get("reasoning", "") for delta in deltas)
        message: AssistantMessage = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
        if reasoning:
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}
        calls: list[ToolCall] = []
        for delta in deltas:
            for call in delta.get("tool_calls", ()):
                if "id" in call and "custom" in call:
                    calls.append({"id": call["id"], "type": "custom", "custom": call["custom"].copy()})
                elif "id" in call:
                    calls.append({"id": call["id"], "type": "function", "function": call["function"].copy()})
                elif "custom" in call:
                    calls[call["index"]]["custom"]["input"] += call["custom"]["input"]
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        function_calls = [delta["function_call"] for delta in deltas if "function_call" in delta]
        if calls:
            message["tool_calls"] = calls
        if function_calls:
            arguments = "".join(call["arguments"] for call in function_calls)
            message["function_call"] = {"name": function_calls[0]["name"], "arguments": arguments}
        if (calls or function_calls or reasoning) and not content:
            message["content"] = None
        return message

    def _deltas(self, index: int, chunk: GenerationChunk) -> list[Delta]:
        """Return a chunk's additions to the message of a choice."""
        parsed = self._parsers[index].read(chunk)
        return [delta for each in parsed if (delta := self._delta(index, each)) is not None]

    def _delta(self, choice: int, parsed: OutputDelta) -> Delta | None:
        match parsed:
            case TextDelta(text):
                return None if self._has_no_content else {"content": text}
            case ReasoningDelta(text):
                return {"reasoning_content": text, "reasoning": text} if self._has_reasoning else None
            case CallBegin(index, name, is_custom):
                place = f"{self.id} {choice} {index}"  # a stored answer has the ids of the streamed one
                call_id = f"call_{blake2b(place.encode(), digest_size=12).hexdigest()}"
                if is_custom:
                    custom: CustomCall = {"name": name, "input": ""}
                    return {"tool_calls": [{"index": index, "id": call_id, "type": "custom", "custom": custom}]}
                function: FunctionCall = {"name": name, "arguments": ""}
                if self._is_deprecated:
                    return {"function_call": function} if index == 0 else None
                return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
            case ArgumentsDelta(index, text, is_custom=True):
                return {"tool_calls": [{"index": index, "custom": {"input": text}}]}
            case ArgumentsDelta(index, text):
                more: FunctionCall = {"arguments": text}
                if self._is_deprecated:
                    return {"function_call": more} if index == 0 else None
                return {"tool_calls": [{"index": index, "function": more}]}
            case _:
                return None

    def _finish_reason(self, index: int, reason: output.FinishReason) -> FinishReason:
        if reason is output.FinishReason.STOP and self._parsers[index].has_called and not self._is_named:
            return "function_call" if self._is_deprecated else "tool_calls"
        return reason.value

    def _piece(self, index: int, delta: Delta) -> ChunkChoice:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _chunk(self, *choices: ChunkChoice) -> ChatCompletionChunk:
        chunk: ChatCompletionChunk = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._name.requested,
            "system_fingerprint": self._name.model.parameters.fingerprint,
            "choices": list(choices),
        }
        if self._service_tier is not None:
            chunk["service_tier"] = self._service_tier
        if self._has_running_usage:
            chunk["usage"] = total_usage(self._usages, self.num_per_prompt)
        elif self._has_usage:
            chunk["usage"] = None
        if self._is_padded and choices:
            chunk["obfuscation"] = padding(len(str(choices[0]["delta"])))
        return chunk
