"""Claims that only a real TensorRT-LLM can prove: each docstring is one of docs/gpu.md's list.

The kit runs this file against its server. pytest does not collect it by itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.workshop.gpu_acceptance.subject import MAX_SEQUENCES, Stream, Subject

type Record = Callable[[str, str], None]  # pytest's `record_property`; the report shows the property `detail`

_VAGUE = "zq xv"
_LONG: dict[str, Any] = {"prompt": _VAGUE, "ignore_eos": True, "max_tokens": 100, "temperature": 0}
_FORCED_TOKEN = 11  # every vocabulary has it
_TOLERANCE = 0.05  # of log probabilities: 16-bit numbers, and kernels that differ with the batch


def needs_backend(subject: Subject, backend: str) -> None:
    if subject.backend != backend:
        pytest.skip(f"this is the backend {subject.backend}")


def test_chat(subject: Subject, record_property: Record) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    answer = subject.post("/chat/completions", messages=[question], temperature=0, max_tokens=100)
    text = answer["choices"][0]["message"]["content"] or ""
    record_property("detail", f"{text!r}, {answer['usage']['completion_tokens']} tokens")
    assert "Paris" in text


@pytest.mark.parametrize("num_streams", [1, 8])
def test_speed(subject: Subject, record_property: Record, num_streams: int) -> None:
    """A few figures show that nothing is badly wrong. They are no benchmark."""

    def request(number: int) -> Stream:
        # Prompts begin differently, so that no prompt is in the cache of another one.
        prompt = f"{number}: The sea, the sky and the mountains"
        return subject.stream(prompt=prompt, max_tokens=128, ignore_eos=True, temperature=1, seed=number)

    request(-1)  # a warm-up
    with ThreadPoolExecutor(num_streams) as pool:
        streams = list(pool.map(request, range(num_streams)))
    ttft_ms = [1000 * stream.first_token_s for stream in streams]
    num_tokens, duration_s = sum(stream.num_tokens for stream in streams), max(s.last_token_s for s in streams)
    speed = f"{num_tokens / duration_s:,.0f} tokens/s in all"
    record_property("detail", f"{num_streams} streams: first token after {max(ttft_ms):.1f} ms at most, {speed}")


def test_seed(subject: Subject) -> None:
    """The same seed gives the same text, on the engine backend."""
    needs_backend(subject, "engine")
    request = {"prompt": _VAGUE, "temperature": 1.5, "max_tokens": 30, "ignore_eos": True}
    texts = [subject.complete(**request, seed=seed)["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1], "the same seed gave two texts"
    assert texts[0] != texts[2], "two seeds gave the same text"


def test_raw_logprobs(subject: Subject, record_property: Record) -> None:
    """Log probabilities are the raw ones where a logits processor edits logits."""
    free = subject.answer(logprobs=0)
    constrained = subject.answer(logprobs=0, response_format={"type": "regex", "regex": re.escape(free["text"])})
    assert constrained["text"] == free["text"]
    # The last token may be the end, which is the only one that the constraint allows there.
    pairs = zip(free["logprobs"]["token_logprobs"], constrained["logprobs"]["token_logprobs"], strict=False)
    difference = max(abs(one - other) for one, other in pairs)
    record_property("detail", f"they differ by up to {difference:.3g}")
    assert difference <= _TOLERANCE, f"they differ by up to {difference:.3g}: a processor's edits show in them"


def test_processors_in_workers(subject: Subject) -> None:
    """TensorRT-LLM's workers can unpickle our logits processors."""
    text = subject.answer(response_format={"type": "regex", "regex": "[ab]{7}"}, temperature=1, seed=3)["text"]
    assert re.fullmatch("[ab]{7}", text)


def test_tokens_of_processors(subject: Subject) -> None:
    """A logits processor gets every token drawn so far: the PyTorch backend's overlap scheduler is off for it; an
    engine's request fails where it is not."""
    form = {"type": "regex", "regex": "(ab){20}"}
    requests = [
        {**_LONG, "max_tokens": 80, "ignore_eos": False, "response_format": form, "presence_penalty": 1 + number / 10}
        for number in range(MAX_SEQUENCES)
    ]
    assert {choice["text"] for choice in subject.complete_all(requests)} == {"ab" * 20}


def test_penalties(subject: Subject, record_property: Record) -> None:
    """Penalties have their effect."""
    choices = [subject.complete(**_LONG, return_token_ids=True, frequency_penalty=penalty) for penalty in (0, 2)]
    without, with_penalty = (len(set(choice["token_ids"])) for choice in choices)
    record_property("detail", f"{with_penalty} distinct tokens with the penalty, {without} without")
    assert without < with_penalty


def test_bias(subject: Subject) -> None:
    """Our tensors are right for the real torch."""
    fields = {"max_tokens": 10, "return_token_ids": True, "logit_bias": {str(_FORCED_TOKEN): 100}}
    assert set(subject.complete(**_LONG | fields)["token_ids"]) == {_FORCED_TOKEN}


def test_abort(subject: Subject, record_property: Record) -> None:
    """A client that leaves frees its place in the batch."""
    num_tokens = min(4000, subject.context_window - 50)
    alone = subject.stream(**_LONG)
    full_s = num_tokens * (alone.last_token_s - alone.first_token_s) / max(1, alone.num_tokens - 1)
    for _ in range(MAX_SEQUENCES):
        subject.stream(**_LONG | {"max_tokens": num_tokens}, max_events=1)
    started = time.monotonic()
    subject.complete(**_LONG | {"max_tokens": 1})
    waited_s = time.monotonic() - started
    record_property("detail", f"answered {waited_s:.2f} s after {MAX_SEQUENCES} aborts of {full_s:.1f} s each")
    assert waited_s < full_s / 2


def test_end_token(subject: Subject) -> None:
    """The end token is the last token id of an answer."""
    choice = subject.answer(return_token_ids=True)
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"][-1] in subject.eos_token_ids


def test_prompt_cache(subject: Subject, record_property: Record) -> None:
    """Prompts that begin alike share KV cache blocks, and `cached_tokens` says so, on the PyTorch backend."""
    needs_backend(subject, "pytorch")
    request = {"prompt": "The same words again and again. " * 20, "max_tokens": 1}
    usages = [subject.post("/completions", **request)["usage"] for _ in range(2)]
    num_cached = usages[1]["prompt_tokens_details"]["cached_tokens"]
    record_property("detail", f"{num_cached} of {usages[1]['prompt_tokens']} tokens came from the cache")
    assert num_cached > 0


def test_batch(subject: Subject) -> None:
    """A greedy answer is the same alone and beside others."""
    alone = subject.answer()["text"]
    request = {"prompt": subject.prompt(), "temperature": 0, "max_tokens": 100}
    others = [{"prompt": f"{number} {_VAGUE}", "max_tokens": 60} for number in range(MAX_SEQUENCES - 1)]
    assert subject.complete_all([request, *others])[0]["text"] == alone
