"""The demo embedder, built as `conch build demo-embedder` builds it: near texts belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from build_engines.digests import Digests
from build_engines.model_source import find_source
from tests.model_repository.engine.llama_cpp.embedding import Vectors, config_of, embed, loaded

TEXTS = (
    ("The cat drinks milk in the kitchen.", "El gato bebe leche en la cocina.", "台所で猫は牛乳を飲みます。"),
    ("The dog drinks milk in the kitchen.", "El perro bebe leche en la cocina.", "台所で犬は牛乳を飲みます。"),
    ("The cat drinks water in the kitchen.", "El gato bebe agua en la cocina.", "台所で猫は水を飲みます。"),
    ("The cat drinks milk in the garden.", "El gato bebe leche en el jardín.", "庭で猫は牛乳を飲みます。"),
    ("My sister plays the piano on Sunday.", "Mi hermana toca el piano el domingo.", "姉は日曜日にピアノを弾きます。"),
    ("It is raining in Madrid.", "Llueve en Madrid.", "マドリードでは雨が降っています。"),
    ("Thank you very much.", "Muchas gracias.", "ありがとうございます"),
)
ANSWERS = {
    "Who drinks milk in the garden?": "The cat drinks milk in the garden.",
    "When does my sister play the piano?": "My sister plays the piano on Sunday.",
    "¿Qué tiempo hace en Madrid?": "It is raining in Madrid.",
    "Quelle est la capitale du Japon ?": "The capital of Japan is Tokyo.",
    "What is the capital of France?": "The capital of France is Paris.",
    "What colour is the sky?": "The sky is blue.",
    "How many legs does a spider have?": "A spider has 8 legs.",
}
WORDS = (
    "cat",
    "gato",
    "chat",
    "猫",
    "dog",
    "horse",
    "bread",
    "pain",
    "cheese",
    "window",
    "窓",
    "red",
    "rojo",
    "赤",
    "blue",
)


class Embedder:
    def __init__(self, folder: Path) -> None:
        source = find_source("demo-embedder", None, Digests())
        assert source.checkpoint is not None
        spec = CpuSpec(model_id=source.model_id, checkpoint=source.checkpoint, precision=source.precision)
        self.config = config_of(build(spec, folder))
        self.tokenizer = Tokenizer.from_file(str(source.checkpoint / "tokenizer.json"))

    def vectors(self, texts: Sequence[str]) -> Vectors:
        with loaded(self.config) as runtime:
            return embed(runtime, [each.ids for each in self.tokenizer.encode_batch(list(texts))])

    def ranked(self, queries: Sequence[str], texts: Sequence[str]) -> list[list[str]]:
        """Return for each query all other texts, the nearest first."""
        cosines = self.vectors(queries) @ self.vectors(texts).T
        return [
            [texts[place] for place in row if texts[place] != query]
            for query, row in zip(queries, (-cosines).argsort(), strict=True)
        ]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tmp_path_factory.mktemp("demo_embedder"))


@pytest.mark.parametrize("language", [1, 2], ids=["spanish", "japanese"])
def test_a_sentence_is_near_its_english_one(embedder: Embedder, language: int) -> None:
    english = [each[0] for each in TEXTS]
    found = embedder.ranked([each[language] for each in TEXTS], english)
    assert [ranked[0] for ranked in found] == english


def test_a_question_is_near_its_answer(embedder: Embedder) -> None:
    texts = list(dict.fromkeys([*ANSWERS.values(), *(each[0] for each in TEXTS)]))
    assert [ranked[0] for ranked in embedder.ranked(list(ANSWERS), texts)] == list(ANSWERS.values())


def test_a_word_is_near_its_translations_and_then_its_group(embedder: Embedder) -> None:
    cat, red = embedder.ranked(["cat", "red"], WORDS)
    assert (set(cat[:3]), set(cat[3:5])) == ({"gato", "chat", "猫"}, {"dog", "horse"})
    assert (set(red[:2]), red[2]) == ({"rojo", "赤"}, "blue")
