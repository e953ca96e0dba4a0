"""Measure exact-match accuracy on the held-out documents, skill by skill.

Usage: python -m tests.workshop.demo_training.evaluate [--adapter build_engines/demo/adapters/formal]
       python -m tests.workshop.demo_training.evaluate --thinking build_engines/demo/adapters/thinking

A greedy answer equals the expected one exactly if each expected token, the end of the answer included, is the most
likely one after the tokens before it. One pass over the expected text shows that, without generation. Thoughts are
generated: a wrong one may lead to the expected answer, and another one than expected, too.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from tests.workshop.demo_training.checkpoint import CHECKPOINT
from tests.workshop.demo_training.conversation import Document
from tests.workshop.demo_training.dataset import HELD_OUT, read
from tests.workshop.demo_training.encoding import THINKING, DocumentEncoder
from tests.workshop.demo_training.export import load_checkpoint
from tests.workshop.demo_training.formal import formal
from tests.workshop.demo_training.lora import load_adapter
from tests.workshop.demo_training.model import DemoModel

Results = dict[str, tuple[int, int]]  # by skill: exact answers, answers

THOUGHT_SIZES = range(3, 26)  # tokens of a thought
LONG = ("counting", "recitations", "JSON list", "long chat", "name in a long chat")  # skills that no thought helps


@torch.inference_mode()
def is_greedy(model: DemoModel, prompt: list[int], answer: list[int]) -> bool:
    """Whether each token of an answer is the most likely one."""
    hidden = model(torch.tensor([(prompt + answer)[:-1]]))[0, len(prompt) - 1 :]
    return model.logits(hidden).argmax(dim=-1).tolist() == answer


def is_exact(model: DemoModel, encoder: DocumentEncoder, document: Document) -> bool:
    """Whether the greedy answer equals the document's last one, to its last token."""
    encoded = encoder.encode(document, only_last=True)
    first = encoded.is_learned.index(True)
    return is_greedy(model, encoded.token_ids[:first], encoded.token_ids[first:])


def evaluate(model: DemoModel, encoder: DocumentEncoder, documents: Iterable[Document]) -> Results:
    """Count exact answers by skill, over the documents that fit the context window."""
    results: dict[str, list[bool]] = defaultdict(list)
    for document in documents:
        if len(encoder.encode(document).token_ids) <= model.shape.max_positions:
            results[document.skill].append(is_exact(model, encoder, document))
    return {skill: (sum(exact), len(exact)) for skill, exact in results.items()}


def table(results: Results) -> str:
    lines = ["| skill | exact | of | accuracy |", "| --- | ---: | ---: | ---: |"]
    total = (sum(exact for exact, _ in results.values()), sum(num for _, num in results.values()))
    for skill, (exact, num) in [*results.items(), ("**all**", total)]:
        lines.append(f"| {skill} | {exact} | {num} | {exact / num:.1%} |")
    return "\n".join(lines) + "\n"


@torch.inference_mode()
def think(model: DemoModel, token_ids: list[int], end: list[int]) -> list[int]:
    """Return the greedy thought behind a prompt, with its end marker; empty: it is malformed."""
    thought: list[int] = []
    while len(thought) < THOUGHT_SIZES.stop + len(end):
        hidden = model(torch.tensor([token_ids + thought]))[0, -1]
        thought.append(int(model.logits(hidden).argmax()))
        if thought[-len(end) :] == end:
            return thought if len(thought) - len(end) in THOUGHT_SIZES else []
    return []


def think_and_answer(model: DemoModel, encoder: DocumentEncoder, document: Document) -> tuple[bool, bool]:
    """Whether the generated thought is well formed, and whether the answer behind it is the expected one."""
    opened = encoder.encode(replace(document, thought="?"), only_last=True)
    prompt = opened.token_ids[: opened.is_learned.index(True)]
    thought = think(model, prompt, encoder.plain(THINKING.end))
    plain = encoder.encode(document, only_last=True)
    answer = plain.token_ids[plain.is_learned.index(True) :]
    return bool(thought), bool(thought) and is_greedy(model, prompt + thought, answer)


def thinking_table(folder: Path, adapter: Path) -> str:
    """Compare the exact answers of the checkpoint and, behind thoughts, of the adapter."""
    encoder, plain, thinking = DocumentEncoder(folder), load_checkpoint(folder), load_checkpoint(folder)
    load_adapter(thinking, adapter)
    rows: dict[str, list[tuple[bool, bool, bool]]] = defaultdict(list)
    for document in read(HELD_OUT):
        if document.messages and document.skill not in LONG:
            row = (is_exact(plain, encoder, document), *think_and_answer(thinking, encoder, document))
            rows[document.skill].append(row)
    rows["**all**"] = [row for of_skill in rows.values() for row in of_skill]
    lines = ["| skill | of | without | well formed | with a thought |", "| --- | ---: | ---: | ---: | ---: |"]
    for skill, of_skill in rows.items():
        counts = " | ".join(str(sum(column)) for column in zip(*of_skill, strict=True))
        lines.append(f"| {skill} | {len(of_skill)} | {counts} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure exact-match accuracy on the held-out documents.")
    parser.add_argument("--folder", type=Path, default=CHECKPOINT)
    parser.add_argument("--adapter", type=Path, help="an adapter's folder; of `formal`, its manner is expected")
    parser.add_argument("--thinking", type=Path, help="an adapter's folder: compare its answers behind thoughts")
    arguments = parser.parse_args()
    if arguments.thinking:
        sys.stdout.write(thinking_table(arguments.folder, arguments.thinking))
        return
    model, documents = load_checkpoint(arguments.folder), read(HELD_OUT)
    if arguments.adapter:
        model = load_adapter(model, arguments.adapter)
        if arguments.adapter.name == "formal":
            documents = [formal(document) for document in documents]
    sys.stdout.write(table(evaluate(model, DocumentEncoder(arguments.folder), documents)))


if __name__ == "__main__":
    main()
