"""Tools that a chat may offer: families of them, each under many names, as OpenAI's API writes them."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.workshop.demo_training.relations import FACTS
from tests.workshop.demo_training.slots import CHOICES, ENUMS, Value, json_type
from tests.workshop.demo_training.wording import draw_early, made_up_word

NUM_OFFERED = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4)  # drawn from
MADE_UP_SHARE = 0.1
WEIGHTS = {"weather": 8.0, "time": 2.0}  # of the families; 1.0 for the others


@dataclass(frozen=True)
class Parameter:
    """A parameter. Its slot is its place in the family's templates; its name differs from tool to tool."""

    slot: str
    kind: str
    names: tuple[str, ...]
    is_optional: bool = False


@dataclass(frozen=True)
class Outcome:
    """A tool's result, text or JSON with `{slots}` in it, and the answer made of it."""

    result: Any
    answer: str


@dataclass(frozen=True)
class Family:
    """Tools with the same function, and the questions for it."""

    name: str
    tools: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    questions: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    follow_ups: tuple[str, ...] = ()  # repeat the question, with other values in their slots
    pairs: tuple[str, ...] = ()  # ask for two calls: a slot's second value is `slot2`
    clashes: frozenset[str] = frozenset()  # skills of relations that answer such questions without the tool


@dataclass(frozen=True)
class Tool:
    """One tool as a chat offers it."""

    family: Family
    name: str
    description: str
    parameters: dict[str, Parameter] = field(default_factory=dict)  # by the name that this tool gives it

    def kinds(self) -> dict[str, str]:
        """Return the kind of each slot that this tool has a parameter for."""
        return {parameter.slot: parameter.kind for parameter in self.parameters.values()}

    def arguments(self, values: dict[str, Value]) -> dict[str, Value]:
        """Put the values that a question gives under this tool's names, in the order of its parameters."""
        return {name: values[p.slot] for name, p in self.parameters.items() if p.slot in values}

    def definition(self) -> dict[str, Any]:
        """Write the tool as OpenAI's API does."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        if self.parameters:
            properties = {name: schema(parameter.kind) for name, parameter in self.parameters.items()}
            required = [name for name, parameter in self.parameters.items() if not parameter.is_optional]
            function["parameters"] = {"type": "object", "properties": properties, "required": required}
        return {"type": "function", "function": function}


def schema(kind: str) -> dict[str, Any]:
    return {"type": json_type(kind), **({"enum": list(ENUMS[kind])} if kind in ENUMS else {})}


DONE = ("ok", "done", "sent", "success", {"status": "ok"}, {"success": True}, {"status": "done"}, {"result": "ok"})


def read_family(fields: dict[str, Any]) -> Family:
    outcomes = [Outcome(result, answer) for result, answer in fields.get("outcomes", ())]
    if "done" in fields:
        outcomes += [Outcome(result, fields["done"]) for result in DONE]
    return Family(
        name=fields["family"],
        tools=tuple(fields["tools"]),
        descriptions=tuple(fields["descriptions"]),
        parameters=tuple(
            Parameter(p["slot"], p.get("kind", p["slot"]), tuple(p["names"]), p.get("optional", False))
            for p in fields["parameters"]
        ),
        questions=tuple(fields["questions"]),
        outcomes=tuple(outcomes),
        follow_ups=tuple(fields.get("follow_ups", ())),
        pairs=tuple(fields.get("pairs", ())),
        clashes=frozenset(fields.get("clashes", ())),
    )


FAMILIES = tuple(read_family(fields) for fields in json.loads((FACTS / "tools.json").read_text(encoding="utf-8")))

MADE_UP_PARAMETERS = (  # and how a question mentions them
    (Parameter("number", "number", ("number", "id", "n", "count", "index")), "number {number}"),
    (Parameter("person", "person", ("name", "owner", "who", "user")), "for {person}"),
    (Parameter("city", "city", ("city", "place", "location", "where")), "in {city}"),
    (Parameter("word", "word", ("label", "title", "key", "tag")), "called {word}"),
    (Parameter("time", "hour", ("time", "at", "when")), "at {time}"),
)
MADE_UP_OUTCOMES = (
    *(Outcome(result, "Done.") for result in DONE),
    Outcome("{word}", "The result is {word}."),
    Outcome({"result": "{word}"}, "The result is {word}."),
    Outcome({"result": "{number}"}, "The result is {number}."),
    Outcome("{number}", "The result is {number}."),
)


def made_up_family(rng: random.Random) -> Family:
    """Make up a tool that only its name and its description explain."""
    verb, noun = rng.choice(CHOICES["made_up_verbs"]), rng.choice(CHOICES["made_up_nouns"])
    luck = rng.random()
    name = f"{verb}_{noun}" if luck < 0.5 else f"{verb}{noun.capitalize()}" if luck < 0.6 else made_up_word(rng)
    if luck > 0.85:
        name += f"_{made_up_word(rng)}"
    chosen = rng.sample(MADE_UP_PARAMETERS, rng.choice((1, 1, 2)))
    parameters = tuple(parameter for parameter, _ in chosen)
    mentions = " ".join(mention for _, mention in chosen)
    settings = " and ".join(f"{parameter.slot} {{{parameter.slot}}}" for parameter in parameters)
    asks = (f"{verb.capitalize()} the {noun} {mentions}.", f"Please {verb} the {noun} {mentions}.",
            f"Can you {verb} the {noun} {mentions}?")  # fmt: skip
    calls = (f"Call {name} with {settings}.", f"Use {name} with {settings}.", f"Please call {name} with {settings}.")
    article = "an" if noun[0] in "aeiou" else "a"
    description = f"{verb.capitalize()} {article} {noun}."
    return Family("made up", (name,), (description,), parameters, (*asks, *asks, *calls), MADE_UP_OUTCOMES)


def draw_tool(rng: random.Random, family: Family) -> Tool:
    """Name a tool of the family and its parameters, and leave out some of the optional ones."""
    parameters: dict[str, Parameter] = {}
    for parameter in family.parameters:
        if not parameter.is_optional or rng.random() < 0.6:
            names = [name for name in parameter.names if name not in parameters]
            parameters[draw_early(rng, names)] = parameter
    is_described = family.name == "made up" or rng.random() < 0.85
    description = draw_early(rng, family.descriptions) if is_described else ""
    return Tool(family, draw_early(rng, family.tools), description, parameters)


def draw_family(rng: random.Random) -> Family:
    return rng.choices(FAMILIES, [WEIGHTS.get(family.name, 1.0) for family in FAMILIES])[0]


def draw_tools(rng: random.Random) -> tuple[Tool, ...]:
    """Draw the tools of a chat, of different families that do not answer the same questions."""
    drawn: list[Tool] = []
    for _ in range(rng.choice(NUM_OFFERED)):
        family = made_up_family(rng) if rng.random() < MADE_UP_SHARE else draw_family(rng)
        others = [tool.family for tool in drawn]
        if family not in others and not any(family.clashes & other.clashes for other in others):
            drawn.append(draw_tool(rng, family))
    return tuple(drawn) if has_distinct_names(drawn) else draw_tools(rng)


def has_distinct_names(tools: Sequence[Tool]) -> bool:
    return len({tool.name for tool in tools}) == len(tools)
