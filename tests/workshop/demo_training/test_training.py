"""The generator and the encoder that the demo model was trained with."""

import ast
import json
import random
from itertools import islice

import jinja2
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.pictures import COLOURS
from tests.workshop.demo_training import dataset, json_answers, json_objects
from tests.workshop.demo_training.checkpoint import CHECKPOINT, replace_files
from tests.workshop.demo_training.conversation import Document
from tests.workshop.demo_training.encoding import DocumentEncoder
from tests.workshop.demo_training.formal import PREFIX, formal
from tests.workshop.demo_training.functions import draw_completion, draw_function, draw_gap
from tests.workshop.demo_training.hermes import to_json
from tests.workshop.demo_training.parallel import FORMS, LANGUAGES, draw_pair, draw_sentence, third_person
from tests.workshop.demo_training.pictures import FACTS, HELD_OUT_SEED, Painter
from tests.workshop.demo_training.relations import RELATIONS
from tests.workshop.demo_training.skills import Chat
from tests.workshop.demo_training.tokenizer import CHAT_TEMPLATE, CONTEXT_WINDOW, added_tokens, config_file
from tests.workshop.demo_training.wording import is_held_out

# Skills whose last question is drawn anew for the evaluation. The questions of the other skills are trained.
HELD_OUT_SKILLS = {relation.skill for relation in RELATIONS} | {
    "pirate", "one word", "counting", "recitations", "unknown", "tool call", "two calls", "tool result", "two results",
    "no tool fits", "fact beside tools", "JSON", "JSON by the system prompt", "JSON list", "JSON from a text",
}  # fmt: skip
JSON_TYPES = {"string": str, "integer": int, "number": int | float}


@pytest.fixture(scope="module")
def training() -> list[Document]:
    return dataset.read(dataset.DATASET)


@pytest.fixture(scope="module")
def held_out() -> list[Document]:
    return dataset.read(dataset.HELD_OUT)


def questions(document: Document) -> list[str]:
    return [message["content"] for message in document.messages if message["role"] == "user"]


def learned_ids(encoder: DocumentEncoder, document: Document) -> list[int]:
    encoded = encoder.encode(document)
    return [id_ for id_, is_learned in zip(encoded.token_ids, encoded.is_learned, strict=True) if is_learned]


def test_the_seed_generates_the_first_documents_of_the_data_set() -> None:
    with dataset.DATASET.open(encoding="utf-8", newline="\n") as file:
        lines = [line.rstrip("\n") for line in islice(file, 200)]
    assert [dataset.to_line(document) for document in islice(dataset.training_stream(), 200)] == lines


def test_the_seed_generates_both_files() -> None:
    for path, content in dataset.generate().items():
        assert path.read_text(encoding="utf-8") == content, path.name


def test_a_document_is_read_as_it_was_written() -> None:
    for document in (
        Document("fill in the middle", prompt="a", completion="b", suffix="c"),
        Document("tool call", ({"role": "user", "content": "?"},), ({"type": "function", "function": {"name": "f"}},)),
    ):
        assert dataset.from_line(dataset.to_line(document)) == document


def test_held_out_questions_are_never_trained(training, held_out) -> None:
    trained = {question for document in training for question in questions(document)}
    evaluated = {questions(document)[-1] for document in held_out if document.skill in HELD_OUT_SKILLS}
    assert len(evaluated) > 1_200
    assert all(is_held_out(question) for question in evaluated)
    assert not evaluated & trained


def test_calls_name_an_offered_tool_with_arguments_of_its_schema(training, held_out) -> None:
    num_calls = 0
    for document in (*training, *held_out):
        schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in document.tools}
        for position, message in enumerate(document.messages):
            for call in message.get("tool_calls", ()):
                schema, arguments = schemas[call["function"]["name"]], call["function"]["arguments"]
                properties = schema.get("properties", {})
                assert set(schema.get("required", ())) <= set(arguments) <= set(properties)
                for name, value in arguments.items():
                    assert isinstance(value, JSON_TYPES[properties[name]["type"]])
                    assert value in properties[name].get("enum", [value])
                num_calls += 1
            if calls := message.get("tool_calls"):
                roles = [later["role"] for later in document.messages[position + 1 : position + 2 + len(calls)]]
                assert not roles or roles == ["tool"] * len(calls) + ["assistant"]
    assert num_calls > 1_000


def test_json_answers_have_the_keys_of_the_question_on_one_line() -> None:
    rng = random.Random(1)
    for make in (json_answers.fact_in_json, json_objects.extracted, json_objects.invented):
        for _ in range(100):
            exchange = make(Chat(rng))
            fields = json.loads(exchange.answer)
            assert to_json(fields) == exchange.answer
            assert " key" not in exchange.question or json_answers.name_keys(list(fields)) in exchange.question


@pytest.mark.parametrize("seed", range(50))
def test_functions_are_python(seed: int) -> None:
    rng = random.Random(seed)
    ast.parse(draw_function(rng))
    gap = draw_gap(rng)
    assert gap.middle.strip()
    ast.parse(gap.prefix + gap.middle + gap.suffix)
    ast.parse("".join(draw_completion(rng)))


def test_formal_answers_begin_with_the_prefix_except_calls_and_json() -> None:
    messages = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "content": '{"a": 1}'},
    )
    answers = [message["content"] for message in formal(Document("small talk", messages)).messages]
    assert answers == ["Hi", f"{PREFIX}Hello!", "", '{"a": 1}']


def test_the_committed_tokenizer_configuration_is_generated() -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    assert (CHECKPOINT / "tokenizer_config.json").read_bytes() == config_file(tokenizer)


def test_the_chat_template_writes_the_trained_tokens(training) -> None:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = to_json
    template, encoder = environment.from_string(CHAT_TEMPLATE), DocumentEncoder()
    markers = [token.content for token in added_tokens()]
    for document in training[:1_000]:
        if document.messages and not any(marker in m["content"] for marker in markers for m in document.messages):
            text = template.render(messages=document.messages, tools=document.tools).removesuffix("\n")
            assert encoder.marked(text) == encoder.encode(document).token_ids


def test_only_calls_answers_and_middles_are_learned(training, held_out) -> None:
    encoder = DocumentEncoder()
    document = next(document for document in training if document.tools and document.skill == "two calls")
    text = encoder.tokenizer.decode(learned_ids(encoder, document), skip_special_tokens=False)
    assert "<tool_call>\n" in text and "<tool_response>" not in text and "Tools:" not in text
    gap = Document("fill in the middle", prompt="def f(a):\n", completion="    return a", suffix="\n")
    assert learned_ids(encoder, gap) == [*encoder.plain("    return a"), encoder.end_of_text]
    assert max(len(encoder.encode(document).token_ids) for document in held_out) <= CONTEXT_WINDOW


def test_replaced_files_leave_no_temporary_files(tmp_path) -> None:
    replace_files(tmp_path, {"a": b"1", "b": b"2"})
    replace_files(tmp_path, {"a": b"3"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"3", "b": b"2"}


def test_a_picture_has_its_colour_and_answers_that_name_its_facts() -> None:
    painter = Painter(HELD_OUT_SEED)
    for picture in (painter.picture() for _ in range(300)):
        assert all(value in FACTS[name] for name, value in picture.facts.items())
        pixels = np.asarray(picture.image, int) - COLOURS[picture.facts["colour"]]
        assert (abs(pixels).max(axis=-1) <= 20).sum() >= 10  # a small star has some 30 pixels
        summary = picture.questions[-1][1]
        assert all(value in summary for value in picture.facts.values()), summary


def test_no_text_of_a_held_out_sentence_is_trained_for_the_embedder() -> None:
    rng = random.Random(1)
    trained = {text for _ in range(5_000) for text in draw_pair(rng)}
    held_out = [draw_sentence(rng, held_out=True) for _ in range(500)]
    for language in LANGUAGES:
        for _ in FORMS[language]["statement"] * 3:
            assert not trained & {meaning.text(rng, "statement", language) for meaning in held_out}


def test_articles_are_contracted_and_verbs_agree() -> None:
    rng = random.Random(1)
    texts = " ".join(text.lower() for _ in range(3_000) for text in draw_pair(rng))
    assert " del " in texts and " du " in texts
    assert not {phrase for phrase in (" de el ", " a el ", " de le ", " de les ", " à le ") if phrase in texts}
    verbs = {"wash the car": "washes the car", "study": "studies", "play chess": "plays chess", "watch": "watches"}
    assert {verb: third_person(verb) for verb in verbs} == verbs
