"""Structured output: keywords that are not enforced, and grammars that are attacks."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from tests.integration.api import CHAT, COMPLETIONS, Api
from tests.integration.stack import Stack

# The class that ends in a hyphen was once read as one with the quotation mark and the letters.
UNIQUE = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[0-9 -]{1,5}$"},
    "minItems": 2,
    "maxItems": 3,
    "uniqueItems": True,
}


def test_a_keyword_that_cannot_be_enforced_is_listed_or_refused_and_the_rest_of_the_schema_enforced(api: Api) -> None:
    named = {"name": "x", "schema": UNIQUE}
    fields: dict[str, Any] = {"temperature": 1.5, "seed": 1, "max_tokens": 100}
    answer = api.ask(CHAT, "Make a list.", response_format={"type": "json_schema", "json_schema": named}, **fields)
    assert answer.headers["x-ignored-params"] == "response_format.json_schema.schema.uniqueItems"
    assert 2 <= len(json.loads(answer.text)) <= 3
    assert all(re.fullmatch("[0-9 -]{1,5}", item) for item in json.loads(answer.text))
    strict = {"type": "json_schema", "json_schema": named | {"strict": True}}
    refused = api.ask(CHAT, "Make a list.", response_format=strict)
    assert (refused.status, "uniqueItems" in refused.error["message"]) == (400, True)
    assert refused.error["param"].startswith("response_format")


def test_sixty_bombs_fail_their_sender_only(stack: Stack, api: Api) -> None:
    """The tokenizer's own thread compiled them, all other prompts waited, and the results were kept without a bound."""

    def grammar(num_levels: int, text: str) -> dict[str, str]:
        rules = [f"r{level} ::= r{level + 1} r{level + 1}" for level in range(num_levels)]
        return {"grammar": "\n".join(["root ::= r0", *rules, f'r{num_levels} ::= "{text}"'])}

    def status_of(fields: dict[str, Any]) -> tuple[int, str]:
        answer = api.ask(COMPLETIONS, "a", max_tokens=4, **fields)
        return answer.status, "" if answer.status == 200 else str(answer.error["message"])

    bombs = [{"structured_outputs": grammar(30, "abcdef"[number % 6])} for number in range(60)]
    large = [{"structured_outputs": grammar(18, "abcdef"[number % 6] * 2)} for number in range(12)]
    [engine] = stack.processes("demo__engine")
    before_bytes = psutil.Process(engine).memory_info().rss
    with ThreadPoolExecutor(80) as pool:
        attacks = [pool.submit(status_of, fields) for fields in (*bombs, *large)]
        healthy = [status_of({}) for _ in range(20)]
        found = [attack.result() for attack in attacks]
    grown_bytes = psutil.Process(engine).memory_info().rss - before_bytes
    assert healthy == [(200, "")] * 20
    rule = "structured_outputs: compilation takes more than .*, which is the limit"
    assert all(status == 400 and re.fullmatch(rule, text) for status, text in found[:60]), found[:60]
    assert {status for status, _ in found[60:]} == {200}
    assert grown_bytes < 300_000_000
