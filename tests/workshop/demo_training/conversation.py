"""Whole documents: chats in a style, mixed from the skills, and plain texts to complete."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.workshop.demo_training import functions, json_answers, json_objects, skills, tool_skills
from tests.workshop.demo_training.relations import RELATIONS
from tests.workshop.demo_training.skills import Chat, Exchange
from tests.workshop.demo_training.style import Style, draw_style
from tests.workshop.demo_training.tools import draw_tools

Message = dict[str, Any]

FACT_WEIGHTS = {
    "sums": 3.5,
    "differences": 2.0,
    "products": 1.5,
    "translation": 2.5,
    "calendar": 0.4,
    "legs": 0.6,
    "sounds": 0.5,
}
SKILL_WEIGHTS: tuple[tuple[Callable[[Chat], Exchange], float], ...] = (
    (skills.introduction, 6),
    (skills.user_name, 6),
    (skills.own_name, 5),
    (skills.first_question, 1),
    (skills.repeat, 14),
    (skills.count, 4),
    (skills.times_table, 0.7),
    (skills.emoji_list, 0.7),
    (skills.country_list, 0.3),
    (skills.recitation, 3),
    (skills.small_talk, 4),
    (skills.unknown, 7),
    (tool_skills.no_tool, 3),
    (json_answers.fact_in_json, 7),
    (json_answers.list_in_json, 2),
    (json_objects.invented, 1.5),
    (json_objects.extracted, 4),
)
TOOL_WEIGHTS: tuple[tuple[Callable[[Chat], Exchange], float], ...] = (
    (tool_skills.call, 6),
    (tool_skills.call_twice, 3),
    (tool_skills.call_again, 3),
    (tool_skills.no_tool, 5),
)
BRIEF = (
    skills.introduction,
    skills.user_name,
    skills.own_name,
    skills.unknown,
)  # besides facts, the skills with an answer of one word
IN_JSON = (*BRIEF, skills.small_talk, json_answers.fact_in_json)  # besides facts, the skills with an answer in JSON
WITH_TOOLS = (skills.introduction, skills.user_name, skills.own_name, skills.repeat, skills.count, skills.small_talk,
              skills.recitation, json_answers.fact_in_json, json_objects.extracted)  # fmt: skip
# A chat of this length fits 2,048 tokens, except rare ones full of emoji and digits, which the trainer skips.
MAX_CHARS = 3_600


@dataclass(frozen=True)
class Document:
    """One item of the data set: a chat as OpenAI's API writes it, or a plain text split in prompt and completion."""

    skill: str  # of the last answer
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()  # that the chat offers
    prompt: str = ""
    completion: str = ""
    suffix: str = ""  # not empty: the completion fills the gap between prompt and suffix
    thought: str = ""  # before the last answer
    is_thought_cut: bool = False  # by the budget: the model did not end it


def draw_fact(chat: Chat, held_out: bool = False) -> Exchange:
    """Draw a question about a fact that no tool of the chat answers."""
    clashes = {skill for tool in chat.tools for skill in tool.family.clashes}
    relations = [relation for relation in RELATIONS if relation.skill not in clashes]
    weights = [FACT_WEIGHTS.get(relation.skill, 1.0) for relation in relations]
    return skills.fact(chat, chat.rng.choices(relations, weights)[0], held_out)


def is_possible(make: Callable[[Chat], Exchange], chat: Chat, style: Style) -> bool:
    """Whether the chat, in its style, may continue with this skill."""
    if make is skills.first_question and not chat.exchanges:
        return False
    if make is tool_skills.call_again and not tool_skills.can_call_again(chat):
        return False
    if make is tool_skills.call_twice and not tool_skills.can_call_twice(chat):
        return False
    if make is tool_skills.no_tool:
        return not style.is_brief and not style.is_json
    allowed = BRIEF if style.is_brief else IN_JSON if style.is_json else WITH_TOOLS if chat.tools else None
    return allowed is None or make in allowed or any(make is tool_skill for tool_skill, _ in TOOL_WEIGHTS)


def draw_skill(chat: Chat, style: Style, weighted: tuple[tuple[Callable[[Chat], Exchange], float], ...]) -> Exchange:
    makers = [(make, weight) for make, weight in weighted if is_possible(make, chat, style)]
    return chat.rng.choices([make for make, _ in makers], [weight for _, weight in makers])[0](chat)


def draw_exchange(chat: Chat, style: Style) -> Exchange:
    """Draw the next exchange: a follow-up, another fact, or another skill."""
    rng = chat.rng
    if chat.tools and rng.random() < 0.75:
        return draw_skill(chat, style, TOOL_WEIGHTS)
    if chat.exchanges and chat.exchanges[-1].fact and rng.random() < 0.4:
        return skills.follow_up(chat)
    if rng.random() < 0.6:
        return draw_fact(chat)
    return draw_skill(chat, style, SKILL_WEIGHTS)


def extend(chat: Chat, style: Style, num_exchanges: int, max_chars: int = MAX_CHARS) -> None:
    size = sum(len(exchange.question + exchange.answer) for exchange in chat.exchanges)
    for _ in range(num_exchanges):
        exchange = draw_exchange(chat, style)
        size += len(exchange.question + exchange.answer)
        if size > max_chars:
            return
        chat.exchanges.append(exchange)


def messages_of(exchange: Exchange, answer: str) -> Iterator[Message]:
    """Write an exchange as messages: the question, any calls of tools and their results, the answer."""
    yield {"role": "user", "content": exchange.question}
    if exchange.use:
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in exchange.use.calls
        ]
        yield {"role": "assistant", "content": "", "tool_calls": calls}
        for result in exchange.use.results:
            yield {"role": "tool", "content": result}
    yield {"role": "assistant", "content": answer}


def chat_document(chat: Chat, style: Style) -> Document:
    messages: list[Message] = [{"role": "system", "content": style.prompt}] if style.prompt else []
    for exchange in chat.exchanges:
        messages += messages_of(exchange, style.answer(exchange))
    tools = tuple(tool.definition() for tool in chat.tools)
    return Document(chat.exchanges[-1].skill, tuple(messages), tools)


def until_last_call(document: Document) -> Document:
    """Leave out the results and the answer behind the last calls of tools."""
    position = max(place for place, message in enumerate(document.messages) if message.get("tool_calls"))
    return replace(document, messages=document.messages[: position + 1])


def draw_length(rng: random.Random) -> int:
    """Draw a chat's number of exchanges: most chats are short, one in two hundred fills the context window."""
    luck = rng.random()
    if luck < 0.45:
        return 1
    if luck < 0.80:
        return rng.randint(2, 3)
    return rng.randint(4, 9) if luck < 0.995 else rng.randint(20, 60)


def draw_chat(rng: random.Random, write: Callable[[Chat, Style], Document] = chat_document) -> Document:
    style = draw_style(rng)
    chat = Chat(rng, style.own_name)
    while not chat.exchanges:
        extend(chat, style, draw_length(rng))
    return write(chat, style)


def statement(rng: random.Random) -> str:
    weights = [FACT_WEIGHTS.get(relation.skill, 1.0) for relation in RELATIONS]
    relation = rng.choices(RELATIONS, weights)[0]
    return relation.answer.format(**rng.choice(relation.rows))


def draw_tool_chat(rng: random.Random, write: Callable[[Chat, Style], Document] = chat_document) -> Document:
    """Draw a chat that offers tools, of one to three exchanges mostly."""
    style = Style()
    while style == Style() and rng.random() < 0.4:
        style = draw_style(rng)
    if style.is_brief or style.is_json:
        style = Style()
    chat = Chat(rng, style.own_name, tools=draw_tools(rng))
    while not chat.exchanges:
        extend(chat, style, rng.choice((1, 1, 1, 2, 2, 3, 6)))
    return write(chat, style)


def draw_text(rng: random.Random) -> Document:
    luck = rng.random()
    if luck < 0.75:
        return Document("completion", completion=statement(rng))
    if luck < 0.92:
        return Document("completion", completion="\n".join(statement(rng) for _ in range(rng.randint(2, 6))))
    if luck < 0.97:
        return Document("completion", completion=rng.choice(skills.RECITATIONS)[1])
    return Document("completion", completion=skills.count(Chat(rng)).answer)


def draw_code(rng: random.Random) -> Document:
    if rng.random() < 0.25:
        prompt, completion = functions.draw_completion(rng)
        return Document("code", prompt=prompt, completion=completion)
    gap = functions.draw_gap(rng)
    return Document("fill in the middle", prompt=gap.prefix, completion=gap.middle, suffix=gap.suffix)


def draw_document(rng: random.Random) -> Document:
    """Draw a document of the training stream."""
    makers = (draw_chat, draw_tool_chat, draw_text, draw_code)
    return rng.choices(makers, (56, 20, 7, 17))[0](rng)
