"""The skills of the demo model: each function draws one exchange that a chat may go on with."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.workshop.demo_training.relations import (
    COUNTRIES,
    EMOJI,
    RELATIONS,
    Relation,
    Row,
    capitalise,
    read_answers,
    read_grammar,
    read_lines,
)
from tests.workshop.demo_training.slots import Value
from tests.workshop.demo_training.tools import Tool
from tests.workshop.demo_training.wording import careless, made_up_word, person, phrase, text_to_repeat

UNKNOWN = "I do not know that."
NO_FACT = "None of my facts is about this."
RECITATIONS = read_answers("recitations")
SMALL_TALK = read_answers("small_talk")
UNKNOWN_GRAMMAR = read_grammar("unknown_grammar")
UNKNOWN_QUESTIONS = read_lines("unknown_questions")

INTRODUCTIONS = (
    "My name is {name}.",
    "I am {name}.",
    "I'm {name}.",
    "Call me {name}.",
    "Hello, my name is {name}.",
    "Hi! My name is {name}.",
    "You can call me {name}.",
    "Hi, I am {name}.",
)
NAME_QUESTIONS = (
    "What is my name?",
    "What's my name?",
    "Do you remember my name?",
    "What am I called?",
    "Tell me my name.",
    "Who am I?",
    "Do you know my name?",
)
OWN_NAME_QUESTIONS = (
    "What is your name?",
    "What's your name?",
    "What are you called?",
    "Tell me your name.",
    "Do you have a name?",
)
FIRST_QUESTIONS = ("What did I ask first?", "What was my first question?", "What did I say first?")
REPEAT_REQUESTS = ("Repeat after me: {}", "Repeat: {}", "Say: {}", "Copy this: {}", "Echo: {}", "Repeat after me:\n{}")
COUNT_REQUESTS = (
    "Count from {first} to {last}.",
    "Count up from {first} to {last}.",
    "Please count from {first} to {last}.",
    "Can you count from {first} to {last}?",
    "List the numbers from {first} to {last}.",
)
TIMES_TABLE_REQUESTS = (
    "Recite the {a} times table.",
    "Show me the {a} times table.",
    "What is the {a} times table?",
    "Write the times table of {a}.",
)
EMOJI_LIST_REQUESTS = (
    "List {count} animals with their emoji.",
    "Name {count} animals with their emoji.",
    "Give me {count} animals with emoji.",
    "Show me {count} animals and their emoji.",
)
COUNTRY_LIST_REQUESTS = (
    "List {count} countries with their flags and capitals.",
    "Name {count} countries with flags and capitals.",
    "Give me {count} countries, their flags and their capitals.",
)
COUNTS = {
    3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten", 12: "twelve",
    15: "fifteen", 20: "twenty",
}  # fmt: skip
NUM_ANIMALS = 40  # the first rows of the emoji table


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ToolUse:
    """The tool calls between a question and its answer, with their results."""

    tool: Tool
    values: dict[str, Value]  # of the last call, by slot; a follow-up refers to them
    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]  # of each call


@dataclass(frozen=True)
class Exchange:
    """A question and its answer, before the style of the chat is applied."""

    skill: str
    question: str
    answer: str
    short: str = ""  # the one-word answer; empty: the answer itself
    fact: tuple[Relation, Row] | None = None  # a follow-up refers to it
    use: ToolUse | None = None
    thought: str = ""  # that may precede the answer; empty: it has none


@dataclass
class Chat:
    """A chat so far, which its next exchange may refer to."""

    rng: random.Random
    own_name: str = "Conch"
    user_name: str = ""
    tools: tuple[Tool, ...] = ()
    exchanges: list[Exchange] = field(default_factory=list)


def known_fact(relation: Relation, row: Row) -> str:
    """Return the thought about a fact: the steps of a calculation, or the kind of the fact and the fact itself."""
    answer = relation.answer.format(**row)
    if relation.skill not in ("sums", "differences", "products"):
        return f"Subject: {relation.skill}. {answer}"
    a, b, result = int(row["a"]), int(row["b"]), int(row["result"])
    if relation.skill == "products":
        one_less = f"{a} \N{MULTIPLICATION SIGN} {b - 1} = {result - a}"
        return f"{one_less}, {result - a} + {a} = {result}." if min(a, b) > 1 else answer
    ten, sign = (10 * (a // 10 + 1), "+") if relation.skill == "sums" else (10 * (a // 10), "-")
    to_ten = abs(ten - a)  # the first step ends at a multiple of ten
    return f"{a} {sign} {to_ten} = {ten}, {ten} {sign} {b - to_ten} = {result}." if 0 < to_ten < b else answer


def ask(rng: random.Random, relation: Relation, row: Row, templates: tuple[str, ...], held_out: bool) -> Exchange:
    return Exchange(
        relation.skill,
        phrase(rng, templates, row, held_out),
        relation.answer.format(**row),
        relation.short.format(**row),
        (relation, row),
        thought=known_fact(relation, row),
    )


def fact(chat: Chat, relation: Relation, held_out: bool = False) -> Exchange:
    return ask(chat.rng, relation, chat.rng.choice(relation.rows), relation.questions, held_out)


def follow_up(chat: Chat, held_out: bool = False) -> Exchange:
    """Repeat the last question about another row. The last exchange must be a fact."""
    previous = chat.exchanges[-1].fact
    assert previous is not None
    relation, known = previous
    shorter = chat.rng.choice(relation.follow_ups)
    keeps = shorter.keeps
    rows = [row for row in relation.rows if row is not known and (not keeps or row[keeps] == known[keeps])]
    exchange = ask(chat.rng, relation, chat.rng.choice(rows), (shorter.template,), held_out)
    return replace(exchange, skill="follow-ups")


def introduction(chat: Chat, held_out: bool = False) -> Exchange:
    """Let the user say a name; with `held_out`, one that the training never shows."""
    chat.user_name = person(chat.rng, held_out)
    question = chat.rng.choice(INTRODUCTIONS).format(name=chat.user_name)
    if chat.rng.random() < 0.1:
        question = question.rstrip(".")
    answer, short = f"Nice to meet you, {chat.user_name}! 😊", f"Hello, {chat.user_name}!"
    return Exchange("names", question, answer, short, thought=f"The user is called {chat.user_name}.")


def user_name(chat: Chat, held_out: bool = False) -> Exchange:
    question = phrase(chat.rng, NAME_QUESTIONS, {}, held_out)
    if not chat.user_name:
        return Exchange("names", question, "You did not tell me your name.", thought="The user told no name.")
    answer, short = f"Your name is {chat.user_name}.", f"{chat.user_name}."
    return Exchange("names", question, answer, short, thought=f"The user is called {chat.user_name}.")


def own_name(chat: Chat, held_out: bool = False) -> Exchange:
    question = phrase(chat.rng, OWN_NAME_QUESTIONS, {}, held_out)
    answer, short = f"My name is {chat.own_name}.", f"{chat.own_name}."
    return Exchange("own name", question, answer, short, thought=f"I am called {chat.own_name}.")


def first_question(chat: Chat, held_out: bool = False) -> Exchange:
    question = phrase(chat.rng, FIRST_QUESTIONS, {}, held_out)
    return Exchange(
        "first question",
        question,
        f"You first said: {chat.exchanges[0].question}",
        thought="I look at the first message.",
    )


def repeat(chat: Chat, held_out: bool = False) -> Exchange:
    while True:
        text = text_to_repeat(chat.rng)
        question = chat.rng.choice(REPEAT_REQUESTS).replace("{}", text)
        if len(text) <= 300:
            return Exchange("repeat", question, text, thought="I repeat the text.")


def count(chat: Chat, held_out: bool = False) -> Exchange:
    rng = chat.rng
    first = 1 if rng.random() < 0.5 else rng.randint(0, 180)
    longest = 200 - first if rng.random() < 0.3 else min(200 - first, 30)
    last = first + rng.randint(1, longest)
    question = phrase(rng, COUNT_REQUESTS, {"first": str(first), "last": str(last)}, held_out)
    if first == 1 and not held_out and rng.random() < 0.2:
        question = f"Count to {last}."
    answer = ", ".join(str(number) for number in range(first, last + 1)) + "."
    return Exchange(
        "counting", question, answer, thought=f"I count {last - first + 1} numbers, from {first} to {last}."
    )


def times_table(chat: Chat, held_out: bool = False) -> Exchange:
    a = chat.rng.randint(1, 10)
    question = phrase(chat.rng, TIMES_TABLE_REQUESTS, {"a": str(a)}, held_out)
    answer = "\n".join(f"{a} \N{MULTIPLICATION SIGN} {b} = {a * b}" for b in range(1, 11))
    return Exchange("recitations", question, answer, thought=f"From {a} times 1 to {a} times 10.")


def emoji_list(chat: Chat, held_out: bool = False) -> Exchange:
    number = chat.rng.choice(list(COUNTS))
    question = phrase(chat.rng, EMOJI_LIST_REQUESTS, {"count": COUNTS[number]}, held_out)
    animals = EMOJI[:NUM_ANIMALS][:number]
    answer = "\n".join(f"{animal['emoji']} {animal['noun']}" for animal in animals)
    return Exchange("recitations", question, answer, thought=f"I list {COUNTS[number]} animals.")


def country_list(chat: Chat, held_out: bool = False) -> Exchange:
    number = chat.rng.choice((3, 5, 10, 20))
    question = phrase(chat.rng, COUNTRY_LIST_REQUESTS, {"count": COUNTS[number]}, held_out)
    lines = [f"{row['flag']} {capitalise(row['country'])}: {row['capital']}" for row in COUNTRIES[:number]]
    return Exchange("recitations", question, "\n".join(lines), thought=f"I list {COUNTS[number]} countries.")


def recitation(chat: Chat, held_out: bool = False) -> Exchange:
    questions, answer = chat.rng.choice(RECITATIONS)
    return Exchange("recitations", phrase(chat.rng, questions, {}, held_out), answer, thought="I know this by heart.")


def small_talk(chat: Chat, held_out: bool = False) -> Exchange:
    questions, answer = chat.rng.choice(SMALL_TALK)
    return Exchange("small talk", careless(chat.rng, chat.rng.choice(questions)), answer, thought="This is small talk.")


def unknown(chat: Chat, held_out: bool = False) -> Exchange:
    """Draw a question without an answer: a made-up word, a number that is too large, or another subject."""
    rng = chat.rng
    luck = rng.random()
    if luck < 0.2:
        return Exchange("unknown", phrase(rng, UNKNOWN_QUESTIONS, {}, held_out), UNKNOWN, thought=NO_FACT)
    if luck < 0.4:
        words = {column: rng.choice(choices) for column, choices in UNKNOWN_GRAMMAR.items()}
        return Exchange("unknown", phrase(rng, (words["patterns"],), words, held_out), UNKNOWN, thought=NO_FACT)
    if luck < 0.5:
        numbers = {"a": str(rng.randint(30, 999)), "b": str(rng.randint(30, 999))}
        relation = rng.choice([r for r in RELATIONS if r.skill in ("sums", "differences", "products")])
        return Exchange("unknown", phrase(rng, relation.questions, numbers, held_out), UNKNOWN, thought=NO_FACT)
    relation = rng.choice([r for r in RELATIONS if r.subject])
    word = made_up_word(rng)
    known = rng.choice(relation.rows)
    article = known[relation.subject].split(" ")[0]
    made_up = {
        "country": word.capitalize(), "capital": word.capitalize(), "word": word, "noun": word,
        "thing": f"a {word}" if article in ("a", "an", "the") else word, "animal": f"a {word}",
    }  # fmt: skip
    return Exchange(
        "unknown", phrase(rng, relation.questions, {**known, **made_up}, held_out), UNKNOWN, thought=NO_FACT
    )
