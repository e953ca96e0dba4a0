"""The answer to a completions request, whole or event by event."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from frontend.protocol.answers import CompletionChoice, TextCompletion, Usage
from frontend.protocol.completion import CompletionRequest
from frontend.translate.logprobs import CompletionLogprobsWriter, mean_logprob, prompt_logprobs
from frontend.translate.reply import Reply, padding, timing, total_usage
from frontend.triton.models import ModelName
from model_repository.contract import output
from model_repository.contract.output import GenerationChunk


class CompletionReply(Reply):
    """Writes the answer to one completions request.

    Args:
        completion: the request.
        name: the model, by the client's name.
        created: unix seconds.
        prompt_num_chars: characters of each prompt; read with log probabilities only.
    """

    def __init__(
        self, completion: CompletionRequest, name: ModelName, created: int, prompt_num_chars: Sequence[int] = ()
    ) -> None:
        self.id = f"cmpl-{secrets.token_hex(16)}"
        self._created = created
        self._name = name
        self._service_tier = completion.tier()
        self._num_chosen = completion.n or 1
        self.num_per_prompt = completion.best_of or self._num_chosen
        self._has_logprobs = completion.logprobs is not None
        self._has_token_ids = bool(completion.return_token_ids)
        self._usages: dict[int, output.Usage] = {}
        has_ids = bool(completion.return_tokens_as_token_ids)
        num_chars = prompt_num_chars if self._has_logprobs and not completion.echo else [0] * len(completion.prompt)
        self._writers = [
            CompletionLogprobsWriter(each, has_ids=has_ids) for each in num_chars for _ in range(self.num_per_prompt)
        ]
        self._means: dict[int, float] = {}  # mean log probability of each completion that may be left out
        self._num_running = len(completion.prompt) * self.num_per_prompt
        options = completion.stream_options
        self._is_padded = options is not None and bool(options.include_obfuscation)
        self._has_timing = options is not None and bool(options.include_timing)
        self._has_usage = options is not None and bool(options.include_usage)
        self._has_running_usage = options is not None and bool(options.continuous_usage_stats)
        self._is_plain = not (self._is_padded or self._has_logprobs or self._has_token_ids)
        # Fireworks' rule; stream_options select OpenAI's.
        self._has_usage_on_last_chunk = options is None

    def opening(self, first: GenerationChunk) -> Sequence[TextCompletion]:
        """Return no events: a completion has no role."""
        return ()

    def plain_part(self, index: int, chunk: GenerationChunk) -> str | None:
        """See Reply."""
        return "text" if self._is_plain and chunk.is_text and chunk.text else None

    def events(self, index: int, chunk: GenerationChunk) -> Sequence[TextCompletion]:
        """Return the events of a chunk; after the last chunk of all, also the usage if the client wants it."""
        if chunk.usage is not None:
            self._usages[index] = chunk.usage
        bare = GenerationChunk(text="", usage=chunk.usage, num_tokens=chunk.num_tokens)
        if not self._has_running_usage and chunk == bare:
            return ()  # the first token has no bytes of its own
        piece = self._completion([self._choice(index, index, chunk)])
        if self._has_running_usage:
            piece["usage"] = self._usage()
        elif self._has_usage or self._has_usage_on_last_chunk:
            piece["usage"] = None
        if self._is_padded:
            piece["obfuscation"] = padding(len(chunk.text))
        self._num_running -= chunk.finish_reason is not None
        if self._num_running:
            return (piece,)
        if self._has_usage_on_last_chunk:
            piece["usage"] = self._usage()
        events = [piece]
        if self._has_usage:
            events.append(self._completion([]))
            events[-1]["usage"] = self._usage()
        if self._has_timing:
            events[-1]["timing"] = timing(self.record)
        return events

    def kept(self, index: int, chunk: GenerationChunk) -> GenerationChunk:
        """Note the rank of a completion that may be left out."""
        if self.num_per_prompt > self._num_chosen:
            self._means[index] = mean_logprob(chunk)
        return chunk

    def whole(self, chunks: Sequence[GenerationChunk]) -> TextCompletion:
        """Return the answer without a stream, from one chunk for each completion."""
        choices: list[CompletionChoice] = []
        for start in range(0, len(chunks), self.num_per_prompt):
            scores = chunks[start].prompt_logprobs
            for index in self._chosen(start):
                choices.append(self._choice(len(choices), index, chunks[index]))
                if scores:
                    choices[-1]["prompt_logprobs"] = prompt_logprobs(scores)
        self._usages = {index: chunk.usage for index, chunk in enumerate(chunks) if chunk.usage is not None}
        completion = self._completion(choices)
        completion["usage"] = self._usage()
        return completion

    def _chosen(self, start: int) -> list[int]:
        """Return the numbers of a prompt's completions in the answer: the best ones with `best_of`, else all."""
        drawn = list(range(start, start + self.num_per_prompt))
        if self.num_per_prompt > self._num_chosen:
            drawn.sort(key=self._means.__getitem__, reverse=True)
        return drawn[: self._num_chosen]

    def _choice(self, index: int, drawn: int, chunk: GenerationChunk) -> CompletionChoice:
        choice: CompletionChoice = {
            "index": index,
            "text": chunk.text,
            "logprobs": self._writers[drawn].write(chunk.logprobs, chunk.num_prompt_tokens)
            if self._has_logprobs
            else None,
            "finish_reason": None if chunk.finish_reason is None else chunk.finish_reason.value,
            "stop_reason": chunk.stop_reason,
        }
        if self._has_token_ids:
            choice["token_ids"] = list(chunk.token_ids[chunk.num_prompt_tokens :])
        if chunk.prompt_token_ids:
            choice["prompt_token_ids"] = list(chunk.prompt_token_ids)
        return choice

    def _completion(self, choices: list[CompletionChoice]) -> TextCompletion:
        whole: TextCompletion = {
            "id": self.id,
            "object": "text_completion",
            "created": self._created,
            "model": self._name.requested,
            "system_fingerprint": self._name.model.parameters.fingerprint,
            "choices": choices,
        }
        if self._service_tier is not None:
            whole["service_tier"] = self._service_tier
        return whole

    def _usage(self) -> Usage:
        return total_usage(self._usages, self.num_per_prompt)
