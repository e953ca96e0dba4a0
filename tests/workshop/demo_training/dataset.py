"""Write the data set: the beginning of the endless training stream, and the held-out documents.

Usage: python -m tests.workshop.demo_training.dataset
"""

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tests.workshop.demo_training.conversation import Document, draw_document
from tests.workshop.demo_training.held_out import draw_held_out

DATASET = Path(__file__).parent / "dataset.jsonl"
HELD_OUT = Path(__file__).parent / "held_out.jsonl"
NUM_DOCUMENTS = 5_000
SEED = 20


def training_stream(seed: int = SEED) -> Iterator[Document]:
    """Draw the documents that the model is trained on, without end."""
    rng = random.Random(seed)
    while True:
        yield draw_document(rng)


def to_line(document: Document) -> str:
    """Write a document as a line of JSON, without its empty fields."""
    fields: dict[str, Any] = {"skill": document.skill}
    if document.messages:
        fields |= {"tools": list(document.tools)} if document.tools else {}
        fields |= {"messages": list(document.messages)}
    else:
        fields |= {"prompt": document.prompt, "completion": document.completion}
        fields |= {"suffix": document.suffix} if document.suffix else {}
    return json.dumps(fields, ensure_ascii=False)


def from_line(line: str) -> Document:
    fields = json.loads(line)
    return Document(**{**fields, **{name: tuple(fields.get(name, ())) for name in ("messages", "tools")}})


def read(path: Path) -> list[Document]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return [from_line(line) for line in file]


def generate() -> dict[Path, str]:
    """Return the contents of both files."""
    documents = {DATASET: islice(training_stream(), NUM_DOCUMENTS), HELD_OUT: draw_held_out(SEED)}
    return {path: "".join(f"{to_line(document)}\n" for document in drawn) for path, drawn in documents.items()}


def main() -> None:
    for path, content in generate().items():
        path.write_text(content, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
