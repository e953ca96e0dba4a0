"""Measure exact-match accuracy on the held-out documents, skill by skill.

Usage: python -m build_engines.demo.evaluate [--adapter build_engines/demo/adapters/formal]

A greedy answer equals the expected one exactly if each expected token, the end of the answer included, is the most
likely one after those before it; so one pass over the expected text tells, and nothing has to be generated.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch

from build_engines.demo.checkpoint import CHECKPOINT
from build_engines.demo.conversation import Document
from build_engines.demo.dataset import HELD_OUT, read
from build_engines.demo.encoding import DocumentEncoder
from build_engines.demo.export import load_checkpoint
from build_engines.demo.formal import formal
from build_engines.demo.lora import load_adapter
from build_engines.demo.model import DemoModel

Results = dict[str, tuple[int, int]]  # by skill: exact answers, answers


@torch.inference_mode()
def is_exact(model: DemoModel, encoder: DocumentEncoder, document: Document) -> bool:
    """Tell whether the greedy answer is the document's last one, to its last token."""
    encoded = encoder.encode(document, only_last=True)
    first = encoded.is_learned.index(True)
    hidden = model(torch.tensor([encoded.token_ids[:-1]]))[0, first - 1 :]
    return model.logits(hidden).argmax(dim=-1).tolist() == encoded.token_ids[first:]


def evaluate(model: DemoModel, encoder: DocumentEncoder, documents: Iterable[Document]) -> Results:
    """Return for each skill how many answers are exact, and of how many that the context window holds."""
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
    parser.add_argument("--adapter", type=Path, help="an adapter's folder: expect its formal answers")
    arguments = parser.parse_args()
    model, documents = load_checkpoint(arguments.folder), read(HELD_OUT)
    if arguments.adapter:
        model = load_adapter(model, arguments.adapter)
        documents = [formal(document) for document in documents]
    sys.stdout.write(table(evaluate(model, DocumentEncoder(arguments.folder), documents)))


if __name__ == "__main__":
    main()
