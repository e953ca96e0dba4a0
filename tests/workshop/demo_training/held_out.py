"""Documents for the evaluation: only the last answer counts, and the training never shows its question."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.workshop.demo_training import functions, json_answers, json_objects, skills, tool_skills
from tests.workshop.demo_training.conversation import (
    Document,
    chat_document,
    draw_fact,
    extend,
    statement,
    until_last_call,
)
from tests.workshop.demo_training.relations import RELATIONS
from tests.workshop.demo_training.skills import Chat, Exchange
from tests.workshop.demo_training.style import ONE_WORD_PROMPTS, PIRATE_PROMPTS, Style, draw_style
from tests.workshop.demo_training.tools import draw_tools
from tests.workshop.demo_training.wording import NotHeldOut

NUM_PER_SKILL = 50
NUM_LONG_CHATS = 30
LONG_CHAT_CHARS = 2_600  # leaves room in the context window for the last exchange


def finish(chat: Chat, style: Style, skill: str, last: Exchange) -> Document:
    chat.exchanges.append(last)
    return replace(chat_document(chat, style), skill=skill)


def opened_chat(rng: random.Random, style: Style) -> Chat:
    """Start a chat with up to three trained exchanges before the last one."""
    chat = Chat(rng, style.own_name)
    extend(chat, style, rng.choice((0, 0, 0, 1, 2, 3)))
    return chat


def fact(rng: random.Random, skill: str) -> Document:
    chat = opened_chat(rng, Style())
    relation = rng.choice([relation for relation in RELATIONS if relation.skill == skill])
    return finish(chat, Style(), skill, skills.fact(chat, relation, held_out=True))


def styled_fact(rng: random.Random, skill: str, style: Style) -> Document:
    chat = opened_chat(rng, style)
    return finish(chat, style, skill, draw_fact(chat, held_out=True))


def pirate(rng: random.Random, skill: str) -> Document:
    return styled_fact(rng, skill, Style(rng.choice(PIRATE_PROMPTS), prefix="Arr! "))


def one_word(rng: random.Random, skill: str) -> Document:
    return styled_fact(rng, skill, Style(rng.choice(ONE_WORD_PROMPTS), is_brief=True))


def follow_up(rng: random.Random, skill: str) -> Document:
    chat = Chat(rng)
    chat.exchanges.append(draw_fact(chat, held_out=True))
    return finish(chat, Style(), skill, skills.follow_up(chat))


def remembered_name(rng: random.Random, skill: str, num_between: int = 3) -> Document:
    """Ask for a name that the user said up to `num_between` exchanges before."""
    chat = Chat(rng)
    chat.exchanges.append(skills.introduction(chat, held_out=True))
    name = chat.user_name
    extend(chat, Style(), rng.randint(0, num_between), LONG_CHAT_CHARS)
    if chat.user_name != name:
        raise NotHeldOut(name)
    return finish(chat, Style(), skill, skills.user_name(chat))


def long_chat(rng: random.Random, skill: str) -> Document:
    """Ask for a fact after a chat that fills much of the context window."""
    chat = Chat(rng)
    extend(chat, Style(), rng.randint(20, 50), LONG_CHAT_CHARS)
    return finish(chat, Style(), skill, draw_fact(chat, held_out=True))


def name_in_long_chat(rng: random.Random, skill: str) -> Document:
    return remembered_name(rng, skill, num_between=40)


def own_name(rng: random.Random, skill: str) -> Document:
    style = Style()
    while style.own_name == "Conch":
        style = draw_style(rng, held_out_name=True)
    chat = opened_chat(rng, style)
    return finish(chat, style, skill, skills.own_name(chat))


def open_skill(make: Callable[[Chat, bool], Exchange]) -> Callable[[random.Random, str], Document]:
    def draw(rng: random.Random, skill: str) -> Document:
        chat = opened_chat(rng, Style())
        return finish(chat, Style(), skill, make(chat, True))

    return draw


def recitation(rng: random.Random, skill: str) -> Document:
    makers = (skills.recitation, skills.recitation, skills.times_table, skills.emoji_list, skills.country_list)
    return open_skill(rng.choice(makers))(rng, skill)


def first_question(rng: random.Random, skill: str) -> Document:
    chat = Chat(rng)
    chat.exchanges.append(draw_fact(chat, held_out=True))
    extend(chat, Style(), rng.randint(0, 3))
    return finish(chat, Style(), skill, skills.first_question(chat))


def completion(rng: random.Random, skill: str) -> Document:
    """Cut a statement before its last word: the prompt of a plain completion."""
    prompt, _, last = statement(rng).rpartition(" ")
    return Document(skill, prompt=prompt, completion=f" {last}") if prompt else completion(rng, skill)


def calling(make: Callable[[Chat, bool], Exchange], ends_with_call: bool) -> Callable[[random.Random, str], Document]:
    """Draw chats with tools whose last answer is a call, or the answer made of its result."""

    def draw(rng: random.Random, skill: str) -> Document:
        chat = Chat(rng, tools=draw_tools(rng))
        extend(chat, Style(), rng.choice((0, 0, 1)))
        document = finish(chat, Style(), skill, make(chat, True))
        return until_last_call(document) if ends_with_call else document

    return draw


def call_twice(chat: Chat, held_out: bool) -> Exchange:
    if not tool_skills.can_call_twice(chat):
        raise NotHeldOut("no tool for two calls")
    return tool_skills.call_twice(chat, held_out)


def call_again(chat: Chat, held_out: bool) -> Exchange:
    chat.exchanges[:] = [tool_skills.call(chat, held_out)]
    if not tool_skills.can_call_again(chat):
        raise NotHeldOut("no tool for a follow-up")
    return tool_skills.call_again(chat)


def ordinary_beside_tools(chat: Chat, held_out: bool) -> Exchange:
    return draw_fact(chat, held_out)


def json_style(rng: random.Random, skill: str) -> Document:
    return styled_fact(rng, skill, Style(rng.choice(json_answers.SYSTEMS), is_json=True))


def code_gap(rng: random.Random, skill: str) -> Document:
    gap = functions.draw_gap(rng)
    return Document(skill, prompt=gap.prefix, completion=gap.middle, suffix=gap.suffix)


def code(rng: random.Random, skill: str) -> Document:
    prompt, completion = functions.draw_completion(rng)
    return Document(skill, prompt=prompt, completion=completion)


DRAW: dict[str, Callable[[random.Random, str], Document]] = {
    **dict.fromkeys((relation.skill for relation in RELATIONS), fact),
    "follow-ups": follow_up,
    "names": remembered_name,
    "own name": own_name,
    "pirate": pirate,
    "one word": one_word,
    "first question": first_question,
    "repeat": open_skill(skills.repeat),
    "counting": open_skill(skills.count),
    "recitations": recitation,
    "unknown": open_skill(skills.unknown),
    "completion": completion,
    "long chat": long_chat,
    "name in a long chat": name_in_long_chat,
    "tool call": calling(tool_skills.call, ends_with_call=True),
    "two calls": calling(call_twice, ends_with_call=True),
    "call again": calling(call_again, ends_with_call=True),
    "tool result": calling(tool_skills.call, ends_with_call=False),
    "two results": calling(call_twice, ends_with_call=False),
    "no tool fits": calling(tool_skills.no_tool, ends_with_call=False),
    "fact beside tools": calling(ordinary_beside_tools, ends_with_call=False),
    "JSON": open_skill(json_answers.fact_in_json),
    "JSON by the system prompt": json_style,
    "JSON list": open_skill(json_answers.list_in_json),
    "JSON from a text": open_skill(json_objects.extracted),
    "fill in the middle": code_gap,
    "code": code,
}


def draw_held_out(seed: int) -> Iterator[Document]:
    """Draw the evaluation's documents, skill by skill."""
    for skill, draw in DRAW.items():
        rng = random.Random(f"{seed} {skill}")
        remaining = NUM_LONG_CHATS if "long chat" in skill else NUM_PER_SKILL
        while remaining:
            try:
                document = draw(rng, skill)
            except NotHeldOut:
                continue
            remaining -= 1
            yield document
