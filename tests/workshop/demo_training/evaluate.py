"""Measure exact-match accuracy on the held-out documents, skill by skill.

Usage: python -m tests.workshop.demo_training.evaluate [--adapter build_engines/demo/adapters/formal]

A greedy answer equals the expected one exactly if each expected token, the end of the answer included, is the most
likely one after the tokens before it. One pass over the expected text shows that, without generation.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch

from tests.workshop.demo_training.checkpoint import CHECKPOINT
from tests.workshop.demo_training.conversation import Document
from tests.workshop.demo_training.dataset import HELD_OUT, read
from tests.workshop.demo_training.encoding import DocumentEncoder
from tests.workshop.demo_training.export import load_checkpoint
from tests.workshop.demo_training.formal import formal
from tests.workshop.demo_training.lora import load_adapter
from tests.workshop.demo_training.model import DemoModel

Results = dict[str, tuple[int, int]]  # by skill: exact answers, answers


@torch.inference_mode()
def is_exact(model: DemoModel, encoder: DocumentEncoder, document: Document) -> bool:
    """Whether the greedy answer equals the document's last one, to its last token."""
    encoded = encoder.encode(document, only_last=True)
    first = encoded.is_learned.index(True)
    hidden = model(torch.tensor([encoded.token_ids[:-1]]))[0, first - 1 :]
    return model.logits(hidden).argmax(dim=-1).tolist() == encoded.token_ids[first:]


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure exact-match accuracy on the held-out documents.")
    parser.add_argument("--folder", type=Path, default=CHECKPOINT)
    parser.add_argument("--adapter", type=Path, help="an adapter's folder; of `formal`, its manner is expected")
    arguments = parser.parse_args()
    model, documents = load_checkpoint(arguments.folder), read(HELD_OUT)
    if arguments.adapter:
        model = load_adapter(model, arguments.adapter)
        if arguments.adapter.name == "formal":
            documents = [formal(document) for document in documents]
    sys.stdout.write(table(evaluate(model, DocumentEncoder(arguments.folder), documents)))


if __name__ == "__main__":
    main()
