import json
import random

from build_engines.demo import dataset, json_answers, json_objects
from build_engines.demo.relations import RELATIONS
from build_engines.demo.skills import Chat, Exchange
from build_engines.demo.style import Style


def test_answers_in_json_parse_and_are_written_on_one_line():
    answers = [
        document.messages[-1]["content"]
        for document in dataset.read(dataset.HELD_OUT)
        if document.skill.startswith("JSON")
    ]
    assert len(answers) == 200
    for answer in answers:
        assert json.dumps(json.loads(answer), ensure_ascii=False) == answer


def test_the_keys_are_those_of_the_question_in_their_order():
    rng = random.Random(1)
    for make in (json_answers.fact_in_json, json_objects.extracted, json_objects.invented):
        for _ in range(100):
            exchange = make(Chat(rng))
            keys = list(json.loads(exchange.answer))
            if " key" in exchange.question:
                assert json_answers.name_keys(keys) in exchange.question


def test_numbers_are_numbers_and_things_lose_their_article():
    legs = next(relation for relation in RELATIONS if relation.skill == "legs")
    row = next(row for row in legs.rows if row["animal"] == "a spider")
    assert json_answers.object_of(legs, row) == {"animal": "spider", "legs": 8}


def test_keys_are_listed_as_in_english():
    assert json_answers.name_keys(["a"]) == "key a"
    assert json_answers.name_keys(["a", "b", "c"]) == "keys a, b and c"


def test_the_system_prompt_puts_any_answer_in_json():
    style = Style("Answer in JSON.", is_json=True)
    capitals = next(relation for relation in RELATIONS if relation.skill == "capitals")
    fact = Exchange("capitals", "?", "The capital of France is Paris.", fact=(capitals, capitals.rows[0]))
    assert style.answer(fact) == '{"country": "France", "capital": "Paris"}'
    assert style.answer(Exchange("small talk", "Hi", "Hello! 👋")) == '{"answer": "Hello! 👋"}'


def test_values_read_from_a_text_stand_in_it():
    rng = random.Random(2)
    for _ in range(100):
        exchange = json_objects.extracted(Chat(rng))
        assert all(str(value) in exchange.question for value in json.loads(exchange.answer).values())
