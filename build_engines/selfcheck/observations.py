"""What a request can tell about TensorRT-LLM that no recorded contract tells."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from build_engines.selfcheck.client import CHAT, CheckFailed, Client

NUM_SLOTS = 8  # sequences that the server under check decodes at a time

_QUESTION = "Count from 1 to 9."
_VAGUE = "zq xv"
_LONG: dict[str, Any] = {"prompt": _VAGUE, "ignore_eos": True, "max_tokens": 100, "temperature": 0}
_FORCED_TOKEN = 11  # every vocabulary has it
_TOLERANCE = 0.05  # of log probabilities: 16-bit numbers, and kernels that differ with the batch


@dataclass(frozen=True, slots=True)
class Subject:
    """The model under check."""

    client: Client
    prompt: list[int]  # of a question, by the model's own chat template
    eos_token_ids: tuple[int, ...]
    context_window: int

    @classmethod
    def of(cls, client: Client, eos_token_ids: tuple[int, ...], context_window: int) -> Subject:
        """Ask the server for the prompt's tokens."""
        tokens: list[int] = client.ask("/tokenize", messages=[{"role": "user", "content": _QUESTION}])["tokens"]
        return cls(client, tokens, eos_token_ids, context_window)

    def answer(self, **fields: Any) -> dict[str, Any]:
        """Return the choice that answers the question, greedily unless the fields say otherwise."""
        return self.client.choice(**{"prompt": self.prompt, "temperature": 0, "max_tokens": 100} | fields)


def expect(is_so: bool, otherwise: str) -> None:
    """Check what was observed.

    Raises:
        CheckFailed: it is not so.
    """
    if not is_so:
        raise CheckFailed(otherwise)


def chat(subject: Subject) -> str:
    """Ask what everybody can answer."""
    question = {"role": "user", "content": "What is the capital of France?"}
    answer = subject.client.ask(CHAT, messages=[question], temperature=0, max_tokens=100)
    text = answer["choices"][0]["message"]["content"] or ""
    expect("Paris" in text, f"no Paris in {text!r}")
    return f"{text!r}, {answer['usage']['completion_tokens']} tokens, {answer['choices'][0]['finish_reason']}"


def seed_repeats(subject: Subject) -> str:
    """Draw twice with one seed, once with another."""
    request = {"prompt": _VAGUE, "temperature": 1.5, "max_tokens": 30, "ignore_eos": True}
    texts = [subject.client.choice(**request, seed=seed)["text"] for seed in (1, 1, 2)]
    expect(texts[0] == texts[1], "the same seed gave two texts")
    expect(texts[0] != texts[2], "two seeds gave the same text")
    return "the same seed gave the same text, another seed another one"


def logprobs_are_raw(subject: Subject) -> str:
    """Compare the log probabilities of an answer with those of the same answer under a constraint."""
    free = subject.answer(logprobs=0)
    form = {"type": "regex", "regex": re.escape(free["text"])}
    constrained = subject.answer(logprobs=0, response_format=form)
    expect(constrained["text"] == free["text"], f"the constraint gave {constrained['text']!r}, not {free['text']!r}")
    pairs = zip(free["logprobs"]["token_logprobs"], constrained["logprobs"]["token_logprobs"], strict=False)
    # The last may be the end, which nothing else can follow under the constraint.
    difference = max(abs(one - other) for one, other in pairs)
    expect(difference <= _TOLERANCE, f"they differ by up to {difference:.3g}: a processor's edits show in them")
    return f"they differ by up to {difference:.3g}"


def processors_reach_the_workers(subject: Subject) -> str:
    """Ask for a form that only a logits processor can enforce."""
    text = subject.answer(response_format={"type": "regex", "regex": "[ab]{7}"}, temperature=1, seed=3)["text"]
    expect(re.fullmatch("[ab]{7}", text) is not None, f"[ab]{{7}} gave {text!r}")
    return f"[ab]{{7}} gave {text!r}"


def processors_know_their_tokens(subject: Subject) -> str:
    """Run several requests with processors at once: one that does not know its last token fails."""
    form = {"type": "regex", "regex": "(ab){20}"}
    requests = [
        {**_LONG, "max_tokens": 80, "ignore_eos": False, "response_format": form, "presence_penalty": 1 + number / 10}
        for number in range(NUM_SLOTS)
    ]
    texts = {choice["text"] for choice in subject.client.choices_at_once(requests)}
    expect(texts == {"ab" * 20}, f"(ab){{20}} gave {sorted(texts)}")
    return f"{NUM_SLOTS} at once, all as they must be"


def penalties_have_effect(subject: Subject) -> str:
    """Count the distinct tokens of a long text under a penalty."""
    values = (0, 2)
    counts = [
        len(set(subject.client.choice(**_LONG, return_token_ids=True, frequency_penalty=value)["token_ids"]))
        for value in values
    ]
    expect(counts[0] < counts[1], f"{counts[1]} distinct tokens with the penalty, {counts[0]} without")
    return f"{counts[1]} distinct tokens with the penalty, {counts[0]} without"


def bias_has_effect(subject: Subject) -> str:
    """Force a token by a bias, which TensorRT-LLM takes as a tensor."""
    choice = subject.client.choice(
        **_LONG | {"max_tokens": 10, "return_token_ids": True, "logit_bias": {str(_FORCED_TOKEN): 100}}
    )
    expect(set(choice["token_ids"]) == {_FORCED_TOKEN}, f"forced {_FORCED_TOKEN}, got {choice['token_ids']}")
    return "the forced token is all that came"


def abort_frees_the_slot(subject: Subject) -> str:
    """Fill every slot with long requests, leave, and see how soon the next one is answered."""
    num_tokens = min(4000, subject.context_window - 50)
    alone = subject.client.timed(**_LONG)
    would_take_s = num_tokens * (alone.last_token_s - alone.first_token_s) / max(1, alone.num_tokens - 1)
    for _ in range(NUM_SLOTS):
        subject.client.hang_up(**{**_LONG, "max_tokens": num_tokens})
    started = time.monotonic()
    subject.client.choice(**_LONG | {"max_tokens": 1})
    waited_s = time.monotonic() - started
    detail = f"answered {waited_s:.2f} s after {NUM_SLOTS} clients left; running out takes {would_take_s:.1f} s or more"
    expect(waited_s < would_take_s / 2, detail)
    return detail


def end_token_is_told(subject: Subject) -> str:
    """Look at the last token id of an answer that ended by itself."""
    choice = subject.answer(return_token_ids=True)
    expect(choice["finish_reason"] == "stop", f"finish_reason {choice['finish_reason']}")
    last = choice["token_ids"][-1]
    expect(last in subject.eos_token_ids, f"the last id is {last}, no end token of {subject.eos_token_ids}")
    return f"the last id is the end token {last}"


def prompts_are_cached(subject: Subject) -> str:
    """Send a prompt twice."""
    request = {"prompt": "The same words again and again. " * 20, "max_tokens": 1}
    usages = [subject.client.ask("/v1/completions", **request)["usage"] for _ in range(2)]
    cached, num_tokens = usages[1]["prompt_tokens_details"]["cached_tokens"], usages[1]["prompt_tokens"]
    expect(cached > 0, f"none of {num_tokens} tokens came from the cache")
    return f"{cached} of {num_tokens} tokens came from the cache"


def batches_change_nothing(subject: Subject) -> str:
    """Compare a greedy answer alone with the same one beside others."""
    alone = subject.answer()["text"]
    request = {"prompt": subject.prompt, "temperature": 0, "max_tokens": 100}
    others = [{"prompt": f"{number} {_VAGUE}", "max_tokens": 60} for number in range(NUM_SLOTS - 1)]
    beside = subject.client.choices_at_once([request, *others])[0]["text"]
    expect(alone == beside, f"alone {alone!r}, beside others {beside!r}")
    return "the same text alone and beside others"
