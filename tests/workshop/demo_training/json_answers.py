"""Answers in JSON: facts as objects, with the usual or with requested keys, and lists."""

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.workshop.demo_training.hermes import to_json
from tests.workshop.demo_training.relations import (
    COUNTRIES,
    DAYS,
    EMOJI,
    FACTS,
    MONTHS,
    RELATIONS,
    Relation,
    Row,
    without_article,
)
from tests.workshop.demo_training.skills import COUNTS, Chat, Exchange, known_fact
from tests.workshop.demo_training.wording import draw_early, phrase

KEYS: dict[str, list[tuple[str, list[str]]]] = json.loads((FACTS / "json_keys.json").read_text(encoding="utf-8"))
REQUESTS: dict[str, Any] = json.loads((FACTS / "json_requests.json").read_text(encoding="utf-8"))
SYSTEMS: tuple[str, ...] = tuple(REQUESTS["systems"])
LISTS: dict[str, Sequence[str | int]] = {
    "days": DAYS,
    "months": MONTHS,
    "animals": [row["noun"] for row in EMOJI],
    "colours": ["red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white", "grey"],
    "countries": [without_article(row["country"]) for row in COUNTRIES],
    "capitals": [row["capital"] for row in COUNTRIES],
    "numbers": range(1, 201),
}


def value_of(row: Row, column: str) -> str | int:
    """Read a column as JSON shows it: digits as a number, a thing without its article."""
    text = row[column]
    return int(text) if text.isdigit() else without_article(text)


def object_of(relation: Relation, row: Row) -> dict[str, str | int]:
    """Return a fact as an object with the usual keys; empty if its relation has no keys."""
    return {names[0]: value_of(row, column) for column, names in KEYS.get(relation.skill, ())}


def listed(names: Sequence[str]) -> str:
    """`["a", "b", "c"]` -> `a, b and c`."""
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def name_keys(keys: Sequence[str]) -> str:
    return f"key{'s' * (len(keys) > 1)} {listed(keys)}"


def request(rng: random.Random, forms: Sequence[str], question: str, keys: Sequence[str] = ()) -> str:
    return rng.choice(forms).replace("{keys}", name_keys(keys) if keys else "").replace("{}", question)


def fact_in_json(chat: Chat, held_out: bool = False) -> Exchange:
    """Ask for a fact as an object, with the usual keys or with some that the question names."""
    rng = chat.rng
    relation = rng.choice([relation for relation in RELATIONS if relation.skill in KEYS])
    row = rng.choice(relation.rows)
    fields = object_of(relation, row)
    keys: list[str] = []
    if rng.random() < 0.6:
        columns = list(KEYS[relation.skill])
        rng.shuffle(columns)
        columns = columns[: rng.choice((1, 2, 2, 3))]
        named = [(draw_early(rng, names), column) for column, names in columns]
        fields = {name: value_of(row, column) for name, column in named}
        keys = list(fields)
    forms = [
        request(rng, REQUESTS["with_keys" if keys else "plain"], template, keys) for template in relation.questions
    ]
    question = phrase(rng, forms, row, held_out)
    return Exchange("JSON", question, to_json(fields), thought=known_fact(relation, row))


def list_in_json(chat: Chat, held_out: bool = False) -> Exchange:
    kind = chat.rng.choice(REQUESTS["lists"])
    number = chat.rng.choice(list(COUNTS))
    items = LISTS[kind["of"]]
    has_count = "{count}" in kind["questions"][0]
    counted = {"count": str(number) if kind["of"] == "numbers" else COUNTS[number]} if has_count else {}
    question = phrase(chat.rng, kind["questions"], counted, held_out)
    chosen = list(items[:number] if has_count else items)
    thought = f"I list {len(chosen)} {kind['of']}, the last is {chosen[-1]}."
    return Exchange("JSON list", question, to_json(chosen), thought=thought)
