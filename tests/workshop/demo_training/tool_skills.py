"""The skills of a chat with tools: one call, two calls, no call, and answers from the results."""

import json
import random
import re
import string
from collections.abc import Sequence
from typing import Any

from tests.workshop.demo_training.skills import UNKNOWN, UNKNOWN_QUESTIONS, Chat, Exchange, ToolCall, ToolUse
from tests.workshop.demo_training.slots import Value, as_text, draw_values
from tests.workshop.demo_training.tools import FAMILIES, Outcome, Tool, draw_tool, made_up_family
from tests.workshop.demo_training.wording import word_question

ERRORS = (
    Outcome({"error": "{error}"}, "That failed: {error}."),
    Outcome("error: {error}", "That failed: {error}."),
    Outcome("Error: {error}", "That failed: {error}."),
)
ASKS_FOR_A_TOOL = re.compile(
    "weather|time|date|stock|Translate|rain|population|people|flight|much|price|Recommend|find|buy"
)
QUESTIONS_FOR_NOBODY = tuple(question for question in UNKNOWN_QUESTIONS if not ASKS_FOR_A_TOOL.search(question))
NO_TOOL = "No tool answers this."
SECOND = "2"  # ends the name of a slot of the second of two calls


def slots_of(template: str) -> set[str]:
    """Return the slots that a template names; `{source_words}` is the slot `source`."""
    return {name.removesuffix("_words") for _, name, _, _ in string.Formatter().parse(template) if name}


def askable(tool: Tool, templates: Sequence[str]) -> tuple[str, ...]:
    """Keep the templates that name only slots this tool has parameters for."""
    slots = {slot + number for slot in tool.kinds() for number in ("", SECOND)}
    return tuple(template for template in templates if slots_of(template) <= slots)


def fill(result: Any, values: dict[str, Value]) -> Any:
    """Fill the slots of a result. A string that is only a slot becomes the value itself, for example a number."""
    if isinstance(result, dict):
        return {key: fill(value, values) for key, value in result.items()}
    if isinstance(result, list):
        return [fill(value, values) for value in result]
    if not isinstance(result, str):
        return result
    return values[result[1:-1]] if result[1:-1] in values else result.format(**values)


def run(rng: random.Random, tool: Tool, values: dict[str, Value]) -> tuple[str, str]:
    """Draw a tool's result, as the text of its message, and the answer made of it."""
    outcome = rng.choice(ERRORS if rng.random() < 0.06 else tool.family.outcomes)
    mentioned = set(re.findall(r"\{(\w+)\}", json.dumps(outcome.result) + outcome.answer)) - set(values)
    known = values | draw_values(rng, [(kind, kind) for kind in sorted(mentioned)])
    result = fill(outcome.result, known)
    separators = (",", ":") if rng.random() < 0.2 else (", ", ": ")
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, separators=separators)
    return text, outcome.answer.format(**known)


def use(rng: random.Random, tool: Tool, question: str, runs: Sequence[dict[str, Value]]) -> Exchange:
    """Answer a question by one call for each of `runs`, the values by slot."""
    outcomes = [run(rng, tool, values) for values in runs]
    made = ToolUse(
        tool=tool,
        values=runs[-1],
        calls=tuple(ToolCall(tool.name, tool.arguments(values)) for values in runs),
        results=tuple(result for result, _ in outcomes),
    )
    skill = "tool call" if len(runs) == 1 else "two calls"
    answer = " ".join(answer for _, answer in outcomes)
    return Exchange(skill, question, answer, use=made, thought="The result is there, so I say it.")


def ask(
    rng: random.Random, tool: Tool, templates: Sequence[str], held_out: bool, known: dict[str, Value] | None = None
) -> tuple[str, dict[str, Value]]:
    """Word a request for a tool: return the question and the values by slot, with those of `known` as defaults."""
    kinds = tool.kinds()
    drawn = draw_values(rng, [(slot + number, kind) for slot, kind in kinds.items() for number in ("", SECOND)])
    question, template = word_question(rng, templates, as_text(drawn), held_out, keeps_case=True)
    values = {slot: value for slot, value in drawn.items() if slot in slots_of(template)}
    return question, (known or {}) | values


def call(chat: Chat, held_out: bool = False) -> Exchange:
    """Ask for one call of a tool that the chat offers."""
    tool = chat.rng.choice(chat.tools)
    question, values = ask(chat.rng, tool, askable(tool, tool.family.questions), held_out)
    return use(chat.rng, tool, question, [values])


def call_again(chat: Chat, held_out: bool = False) -> Exchange:
    """Repeat the last call with another value. The last exchange must allow it."""
    previous = chat.exchanges[-1].use
    assert previous is not None
    tool = previous.tool
    question, values = ask(chat.rng, tool, askable(tool, tool.family.follow_ups), held_out, previous.values)
    return use(chat.rng, tool, question, [values])


def can_call_again(chat: Chat) -> bool:
    previous = chat.exchanges[-1].use if chat.exchanges else None
    return previous is not None and len(previous.calls) == 1 and bool(previous.tool.family.follow_ups)


def call_twice(chat: Chat, held_out: bool = False) -> Exchange:
    """Ask for two calls of a tool at once. The chat must offer one that has templates for it."""
    tool = chat.rng.choice([tool for tool in chat.tools if tool.family.pairs])
    question, values = ask(chat.rng, tool, askable(tool, tool.family.pairs), held_out)
    first = {slot: value for slot, value in values.items() if not slot.endswith(SECOND)}
    second = {slot.removesuffix(SECOND): value for slot, value in values.items() if slot.endswith(SECOND)}
    return use(chat.rng, tool, question, [first, first | second])


def can_call_twice(chat: Chat) -> bool:
    return any(tool.family.pairs for tool in chat.tools)


def no_tool(chat: Chat, held_out: bool = False) -> Exchange:
    """Draw a question that no offered tool answers."""
    rng = chat.rng
    if rng.random() < 0.4:
        question, _ = word_question(rng, QUESTIONS_FOR_NOBODY, {}, held_out)
        return Exchange("no tool fits", question, UNKNOWN, thought=NO_TOOL)
    offered = {tool.family.name for tool in chat.tools}
    families = [family for family in FAMILIES if family.name not in offered and not family.clashes]
    tool = draw_tool(rng, made_up_family(rng) if rng.random() < 0.2 else rng.choice(families))
    if any(tool.name == other.name for other in chat.tools):
        return no_tool(chat, held_out)
    question, _ = ask(rng, tool, askable(tool, tool.family.questions), held_out)
    return Exchange("no tool fits", question, UNKNOWN, thought=NO_TOOL)
