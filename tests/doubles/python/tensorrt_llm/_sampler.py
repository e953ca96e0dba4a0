"""Draws tokens as SamplingParams say, with TensorRT-LLM's own defaults, and returns their log probabilities."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tensorrt_llm._model import Floats
from tensorrt_llm._results import Logprob

STREAM_PTR = 77  # of the engine backend's only stream


class Sampler:
    """Draws the tokens of one sequence.

    Args:
        params: the request's SamplingParams.
        prompt: its token ids.
        is_engine: it runs on the engine backend, where a missing top_p means 0 and processors are given a stream.
        structured_output: form of the completion.
        request_id: of the sequence.
        is_told_late: processors get the last token one call late.
    """

    def __init__(
        self,
        params: Any,
        prompt: Sequence[int],
        *,
        is_engine: bool,
        structured_output: Any,
        request_id: int,
        is_told_late: bool = False,
    ) -> None:
        self._params = params
        self._prompt = list(prompt)
        self._is_engine = is_engine
        self._structured_output = structured_output
        self._request_id = request_id
        self._is_told_late = is_told_late
        processors = params.logits_processor or []
        self._processors = pickle.loads(pickle.dumps(processors if isinstance(processors, list) else [processors]))
        self._random = np.random.default_rng(params.seed or 0)
        top_p = params.top_p if params.top_p is not None else (0.0 if is_engine else 1.0)
        self.is_greedy = params.is_greedy or top_p == 0
        self._top_p = top_p

    def draw(self, raw: Floats, drawn: Sequence[int], *, is_recomputed: bool = False) -> int:
        """Draw the token that follows those drawn so far, from its raw logits [vocab_size].

        The processors are not called where the tokens drawn so far were computed anew.
        """
        row = logits = _in_row(raw)
        if not is_recomputed:
            self.process(logits, drawn[:-1] if self._is_told_late else drawn)
        if self._structured_output is not None:
            self._structured_output.ban(logits)
        if self._params.embedding_bias is not None:
            if self._params.embedding_bias.shape != logits.shape:
                raise ValueError(f"embedding_bias: expected shape {logits.shape}")
            logits = logits + self._params.embedding_bias.numpy()
        if not self.is_greedy and self._params.temperature is not None:
            logits = logits / self._params.temperature
        logits = self._penalize(logits, drawn)
        min_tokens = 1 if self._params.min_tokens is None else self._params.min_tokens
        if len(drawn) < min_tokens and not self._params.ignore_eos:
            logits[self._params.end_id] = -np.inf
        token_id = int(logits.argmax()) if self.is_greedy else self._sample(logits)
        row.fill(np.nan)
        if self._structured_output is not None:
            self._structured_output.take(token_id)
        return token_id

    def begin_again(self, structured_output: Any) -> None:
        """Forget how much of a structured output was drawn."""
        self._structured_output = structured_output

    def process(self, logits: Floats, drawn: Sequence[int]) -> None:
        """Let the processors edit logits [vocab_size], given the tokens drawn so far."""
        tensor, tokens = torch.from_numpy(logits).reshape(1, 1, -1), [[*self._prompt, *drawn]]
        stream = STREAM_PTR if self._is_engine else None
        for processor in self._processors:
            processor(self._request_id, tensor, tokens, stream, None)

    def _penalize(self, logits: Floats, drawn: Sequence[int]) -> Floats:
        repetition = self._params.repetition_penalty or 1.0
        if repetition != 1.0:
            ids = sorted({*self._prompt, *drawn})
            logits[ids] = np.where(logits[ids] > 0, logits[ids] / repetition, logits[ids] * repetition)
        # TensorRT-LLM counts the prompt here too.
        counts = np.bincount([*self._prompt, *drawn], minlength=len(logits))
        logits = logits - (self._params.frequency_penalty or 0.0) * counts
        penalized: Floats = logits - (self._params.presence_penalty or 0.0) * (counts > 0)
        return penalized

    def _sample(self, logits: Floats) -> int:
        order = np.argsort(-logits, kind="stable")
        shares = np.exp((logits[order] - logits[order[0]]).astype(np.float64))
        if self._params.top_k:
            shares[self._params.top_k :] = 0.0
        shares /= shares.sum()
        shares[np.cumsum(shares) - shares >= self._top_p] = 0.0
        shares[shares < (self._params.min_p or 0.0) * shares[0]] = 0.0
        return int(self._random.choice(order, p=shares / shares.sum()))


@functools.cache
def _row(vocab_size: int) -> Floats:
    return np.empty(vocab_size, dtype=np.float32)


def _in_row(raw: Floats) -> Floats:
    """Return logits in the one place where all steps have theirs: a processor that keeps them sees them spoiled."""
    row = _row(len(raw))
    row[:] = raw
    return row


def logprob_entry(raw: Floats, num_top: int, token_id: int | None = None) -> dict[int, Logprob]:
    """Return the most likely tokens, and one token beside them if it is none of these."""
    values = raw.astype(np.float64) - raw.max()
    values -= np.log(np.exp(values).sum())
    order = np.argsort(-values, kind="stable")
    entry = {int(item): Logprob(float(values[item]), rank) for rank, item in enumerate(order[:num_top], start=1)}
    if token_id is not None and token_id not in entry:
        entry[token_id] = Logprob(float(values[token_id]), int((values > values[token_id]).sum()) + 1)
    return entry
