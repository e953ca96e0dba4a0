"""Objects in JSON without a fact: invented, or extracted from a text."""

import random
from typing import Any

from tests.workshop.demo_training.hermes import to_json
from tests.workshop.demo_training.json_answers import LISTS, REQUESTS, listed, name_keys
from tests.workshop.demo_training.relations import COUNTRIES, read_table, without_article
from tests.workshop.demo_training.skills import Chat, Exchange
from tests.workshop.demo_training.wording import person, word_question

SOUNDS = {row["animal"]: row["sound"] for row in read_table("sounds")}
ANIMALS = [row for row in read_table("legs") if row["animal"] in SOUNDS]
LANGUAGES = ("Spanish", "French", "Japanese", "English", "German")

TEXTS = (
    "{name} is {age} years old and lives in {city}.",
    "{name}, {age}, lives in {city}.",
    "My friend {name} from {city} is {age} years old.",
    "{name} is a {job} in {city}.",
    "{name} works as a {job} and is {age}.",
    "The {product} is {colour} and costs {price} euros.",
    "A {colour} {product} costs {price} dollars.",
    "{name} buys {count} {product}s for {price} euros.",
)
OTHER_NAMES = {
    "name": ("person", "first_name", "who"),
    "age": ("years", "age_years"),
    "city": ("place", "town", "location"),
    "job": ("profession", "work"),
    "product": ("item", "thing"),
    "price": ("cost", "amount"),
    "colour": ("color",),
    "count": ("number", "quantity"),
}


def draw_person(rng: random.Random) -> dict[str, Any]:
    country = rng.choice(COUNTRIES)
    name = person(rng)
    fields: dict[str, Any] = {"name": name, "age": rng.randint(18, 80), "city": country["capital"]}
    more: dict[str, Any] = {
        "country": without_article(country["country"]),
        "job": rng.choice(REQUESTS["jobs"]),
        "email": f"{name.lower()}@example.com",
        "is_student": rng.random() < 0.5,
        "languages": rng.sample(LANGUAGES, rng.randint(1, 3)),
        "address": {"city": country["capital"], "country": without_article(country["country"])},
    }
    return fields | {key: more[key] for key in rng.sample(list(more), rng.choice((0, 0, 1, 2)))}


def draw_animal(rng: random.Random) -> dict[str, Any]:
    row = rng.choice(ANIMALS)
    fields = {"animal": without_article(row["animal"]), "legs": int(row["legs"]), "sound": SOUNDS[row["animal"]]}
    return {"name": person(rng), **fields} if rng.random() < 0.5 else fields


def draw_product(rng: random.Random) -> dict[str, Any]:
    return {
        "product": rng.choice(REQUESTS["products"]),
        "price": rng.randint(2, 200),
        "colour": rng.choice(LISTS["colours"]),
        **({"in_stock": rng.random() < 0.5} if rng.random() < 0.3 else {}),
    }


def draw_country(rng: random.Random) -> dict[str, Any]:
    row = rng.choice(COUNTRIES)
    return {"country": without_article(row["country"]), "capital": row["capital"], "flag": row["flag"]}


INVENTIONS = {"person": draw_person, "user": draw_person, "animal": draw_animal, "pet": draw_animal,
              "product": draw_product, "country": draw_country}  # fmt: skip


def invented(chat: Chat, held_out: bool = False) -> Exchange:
    """Ask for an object of a kind. Its values are random, so no answer is the correct one."""
    rng = chat.rng
    kind = rng.choice(list(INVENTIONS))
    fields = INVENTIONS[kind](rng)
    if rng.random() < 0.5:
        question, _ = word_question(rng, REQUESTS["inventions"], {"kind": kind}, held_out)
        return Exchange("JSON invention", question, to_json(fields), thought=f"I invent a {kind}.")
    fields = dict(rng.sample(list(fields.items()), rng.randint(2, len(fields))))
    row = {"kind": kind, "keys": name_keys(list(fields))}
    question, _ = word_question(rng, REQUESTS["inventions_with_keys"], row, held_out, keeps_case=True)
    return Exchange("JSON invention", question, to_json(fields), thought=f"I invent a {kind}.")


def extracted(chat: Chat, held_out: bool = False) -> Exchange:
    """Ask for the keys of an object whose values stand in a text."""
    rng = chat.rng
    known = {
        "name": person(rng), "age": rng.randint(3, 99), "city": rng.choice(COUNTRIES)["capital"],
        "job": rng.choice(REQUESTS["jobs"]), "product": rng.choice(REQUESTS["products"]),
        "price": rng.randint(2, 999), "colour": rng.choice(LISTS["colours"]), "count": rng.randint(2, 50),
    }  # fmt: skip
    text = rng.choice(TEXTS)
    slots = [slot for slot in known if f"{{{slot}}}" in text]
    if rng.random() < 0.4:
        slots = rng.sample(slots, rng.randint(1, len(slots)))
    fields = {rng.choice(OTHER_NAMES[s]) if rng.random() < 0.15 else s: known[s] for s in slots}
    row = {"keys": name_keys(list(fields)), "text": text.format(**known)}
    forms = [form.replace("{}", "{text}") for form in REQUESTS["extractions"]]
    question, _ = word_question(rng, forms, row, held_out, keeps_case=True)
    return Exchange("JSON from a text", question, to_json(fields), thought=f"I look for {listed(list(fields))}.")
