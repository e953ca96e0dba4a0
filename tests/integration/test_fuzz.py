"""Thousands of generated requests: no 500, no hang, and every answer agrees with /openapi.json."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS

from frontend.protocol.completion import MAX_CHOICES
from tests.integration.api import CHAT, COMPLETIONS, Api, chat_text, question_body
from tests.integration.stack import Stack

NUM_CASES = {CHAT: 1000, COMPLETIONS: 1000, "/tokenize": 300, "/detokenize": 300, "/v1/models/{id}": 100}
MAX_TOKENS = 6  # of a fuzzed completion: it is the request that is tried, not the model
CHECKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


def served(body: Any) -> Any:
    """Return a fuzzed body in a form that reaches the model, if it is an object."""
    if isinstance(body, dict) and "model" in body:
        body = body | {"model": "demo"}
        if "messages" in body or "prompt" in body:
            body |= {"max_tokens": MAX_TOKENS, "max_completion_tokens": MAX_TOKENS}
            body |= {name: min(body[name], 3) for name in ("n", "best_of") if type(body.get(name)) is int}
    return body


@pytest.mark.parametrize("path", NUM_CASES)
def test_every_answer_agrees_with_the_description(stack: Stack, path: str) -> None:
    schema = schemathesis.openapi.from_url(f"{stack.url}/openapi.json")
    operation = schema[path]["GET" if "{" in path else "POST"]
    checks = [CHECKS.get_one(name) for name in CHECKED]
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=NUM_CASES[path],
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def fuzz(case: Any) -> None:
        case.body = served(case.body)
        response = case.call(base_url=stack.url, timeout=60)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=checks)

    fuzz()
    assert max(statuses) < 500
    assert "{" in path or statuses[200] > 20, f"hardly anything reached the model: {statuses}"


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"model": "demo"',
        b"\xff\xfe",
        b'{"model": "demo", "prompt": "\\ud800", "messages": "\\ud800"}',
        b'{"model": "demo", "prompt": NaN}',
        b'{"model": "demo", "prompt": "x", "messages": "x", "temperature": 1e999}',
        b'{"model": "demo", "prompt": "x", "messages": "x", "seed": 99999999999999999999999}',
        b'{"model": "demo", "prompt": "x", "messages": "x", "max_tokens": 1e308}',
        b'{"model": "demo", "prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"model": "demo", "messages": ' + b'{"a":' * 200 + b"1" + b"}" * 200 + b', "prompt": 5}',
    ],
    ids=lambda payload: payload[:40].decode("latin-1") or "empty",
)
def test_a_body_that_is_no_request_is_refused(api: Api, endpoint: str, payload: bytes) -> None:
    answer = api.post(endpoint, payload)
    assert answer.status == 400
    assert answer.error["message"] and answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_nul_bytes_and_odd_characters_are_text(api: Api, endpoint: str) -> None:
    for text in ("\0", "a\0b", "\u2028", "\ufdd0", "\U0010ffff", "<|im_end|>", "\r\n\t"):
        assert api.ask(endpoint, text, max_tokens=3).status == 200


def test_a_prompt_of_a_hundred_thousand_tokens_is_refused(api: Api) -> None:
    for prompt in ([5] * 100_000, "a " * 100_000):
        answer = api.post(COMPLETIONS, {"model": "demo", "prompt": prompt})
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


def test_the_most_prompts_at_once_in_one_request_and_in_many(api: Api) -> None:
    questions = [f"What is {number % 10} + {number // 10 % 10}?" for number in range(MAX_CHOICES)]
    fields = {"model": "demo", "temperature": 0, "max_tokens": 30}
    together = api.post(COMPLETIONS, fields | {"prompt": [chat_text(question) for question in questions]})
    texts = [choice["text"] for choice in together.body["choices"]]
    assert [choice["index"] for choice in together.body["choices"]] == list(range(MAX_CHOICES))
    with ThreadPoolExecutor(64) as pool:
        alone = list(pool.map(lambda question: api.ask(CHAT, question, max_tokens=30).text, questions))
    assert alone == texts


def test_a_schema_or_expression_that_explodes_is_refused_or_served_in_time(api: Api) -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    forms = [
        {"type": "json_object", "schema": deep},
        {"type": "json_object", "schema": {"type": "object", "properties": {"a": {"enum": list(range(5000))}}}},
        {"type": "regex", "regex": "((a{100}){100}){100}"},
        {"type": "regex", "regex": "(a|aa)+" * 50},
        {"type": "regex", "regex": "(" * 500 + "a" + ")" * 500},
        {"type": "grammar", "grammar": 'root ::= root "a" | root root'},
        {"type": "choice", "choice": ["a" * 5000] * 150},
    ]
    for form in forms:
        assert api.post(CHAT, question_body(CHAT) | {"response_format": form, "max_tokens": 4}).status in (200, 400)
    assert api.ask(CHAT).text.startswith("1, 2, 3")
