"""Rules that every answer keeps, over random combinations of parameters."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from model_repository.byte_table import FILE_NAME, load_byte_table
from tests.integration.api import CHAT, COMPLETIONS, WEATHER, Api, question_body, text_of

NUM_COMBINATIONS = 60
# A prompt that is computed in other pieces moves a logit by 1e-5, which hot sampling may turn into another token.
NUM_ATTEMPTS = 3
QUESTIONS = (
    "Count from 1 to 9.",
    "How do you say heart in Japanese?",
    "List three animals with their emoji.",
    "What is the weather in Paris?",
    "Tell me a story about a cat.",
    "zq xv",
)
STOPS = (", 5", "a", " of", "🐱", "é", "。", "\n", "} ", "心", "the cat", "3, 4")
FORMS = (
    {"type": "json_object"},
    {"type": "regex", "regex": "[a-z é心]{3,20}"},
    {"type": "choice", "choice": ["one", "one or two", "心と🐱"]},
)


def combination(seed: int) -> tuple[str, dict[str, Any]]:
    """Draw an endpoint and a body."""
    rng = random.Random(seed)
    endpoint = rng.choice((CHAT, COMPLETIONS))
    fields: dict[str, Any] = {"seed": seed, "return_token_ids": True, "max_tokens": rng.randint(1, 60)}
    optional: dict[str, Any] = {
        "temperature": rng.choice((0, 0.7, 1, 1.5, 2)),
        "top_p": rng.choice((0.3, 0.9)),
        "top_k": rng.choice((1, 20)),
        "min_p": 0.05,
        "repetition_penalty": rng.choice((0.8, 1.3)),
        "presence_penalty": rng.choice((-1, 1.5)),
        "frequency_penalty": rng.choice((-0.5, 0.8)),
        "logit_bias": {str(rng.randrange(3000)): rng.choice((-100, 4)) for _ in range(3)},
        "mirostat_target": rng.choice((1, 4)),
        "stop": rng.sample(STOPS, rng.randint(1, 4)),
        "include_stop_str_in_output": True,
        "stop_token_ids": [rng.randrange(3000) for _ in range(5)],
        "n": rng.randint(2, 3),
        "logprobs": True if endpoint == CHAT else rng.randint(0, 3),
    }
    fields |= {name: value for name, value in optional.items() if rng.random() < 0.3}
    luck = rng.random()
    if luck < 0.15:
        fields["response_format"] = rng.choice(FORMS)
    elif luck < 0.3 and endpoint == CHAT:
        fields |= {"tools": [WEATHER], "tool_choice": rng.choice(("auto", "required"))}
    elif luck < 0.45:
        fields["ignore_eos"] = True
    elif luck < 0.6 and "stop" not in fields:
        fields["min_tokens"] = rng.randint(0, fields["max_tokens"])
    if endpoint == COMPLETIONS and rng.random() < 0.3:
        fields["echo"] = True
    if endpoint == COMPLETIONS and rng.random() < 0.15:
        fields["best_of"] = 3
    return endpoint, question_body(endpoint, rng.choice(QUESTIONS)) | fields


def streamed(api: Api, endpoint: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the choices that a stream's events add up to, in the form of whole ones, and the usage."""
    choices: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    for event in api.events(endpoint, body | {"stream_options": {"include_usage": True}}):
        usage = event["usage"] or usage
        for piece in event["choices"]:
            choice = choices.setdefault(
                piece["index"],
                {
                    "text": "",
                    "calls": [],
                    "token_ids": [],
                    "prompt_token_ids": [],
                    "finish_reason": None,
                },
            )
            assert choice["finish_reason"] is None, "something came after the finish reason"
            delta = piece.get("delta", {})
            choice["text"] += piece.get("text", delta.get("content", ""))
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    choice["calls"].append([call["function"]["name"], ""])
                choice["calls"][call["index"]][1] += call["function"]["arguments"]
            choice["token_ids"] += piece.get("token_ids", [])
            choice["prompt_token_ids"] += piece.get("prompt_token_ids", [])
            choice["finish_reason"] = piece["finish_reason"]
            choice["stop_reason"] = piece.get("stop_reason")
    return [choices[index] for index in sorted(choices)], usage


def whole(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a choice that was not streamed in the same form."""
    calls = choice.get("message", {}).get("tool_calls", ())
    return {
        "text": text_of(choice),
        "calls": [[call["function"]["name"], call["function"]["arguments"]] for call in calls],
        "token_ids": choice["token_ids"],
        "prompt_token_ids": choice.get("prompt_token_ids", []),
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
    }


def check(api: Api, byte_table: list[bytes], seed: int) -> None:
    """Ask one combination, whole and streamed."""
    endpoint, body = combination(seed)
    for attempt in range(NUM_ATTEMPTS):
        answer = api.post(endpoint, body)
        assert answer.status == 200, answer.body
        choices = [whole(choice) for choice in answer.body["choices"]]
        if "best_of" in body:
            break
        events, usage = streamed(api, endpoint, body)
        if events == choices:
            break
        assert attempt < NUM_ATTEMPTS - 1, f"{events} != {choices}"
    if "best_of" not in body:
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [usage[name] for name in counts] == [answer.body["usage"][name] for name in counts]
    assert len(choices) == body.get("n", 1)
    for choice in choices:
        check_choice(body, choice, byte_table)
    usage = answer.body["usage"]
    num_drawn = max(body.get("n", 1), body.get("best_of", 1))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    if endpoint == COMPLETIONS:
        assert {len(choice["prompt_token_ids"]) for choice in choices} == {usage["prompt_tokens"]}
    assert usage["completion_tokens"] <= num_drawn * body["max_tokens"]
    assert sum(len(choice["token_ids"]) for choice in choices) <= usage["completion_tokens"]


def check_choice(body: dict[str, Any], choice: dict[str, Any], byte_table: list[bytes]) -> None:
    """Check what holds for one choice."""
    text = choice["text"]
    assert choice["finish_reason"] in ("stop", "length", "tool_calls")
    if "tools" in body:
        if choice["finish_reason"] == "tool_calls":
            assert choice["calls"] and all(set(json.loads(arguments)) == {"city"} for _, arguments in choice["calls"])
        return
    prompt = body["prompt"] if body.get("echo") else ""
    assert text.startswith(prompt)
    completion = text[len(prompt) :]
    from_tokens = b"".join(byte_table[token_id] for token_id in choice["token_ids"])
    was_cut = "stop" in body or "stop_token_ids" in body
    shown = from_tokens.decode("utf-8", "replace")
    assert shown.startswith(completion) if was_cut else shown == completion
    if isinstance(choice["stop_reason"], str):
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] in body["stop"]
        assert completion.endswith(choice["stop_reason"]) == bool(body.get("include_stop_str_in_output"))
    kept = completion.removesuffix(choice["stop_reason"]) if isinstance(choice["stop_reason"], str) else completion
    assert not any(stop in kept for stop in body.get("stop", ()))
    is_whole = choice["finish_reason"] == "stop" and choice["stop_reason"] is None
    if is_whole and body.get("response_format", {}).get("type") == "json_object":
        assert isinstance(json.loads(completion), dict)


def test_every_answer_keeps_the_rules(api: Api, demo_artifact: Path) -> None:
    byte_table = load_byte_table(demo_artifact / FILE_NAME)
    failures = []

    def attempt(seed: int) -> None:
        try:
            check(api, byte_table, seed)
        except AssertionError as error:
            failures.append(f"seed {seed}: {combination(seed)}\n{error}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(attempt, range(NUM_COMBINATIONS)))
    if failures:
        pytest.fail(f"{len(failures)} of {NUM_COMBINATIONS}:\n" + "\n\n".join(failures[:3]))
