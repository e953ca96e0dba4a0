import json

import jinja2
import pytest
from tokenizers import Tokenizer, pre_tokenizers

from build_engines.demo.checkpoint import CHECKPOINT
from build_engines.demo.conversation import Document
from build_engines.demo.dataset import HELD_OUT, read
from build_engines.demo.encoding import DocumentEncoder
from build_engines.demo.relations import EMOJI
from build_engines.demo.tokenizer import CONTEXT_WINDOW, VOCAB_SIZE, added_tokens

TEXTS = [
    "The capital of France is Paris.",
    "  two spaces,\ttabs\r\nand\n\n\nlines  ",
    "e\u0301 is not \u00e9: nothing is normalized",
    "猫 🐱 👨‍👩‍👧 🇫🇷 안녕 Ω שלום",
    "1234567890",
    "<|im_end|> <|im_start|>user </tool_call>",
    "\x00\x7f\u0080\uffff\U0010ffff",
    "",
]


@pytest.fixture(scope="module")
def encoder() -> DocumentEncoder:
    return DocumentEncoder()


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads((CHECKPOINT / "tokenizer_config.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", TEXTS)
def test_text_round_trips_byte_for_byte(encoder, text):
    assert encoder.tokenizer.decode(encoder.plain(text), skip_special_tokens=False) == text


def test_every_byte_is_a_token(encoder):
    vocabulary = encoder.tokenizer.get_vocab()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert len(alphabet) == 256
    assert all(character in vocabulary for character in alphabet)


def test_added_tokens_have_the_last_ids(encoder, config):
    first = VOCAB_SIZE - len(added_tokens())
    ids = [encoder.tokenizer.token_to_id(token.content) for token in added_tokens()]
    assert ids == list(range(first, VOCAB_SIZE))
    assert encoder.tokenizer.get_vocab_size() == VOCAB_SIZE
    declared = {int(id_): (token["content"], token["special"]) for id_, token in config["added_tokens_decoder"].items()}
    assert declared == {id_: (token.content, token.special) for id_, token in zip(ids, added_tokens(), strict=True)}


def test_only_the_template_writes_added_tokens(encoder):
    names = [token.content for token in added_tokens()]
    ids = [encoder.tokenizer.token_to_id(name) for name in names]
    assert not set(ids) & set(encoder.plain("".join(names)))
    assert encoder.marked("".join(names)) == ids


def test_digits_are_single_tokens(encoder):
    assert len(encoder.plain("20481024")) == 8


def test_some_characters_but_not_all_span_several_tokens(encoder):
    num_tokens = [len(encoder.plain(row["emoji"])) for row in EMOJI]
    assert 1 in num_tokens
    assert max(num_tokens) > 2


def test_the_chat_template_writes_the_tokens_that_were_trained(encoder, config):
    messages = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "What is the capital of Italy?"},
        {"role": "assistant", "content": "Rome."},
    ]
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(config["chat_template"])
    prompt = template.render(messages=messages[:2], add_generation_prompt=True)
    assert prompt == (
        "<|im_start|>system\nAnswer in one word.<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    trained = encoder.encode(Document("capitals", tuple(messages)))
    with_special_tokens = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    prompt_token_ids = with_special_tokens.encode(prompt, add_special_tokens=False).ids
    assert trained.token_ids[: len(prompt_token_ids)] == prompt_token_ids
    answer = [id_ for id_, learned in zip(trained.token_ids, trained.is_learned, strict=True) if learned]
    assert answer == [*encoder.plain("Rome."), encoder.im_end]
    assert trained.token_ids[len(prompt_token_ids) :] == answer


def test_held_out_documents_fit_the_context_window(encoder):
    assert max(len(encoder.encode(document).token_ids) for document in read(HELD_OUT)) <= CONTEXT_WINDOW
