"""Random values of many kinds, for tool calls and their results."""

import json
import random
from collections.abc import Callable, Iterable

from tests.workshop.demo_training.relations import COUNTRIES, DAYS, FACTS, MONTH_DAYS, MONTHS, RELATIONS
from tests.workshop.demo_training.wording import made_up_word, person

Value = str | int | float

CHOICES: dict[str, list[str]] = json.loads((FACTS / "slots.json").read_text(encoding="utf-8"))
CITIES = [*(entry["capital"] for entry in COUNTRIES), *CHOICES["cities"]]
CURRENCIES = {
    "EUR": "euros", "USD": "dollars", "GBP": "pounds", "JPY": "yen", "CHF": "francs", "SEK": "kronor", "INR": "rupees",
    "BRL": "reais", "MXN": "pesos", "PLN": "zloty", "CNY": "yuan", "KRW": "won",
}  # fmt: skip
ENUMS = {kind: tuple(CHOICES[kind]) for kind in ("temperature_unit", "switch")}  # their tools list the values


def choice(kind: str) -> Callable[[random.Random], Value]:
    return lambda rng: rng.choice(CHOICES[kind])


def city(rng: random.Random) -> Value:
    return rng.choice(CITIES) if rng.random() < 0.85 else made_up_word(rng).capitalize()


def clock(rng: random.Random) -> Value:
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"


def hour(rng: random.Random) -> Value:
    spoken = (f"{rng.randint(1, 12)} {rng.choice(('am', 'pm'))}", rng.choice(("noon", "midnight")), str(clock(rng)))
    return rng.choices(spoken, (5, 1, 4))[0]


def date(rng: random.Random) -> Value:
    month = rng.choice(MONTHS)
    return f"{month} {rng.randint(1, MONTH_DAYS[month])}"


def day(rng: random.Random) -> Value:
    return rng.choice(("today", "tomorrow", rng.choice(DAYS), str(date(rng))))


def amount(rng: random.Random) -> Value:
    return rng.choice((rng.randint(2, 99), rng.randint(1, 50) * 10, rng.randint(100, 99_999), price(rng)))


def number(rng: random.Random) -> Value:
    return rng.randint(0, 10 ** rng.randint(1, 4))


def price(rng: random.Random) -> float:
    return rng.randint(1, 99_999) / 10 ** rng.randint(1, 2)


def expression(rng: random.Random) -> Value:
    num_operands = rng.choice((2, 2, 2, 3))
    operands = [str(rng.randint(30, 999)) for _ in range(num_operands)]
    return "".join(f"{operand} {rng.choice('+-*/')} " for operand in operands[:-1]) + operands[-1]


def topic(rng: random.Random) -> Value:
    noun = rng.choice(CHOICES["topic_nouns"])
    place = f" in {rng.choice(CITIES)}" if rng.random() < 0.3 else ""
    return (f"{rng.choice(CHOICES['topic_adjectives'])} " if rng.random() < 0.7 else "") + noun + place


def task(rng: random.Random) -> Value:
    return f"{rng.choice(CHOICES['verbs'])} {rng.choice(CHOICES['objects'])}"


def song(rng: random.Random) -> Value:
    return f"{rng.choice(CHOICES['song_adjectives'])} {rng.choice(CHOICES['song_nouns'])}"


def code(rng: random.Random) -> Value:
    return rng.choice((str(rng.randint(1_000, 999_999)), f"{rng.choice('ABCDX')}{rng.randint(100, 9_999)}"))


def statement(rng: random.Random) -> str:
    relation = rng.choice(RELATIONS)
    return relation.answer.format(**rng.choice(relation.rows))


def words(rng: random.Random) -> Value:
    return " ".join(made_up_word(rng) for _ in range(rng.randint(1, 3)))


KINDS: dict[str, Callable[[random.Random], Value]] = {
    **{kind: choice(kind) for kind in CHOICES},
    "address": lambda rng: f"{made_up_word(rng)}@example.{rng.choice(('com', 'org', 'net'))}",
    "amount": amount,
    "city": city,
    "clock": clock,
    "code": code,
    "country": lambda rng: rng.choice(COUNTRIES)["country"],
    "currency": lambda rng: rng.choice(list(CURRENCIES)),
    "date": date,
    "day": day,
    "expression": expression,
    "few": lambda rng: rng.randint(2, 20),
    "flight": lambda rng: f"{rng.choice('ABKLU')}{rng.choice('AFHXZ')}{rng.randint(10, 999)}",
    "hour": hour,
    "large": lambda rng: rng.randint(100_000, 99_999_999),
    "minutes": lambda rng: rng.randint(1, 90),
    "number": number,
    "person": person,
    "price": price,
    "song": song,
    "statement": statement,
    "task": task,
    "temperature": lambda rng: rng.randint(-15, 42),
    "text": lambda rng: rng.choice(CHOICES["texts"]),
    "topic": topic,
    "word": made_up_word,
    "words": words,
}


def json_type(kind: str) -> str:
    """Name the JSON schema type of a kind's values."""
    if kind in ("amount", "price"):
        return "number"
    return "integer" if kind in ("few", "minutes", "number") else "string"


def draw_values(rng: random.Random, kinds: Iterable[tuple[str, str]]) -> dict[str, Value]:
    """Draw a value for each pair (slot, kind), no two alike where they are of one kind."""
    values: dict[str, Value] = {}
    for slot, kind in kinds:
        value = KINDS[kind](rng)
        while isinstance(value, str) and value in values.values():
            value = KINDS[kind](rng)
        values[slot] = value
    return values


def as_text(values: dict[str, Value]) -> dict[str, str]:
    """Return the values as a question shows them, and currencies also in words."""
    texts = {slot: str(value) for slot, value in values.items()}
    return texts | {f"{slot}_words": CURRENCIES[text] for slot, text in texts.items() if text in CURRENCIES}
