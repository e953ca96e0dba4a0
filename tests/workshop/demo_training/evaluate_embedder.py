"""Measure how often the demo embedder finds a text that belongs to another, among sentences that were not trained.

Usage: python -m tests.workshop.demo_training.evaluate_embedder
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from tests.model_repository.engine.llama_cpp.embedding import Vectors, config_of, embed, loaded
from tests.workshop.demo_training.checkpoint import DEMO
from tests.workshop.demo_training.parallel import ENGLISH_FACTS, LANGUAGES, draw_sentence
from tests.workshop.demo_training.wording import NotHeldOut, phrase

NUM_SENTENCES = 1_000
SEED = 1

TRANSLATIONS = (("spanish", "english"), ("french", "english"), ("japanese", "english"), ("french", "japanese"))
QUESTIONS = (*zip(LANGUAGES, LANGUAGES, strict=True), ("french", "english"), ("english", "japanese"))

Embed = Callable[[Sequence[str]], Vectors]
IsRight = Callable[[int, int], bool]  # a query and a text, by their numbers


def n_grams(texts: Sequence[str]) -> Vectors:
    """Embed texts for comparison: counts of two to four characters, rare ones weighted more."""
    counts = [
        Counter(text[start : start + size] for size in (2, 3, 4) for start in range(len(text) - size + 1))
        for text in (f" {text.lower()} " for text in texts)
    ]
    num_texts = Counter(gram for each in counts for gram in each)
    places = {gram: place for place, gram in enumerate(num_texts)}
    vectors = np.zeros((len(texts), len(places)), np.float32)
    for row, each in zip(vectors, counts, strict=True):
        for gram, count in each.items():
            row[places[gram]] = count * np.log(len(texts) / num_texts[gram] + 1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def recall(embed_texts: Embed, queries: Sequence[str], texts: Sequence[str], is_right: IsRight) -> float:
    """Return the share of the queries that are nearest to their right text."""
    vectors = embed_texts([*queries, *texts])
    nearest = (vectors[: len(queries)] @ vectors[len(queries) :].T).argmax(axis=1)
    return float(np.mean([is_right(query, int(text)) for query, text in enumerate(nearest)]))


def evaluate(embed_texts: Embed) -> dict[str, float]:
    """Return recall@1 by kind of query."""
    rng, results = random.Random(SEED), {}
    meanings = [draw_sentence(rng, held_out=True) for _ in range(NUM_SENTENCES)]
    texts = {language: [each.text(rng, "statement", language) for each in meanings] for language in LANGUAGES}
    for language, other in TRANSLATIONS:
        name = f"a sentence in {language.capitalize()}, its {other.capitalize()} one"
        results[name] = recall(
            embed_texts, texts[language], texts[other], lambda query, text: meanings[query] == meanings[text]
        )
    forms = [rng.choice(each.questions) for each in meanings]
    for language, other in QUESTIONS:
        questions = [each.text(rng, form, language) for each, form in zip(meanings, forms, strict=True)]
        results[f"a question in {language.capitalize()}, its {other.capitalize()} answer"] = recall(
            embed_texts,
            questions,
            texts[other],
            lambda query, text: meanings[query].is_answered_by(forms[query], meanings[text]),
        )
    results["an English question about a fact, its answer"] = recall(embed_texts, *english_facts(rng))
    return results


def english_facts(rng: random.Random) -> tuple[list[str], list[str], IsRight]:
    """Return held-out wordings of the demo model's questions, the answers to all, and which are right."""
    questions: dict[str, str] = {}
    answers: dict[str, None] = {}
    for relation in ENGLISH_FACTS:
        for row in relation.rows:
            answer = relation.answer.format(**row)
            answers[answer] = None
            with contextlib.suppress(NotHeldOut):
                questions[phrase(rng, relation.questions, row, held_out=True)] = answer
    queries, texts = list(questions), list(answers)
    return queries, texts, lambda query, text: questions[queries[query]] == texts[text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=DEMO / "embedder")
    checkpoint = parser.parse_args().checkpoint
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as folder:
        artifact = build(CpuSpec(model_id="demo-embedder", checkpoint=checkpoint, precision="f32"), Path(folder))
        with loaded(config_of(artifact)) as runtime:
            found = evaluate(lambda texts: embed(runtime, [each.ids for each in tokenizer.encode_batch(list(texts))]))
    compared = evaluate(n_grams)
    for kind, share in found.items():
        sys.stdout.write(f"| {kind} | {share:.1%} | {compared[kind]:.1%} |\n")


if __name__ == "__main__":
    main()
