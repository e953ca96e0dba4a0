import json
import random

import pytest

from build_engines.demo import dataset
from build_engines.demo.conversation import Document
from build_engines.demo.skills import UNKNOWN, Chat, Exchange, ToolUse
from build_engines.demo.slots import as_text, draw_values
from build_engines.demo.tool_skills import askable, call, call_again, call_twice, fill, no_tool
from build_engines.demo.tools import FAMILIES, Tool, draw_tool, draw_tools, made_up_family


def tool_of(family_name: str, seed: int = 1) -> Tool:
    family = next(family for family in FAMILIES if family.name == family_name)
    return draw_tool(random.Random(seed), family)


def chat_with(*family_names: str, seed: int = 1) -> Chat:
    return Chat(random.Random(seed), tools=tuple(tool_of(name) for name in family_names))


def use_of(exchange: Exchange) -> ToolUse:
    assert exchange.use is not None
    return exchange.use


@pytest.fixture(scope="module")
def offering() -> list[Document]:
    documents = [*dataset.read(dataset.DATASET), *dataset.read(dataset.HELD_OUT)]
    return [document for document in documents if document.tools]


def test_each_call_names_an_offered_tool_and_gives_what_it_requires(offering):
    num_calls = 0
    for document in offering:
        schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in document.tools}
        for message in document.messages:
            for made in message.get("tool_calls", ()):
                schema, arguments = schemas[made["function"]["name"]], made["function"]["arguments"]
                assert set(arguments) <= set(schema.get("properties", {}))
                assert set(arguments) >= set(schema.get("required", ()))
                num_calls += 1
    assert num_calls > 1000


def test_arguments_have_the_types_of_their_schema(offering):
    types = {"string": str, "integer": int, "number": int | float}
    for document in offering:
        schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in document.tools}
        for message in document.messages:
            for made in message.get("tool_calls", ()):
                properties = schemas[made["function"]["name"]].get("properties", {})
                for name, value in made["function"]["arguments"].items():
                    assert isinstance(value, types[properties[name]["type"]])
                    assert value in properties[name].get("enum", [value])


def test_each_call_has_one_result_and_then_an_answer(offering):
    for document in offering:
        roles = [message["role"] for message in document.messages]
        for position, message in enumerate(document.messages[:-1]):
            if num_calls := len(message.get("tool_calls", ())):
                expected = ["tool"] * num_calls + ["assistant"]
                assert roles[position + 1 : position + 2 + num_calls] == expected


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_family_can_be_asked_for_under_each_of_its_names(family):
    rng = random.Random(5)
    for _ in range(20):
        tool = draw_tool(rng, family)
        values = draw_values(rng, [(slot + n, kind) for slot, kind in tool.kinds().items() for n in ("", "2")])
        for templates in (family.questions, family.follow_ups, family.pairs):
            asked = [template.format(**as_text(values)) for template in askable(tool, templates)]
            assert bool(asked) == bool(templates)
        assert tool.definition()["function"]["name"] in family.tools


def test_an_optional_parameter_is_left_out_when_it_is_not_said():
    weather = (tool_of("weather", seed) for seed in range(20))
    tool = next(tool for tool in weather if set(tool.kinds()) == {"city", "unit"})
    chat = Chat(random.Random(3), tools=(tool,))
    for _ in range(30):
        exchange = call(chat)
        (arguments,) = (made.arguments for made in use_of(exchange).calls)
        is_said = "celsius" in exchange.question or "fahrenheit" in exchange.question
        assert ("unit" in {tool.parameters[name].slot for name in arguments}) == is_said


def test_two_calls_share_what_the_question_says_once():
    exchange = call_twice(chat_with("translate"))
    first, second = (made.arguments for made in use_of(exchange).calls)
    different = [name for name in first if first[name] != second[name]]
    assert len(different) == 1
    assert all(str(value) in exchange.question for value in (*first.values(), *second.values()))


def test_a_follow_up_calls_the_same_tool_with_another_value():
    chat = chat_with("weather", "time")
    chat.exchanges.append(call(chat))
    again = call_again(chat)
    before = use_of(chat.exchanges[0])
    assert use_of(again).calls[0].name == before.calls[0].name
    assert use_of(again).calls[0].arguments != before.calls[0].arguments


def test_the_evaluation_offers_the_tools_that_it_expects_calls_of(offering):
    skills = {document.skill for document in offering}
    assert skills >= {"tool call", "two calls", "call again", "tool result", "two results", "no tool fits"}
    held_out = dataset.read(dataset.HELD_OUT)
    assert all(document.tools for document in held_out if any("tool_calls" in m for m in document.messages))


def test_a_question_for_another_tool_is_not_known():
    chat = chat_with("weather")
    for _ in range(20):
        exchange = no_tool(chat)
        assert exchange.answer == UNKNOWN
        assert exchange.use is None


def test_the_answer_copies_the_result():
    chat = chat_with("population")
    exchange = call(chat)
    (result,) = use_of(exchange).results
    numbers = "".join(character for character in result if character.isdigit())
    assert numbers in exchange.answer or "failed" in exchange.answer


def test_a_slot_alone_in_a_result_keeps_its_type():
    assert fill({"a": "{n}", "b": "at {n}", "c": ["{n}"], "d": True}, {"n": 7}) == {
        "a": 7, "b": "at 7", "c": [7], "d": True,
    }  # fmt: skip


def test_offered_tools_have_different_names_and_families():
    rng = random.Random(2)
    for _ in range(200):
        tools = draw_tools(rng)
        assert 1 <= len(tools) <= 4
        assert len({tool.name for tool in tools}) == len(tools)


def test_a_made_up_tool_says_what_it_does():
    tool = draw_tool(random.Random(4), made_up_family(random.Random(4)))
    assert tool.description.endswith(".")
    assert json.loads(json.dumps(tool.definition())) == tool.definition()
