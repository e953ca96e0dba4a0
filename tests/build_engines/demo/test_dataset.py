import random

import pytest

from build_engines.demo import dataset, skills
from build_engines.demo.conversation import Document
from build_engines.demo.relations import RELATIONS
from build_engines.demo.skills import Chat
from build_engines.demo.wording import is_held_out

ASKED_ANEW = {relation.skill for relation in RELATIONS} | {
    "pirate", "one word", "counting", "recitations", "unknown", "tool call", "two calls", "tool result", "two results",
    "no tool fits", "fact beside tools", "JSON", "JSON by the system prompt", "JSON list", "JSON from a text",
}  # fmt: skip


def questions(document: Document) -> list[str]:
    return [message["content"] for message in document.messages if message["role"] == "user"]


@pytest.fixture(scope="module")
def training() -> list[Document]:
    return dataset.read(dataset.DATASET)


@pytest.fixture(scope="module")
def held_out() -> list[Document]:
    return dataset.read(dataset.HELD_OUT)


def test_the_committed_files_are_what_the_seed_generates():
    for path, content in dataset.generate().items():
        assert path.read_text(encoding="utf-8") == content, path.name


def test_held_out_questions_are_never_trained(training, held_out):
    trained = {question for document in training for question in questions(document)}
    asked = {questions(document)[-1] for document in held_out if document.skill in ASKED_ANEW}
    assert len(asked) > 1_200
    assert all(is_held_out(question) for question in asked)
    assert not asked & trained


def test_held_out_names_are_never_trained(training, held_out):
    prompts = [document.messages[0]["content"] for document in held_out if document.skill == "own name"]
    names = {prompt.partition("name is ")[2].split(".")[0] for prompt in prompts} - {""}
    assert names
    assert all(is_held_out(name) for name in names)
    trained = {message["content"] for document in training for message in document.messages}
    assert not {f"My name is {name}." for name in names} & trained


def test_each_skill_is_evaluated(held_out):
    others = {"names", "follow-ups", "repeat", "long chat", "call again", "fill in the middle", "code"}
    assert {document.skill for document in held_out} >= ASKED_ANEW | others


def test_a_document_is_read_as_it_was_written():
    for document in (
        Document("fill in the middle", prompt="a", completion="b", suffix="c"),
        Document("tool call", ({"role": "user", "content": "?"},), ({"type": "function", "function": {"name": "f"}},)),
    ):
        assert dataset.from_line(dataset.to_line(document)) == document


def test_each_relation_fills_its_templates_from_each_row():
    for relation in RELATIONS:
        follow_ups = [follow_up.template for follow_up in relation.follow_ups]
        for row in relation.rows:
            texts = [text.format(**row) for text in (*relation.questions, *follow_ups, relation.answer, relation.short)]
            assert all(texts)


@pytest.mark.parametrize("skill", ["capitals", "flags", "colours", "opposites", "sounds", "legs", "translation"])
def test_a_question_has_one_answer(skill):
    for relation in RELATIONS:
        if relation.skill == skill:
            asked = [relation.questions[0].format(**row) for row in relation.rows]
            assert len(asked) == len(set(asked))


def test_a_count_runs_to_its_end():
    exchange = skills.count(Chat(random.Random(3)))
    numbers = [int(number) for number in exchange.answer.rstrip(".").split(", ")]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert str(numbers[-1]) in exchange.question
