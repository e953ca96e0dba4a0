"""Constrained decoding: whatever the model would have said, the answer conforms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.integration.api import CHAT, COMPLETIONS, Api


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
    """What `.parse()` of the SDK is given."""

    country: str
    capital: str


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
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}},
            "uniqueItems",
        ),
        ({"type": "json_object", "schema": {"properties": {"a": {"$ref": "#/nowhere"}}}}, "nowhere"),
        ({"type": "regex", "regex": "(?=a)b"}, "look-ahead"),
        ({"type": "grammar", "grammar": "root ::= ("}, ""),
    ],
    ids=["keyword", "reference", "lookahead", "grammar"],
)
def test_what_would_not_be_enforced_is_refused_by_its_place(api: Api, form: dict[str, Any], names: str) -> None:
    answer = api.ask(CHAT, response_format=form)
    assert answer.status == 400
    assert answer.error["param"].startswith("response_format")
    assert names in answer.error["message"]


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
