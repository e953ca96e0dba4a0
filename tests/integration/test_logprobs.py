"""Log probabilities are those of the model's raw logits, whatever was done to the distribution that drew."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.api import CHAT, COMPLETIONS, Api, chat_text
from tests.raw_model import RawModel

QUESTIONS = ("Count from 1 to 9.", "How do you say heart in Japanese?", "Show me the emoji for a cat", "zq xv")
SHAPED: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0},
    "hot": {"temperature": 1.5, "seed": 1},
    "penalties": {"temperature": 1, "seed": 2, "repetition_penalty": 1.4, "presence_penalty": 1},
    "bias": {"temperature": 1, "seed": 3, "logit_bias": {"11": 5, "12": -100}},
    "mirostat": {"temperature": 1, "seed": 4, "mirostat_target": 2},
    "in parts": {"temperature": 0, "ignore_eos": True, "max_tokens": 100, "top_logprobs": 20},
    "structured_output": {"temperature": 1, "seed": 5, "response_format": {"type": "regex", "regex": "[a-f ]{12}"}},
}


@pytest.fixture(scope="module")
def raw_model(demo_artifact: Path) -> Iterator[RawModel]:
    yield RawModel(demo_artifact / "model.gguf")


def tokenize(api: Api, text: str) -> list[int]:
    ids: list[int] = api.post("/tokenize", {"model": "demo", "prompt": text}).body["tokens"]
    return ids


@pytest.mark.parametrize(("shape", "question"), [*zip(SHAPED, itertools.cycle(QUESTIONS), strict=False)])
def test_they_equal_those_of_the_raw_logits(api: Api, raw_model: RawModel, question: str, shape: str) -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "return_token_ids": True, "max_tokens": 40} | SHAPED[shape]
    choice = api.ask(CHAT, question, **fields).choice
    prompt, ids, content = tokenize(api, chat_text(question)), choice["token_ids"], choice["logprobs"]["content"]
    assert len(ids) == len(content) > 0
    raw = raw_model.logprobs(prompt + ids)[len(prompt) - 1 : -1]
    reported = [item["logprob"] for item in content]
    assert reported == pytest.approx(list(raw[range(len(ids)), ids]), abs=1e-3)
    for item, row in zip(content, raw, strict=True):
        top = [each["logprob"] for each in item["top_logprobs"]]
        assert top == pytest.approx(sorted(row, reverse=True)[: fields["top_logprobs"]], abs=1e-3)


def test_a_long_prompt_is_scored_over_several_steps(api: Api, raw_model: RawModel) -> None:
    text = "\n".join(f"{number}, {number + 1}, {number + 2}." for number in range(45))
    choice = api.post(
        COMPLETIONS, {"model": "demo", "prompt": text, "max_tokens": 1, "logprobs": 0, "echo": True}
    ).choice
    ids = tokenize(api, text)
    assert 400 < len(ids) < 512
    reported = choice["logprobs"]["token_logprobs"][1 : len(ids)]
    raw = raw_model.logprobs(ids)
    assert reported == pytest.approx(list(raw[range(len(ids) - 1), ids[1:]]), abs=1e-3)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_prompts_own_log_probabilities_equal_those_of_its_echo(api: Api, raw_model: RawModel, endpoint: str) -> None:
    fields = {"max_tokens": 1, "return_token_ids": True}
    api.ask(endpoint, **fields)  # its KV tokens are kept, and must not be used
    answer = api.ask(endpoint, prompt_logprobs=4, **fields)
    place = answer.body if endpoint == CHAT else answer.choice
    ids, (first, *scored) = place["prompt_token_ids"], place["prompt_logprobs"]
    assert first is None
    echoed = api.post(
        COMPLETIONS, {"model": "demo", "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 4}
    ).choice
    own = [each[str(token_id)] for each, token_id in zip(scored, ids[1:], strict=True)]
    assert [each["logprob"] for each in own] == pytest.approx(echoed["logprobs"]["token_logprobs"][1:], abs=1e-4)
    for row, token_id, each, likely in zip(raw_model.logprobs(ids), ids[1:], own, scored, strict=False):
        assert each["logprob"] == pytest.approx(row[token_id], abs=1e-3)
        assert abs(each["rank"] - 1 - (row > row[token_id] + 1e-3).sum()) <= (abs(row - row[token_id]) <= 1e-3).sum()
        assert each["decoded_token"] == api.text_of_tokens([token_id])
        assert len(likely) == (4 if each["rank"] <= 4 else 5)
    assert answer.text == api.ask(endpoint, **fields).text  # without the prompt


def test_mirostat_holds_the_surprise_near_targets_below_the_models_own(api: Api, raw_model: RawModel) -> None:
    prompt, temperature = tokenize(api, "zq xv"), 1.5

    def surprise(**fields: Any) -> float:
        """Return the mean surprise in bits, in the distribution that the temperature makes."""
        body = {"model": "demo", "prompt": prompt, "temperature": temperature, "ignore_eos": True, "max_tokens": 300}
        answer = api.post(COMPLETIONS, body | {"n": 4, "seed": 1, "return_token_ids": True} | fields)
        means = []
        for choice in answer.body["choices"]:
            ids = choice["token_ids"]
            logits = raw_model.logprobs(prompt + ids)[len(prompt) - 1 : -1] / temperature
            logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            means.append(-logprobs[range(len(ids)), ids].mean() / np.log(2))
        return float(np.mean(means))

    entropy = surprise()
    for share in (0.6, 0.85):
        assert surprise(mirostat_target=entropy * share) == pytest.approx(entropy * share, rel=0.2)
