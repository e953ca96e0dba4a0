"""Hundreds of generated requests: no 500, no hang, and every answer agrees with /openapi.json."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS

from tests.integration.api import CHAT, COMPLETIONS, COUNT_TOKENS, INPUT_TOKENS, MESSAGES, RESPONSES
from tests.integration.stack import Stack

NUM_CASES = {
    CHAT: 150,
    COMPLETIONS: 150,
    MESSAGES: 150,
    COUNT_TOKENS: 50,
    RESPONSES: 150,
    INPUT_TOKENS: 50,
    "/tokenize": 50,
    "/detokenize": 50,
    "/v1/models/{id}": 50,
}
MAX_TOKENS = 6  # of a fuzzed completion: it is the request that is tried, not the model
CHECKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


def served(body: Any) -> Any:
    """Return a fuzzed body in a form that reaches the model, if it is an object."""
    if isinstance(body, dict) and "model" in body:
        body = body | {"model": "demo"}
        if "messages" in body or "prompt" in body:
            body |= {"max_tokens": MAX_TOKENS, "max_completion_tokens": MAX_TOKENS}
            body |= {name: min(body[name], 3) for name in ("n", "best_of") if type(body.get(name)) is int}
        if "input" in body:
            body |= {"max_output_tokens": MAX_TOKENS}
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
    assert "{" in path or statuses[200] > NUM_CASES[path] / 15, f"hardly anything reached the model: {statuses}"
