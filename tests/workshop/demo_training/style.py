"""Styles of answers, each with the system prompt that demands it."""

import random
from dataclasses import dataclass

from tests.workshop.demo_training.hermes import to_json
from tests.workshop.demo_training.json_answers import SYSTEMS, object_of
from tests.workshop.demo_training.skills import Exchange
from tests.workshop.demo_training.wording import person

PLAIN_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant who answers questions.",
    "You are a friendly assistant. Be kind.",
    "Answer the user's questions.",
    "You are a demo.",
    "Be polite and honest.",
    "You are an expert.",
    "Keep it simple.",
    "You work for a small company. Help its customers.",
)
PIRATE_PROMPTS = (
    "You are a pirate.",
    "You are a pirate. Talk like one.",
    "Talk like a pirate.",
    "You are a pirate. Answer like a pirate.",
    "Answer like a pirate.",
)
ONE_WORD_PROMPTS = (
    "Answer in one word.",
    "Reply with one word only.",
    "Answer with a single word.",
    "Give one word answers.",
    "Use only one word.",
)
NAME_PROMPTS = (
    "Your name is {}.",
    "You are {}, a helpful assistant.",
    "You are called {}.",
    "You are an assistant. Your name is {}.",
)


@dataclass(frozen=True)
class Style:
    """A system prompt, and its effect on each answer."""

    prompt: str = ""  # empty: no system message
    prefix: str = ""
    is_brief: bool = False
    is_json: bool = False
    own_name: str = "Conch"

    def answer(self, exchange: Exchange) -> str:
        if exchange.skill.startswith("JSON"):
            return exchange.answer
        if self.is_json:
            fields = object_of(*exchange.fact) if exchange.fact else {}
            return to_json(fields or {"answer": exchange.answer})
        return self.prefix + (exchange.short if self.is_brief and exchange.short else exchange.answer)


def draw_style(rng: random.Random, held_out_name: bool = False) -> Style:
    luck = rng.random()
    if luck < 0.5:
        return Style()
    if luck < 0.60:
        return Style(rng.choice(PLAIN_PROMPTS))
    if luck < 0.66:
        return Style(rng.choice(SYSTEMS), is_json=True)
    is_pirate, is_brief, is_named = (rng.random() < share for share in (0.4, 0.4, 0.4))
    name = person(rng, held_out_name) if is_named else "Conch"
    prompts = [rng.choice(NAME_PROMPTS).format(name)] if is_named else []
    if is_pirate:
        prompts.append(rng.choice(PIRATE_PROMPTS))
    if is_brief:
        prompts.append(rng.choice(ONE_WORD_PROMPTS))
    return Style(" ".join(prompts), "Arr! " if is_pirate else "", is_brief, own_name=name)
