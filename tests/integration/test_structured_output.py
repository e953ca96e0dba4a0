"""Structured output: every answer conforms, however the model samples."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Annotated, Any, Literal

import psutil
import pytest
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.integration.api import CHAT, COMPLETIONS, Api
from tests.integration.stack import Stack


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    colour: Colour
    parts: list[Part] = Field(max_length=2)  # recursive


class Thing(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["thing"]
    count: int = Field(ge=-5, le=300)
    ratio: float = Field(ge=0, le=1)
    size: bool | Literal["small"] | None
    tags: list[Annotated[str, Field(max_length=8)]] = Field(min_length=1, max_length=3)
    part: Part


class City(BaseModel):
    """The class that the SDK parses an answer into."""

    country: str
    capital: str


# The class that ends in a hyphen was once read as one with the quotation mark and the letters.
UNIQUE = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[0-9 -]{1,5}$"},
    "minItems": 2,
    "maxItems": 3,
    "uniqueItems": True,
}


def test_a_hundred_hot_answers_all_validate_or_were_cut(api: Api) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": Thing.model_json_schema()}}

    def sample(seed: int) -> str:
        choice = api.ask(CHAT, "Make a thing.", response_format=form, temperature=1.5, seed=seed, max_tokens=300).choice
        if choice["finish_reason"] == "stop":
            Thing.model_validate_json(choice["message"]["content"])
        return str(choice["finish_reason"])

    with ThreadPoolExecutor(8) as pool:
        reasons = list(pool.map(sample, range(100)))
    assert set(reasons) <= {"stop", "length"}
    assert reasons.count("stop") > 50


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("form", "conforms"),
    [
        ({"type": "regex", "regex": r"\d{3}-[a-c]+é?"}, lambda text: re.fullmatch(r"\d{3}-[a-c]+é?", text)),
        ({"type": "choice", "choice": ["yes", "no", "no, never", "心"]}, {"yes", "no", "no, never", "心"}.__contains__),
        (
            {"type": "ebnf", "ebnf": 'root ::= "<" [a-z]{1,5} ">" | "nothing"'},
            re.compile("<[a-z]{1,5}>|nothing").fullmatch,
        ),
        ({"type": "json_object"}, lambda text: isinstance(json.loads(text), dict)),
    ],
    ids=["regex", "choice", "ebnf", "json_object"],
)
def test_every_form_is_enforced_streamed_and_not(
    api: Api, endpoint: str, form: dict[str, Any], conforms: Callable[[str], Any]
) -> None:
    for seed in range(8):
        fields = {"response_format": form, "temperature": 1.4, "seed": seed, "max_tokens": 120}
        choice = api.ask(endpoint, "Say something.", **fields).choice
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert choice["finish_reason"] == "length" or conforms(text), text


@pytest.mark.parametrize(
    ("form", "names"),
    [
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": UNIQUE, "strict": True}},
            "uniqueItems",
        ),
        ({"type": "json_object", "schema": {"properties": {"a": {"$ref": "#/nowhere"}}}}, "nowhere"),
        ({"type": "regex", "regex": "(?=a)b"}, "look-ahead"),
        ({"type": "grammar", "grammar": "root ::= ("}, ""),
    ],
    ids=["keyword", "reference", "lookahead", "grammar"],
)
def test_a_constraint_that_cannot_be_enforced_is_refused_by_its_place(
    api: Api, form: dict[str, Any], names: str
) -> None:
    answer = api.ask(CHAT, response_format=form)
    assert answer.status == 400
    assert answer.error["param"].startswith("response_format")
    assert names in answer.error["message"]


def test_a_keyword_that_cannot_be_enforced_is_listed_and_the_rest_of_the_schema_enforced(api: Api) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": UNIQUE}}
    for seed in range(4):
        answer = api.ask(CHAT, "Make a list.", response_format=form, temperature=1.5, seed=seed, max_tokens=100)
        assert answer.headers["x-ignored-params"] == "response_format.json_schema.schema.uniqueItems"
        assert 2 <= len(json.loads(answer.text)) <= 3
        assert all(re.fullmatch("[0-9 -]{1,5}", item) for item in json.loads(answer.text))


def test_the_sdk_parses_an_answer_into_a_class(client: OpenAI) -> None:
    question = "What is the capital of Japan? Reply in JSON with the keys country and capital."
    completion = client.chat.completions.parse(
        model="demo", messages=[{"role": "user", "content": question}], response_format=City, temperature=0
    )
    parsed = completion.choices[0].message.parsed
    assert parsed == City(country="Japan", capital="Tokyo")


def test_a_constraint_beside_other_traffic_binds_only_its_own_request(api: Api) -> None:
    form = {"type": "regex", "regex": "[xyz]{30}"}
    with ThreadPoolExecutor(8) as pool:
        bound = [pool.submit(api.ask, CHAT, response_format=form, temperature=1, seed=seed) for seed in range(4)]
        free = [pool.submit(api.ask, CHAT) for _ in range(4)]
    assert all(set(each.result().text) <= set("xyz") for each in bound)
    assert {each.result().text for each in free} == {"1, 2, 3, 4, 5, 6, 7, 8, 9."}


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
    rule = "response_format: compiling it takes more than .*, which is the limit"
    assert all(status == 400 and re.fullmatch(rule, text) for status, text in found[:60]), found[:60]
    assert {status for status, _ in found[60:]} == {200}
    assert grown_bytes < 300_000_000
