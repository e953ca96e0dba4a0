"""Train the adapter `thinking` on the finished checkpoint: where the prompt opens the thinking, a thought is written.

Usage: python -m tests.workshop.demo_training.thinking_adapter

One batch in four has chats without a thought, for which the adapter learns the checkpoint's own token probabilities.
"""

import argparse
import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tests.workshop.demo_training import train
from tests.workshop.demo_training.checkpoint import CHECKPOINT, DEMO
from tests.workshop.demo_training.dataset import SEED, training_stream
from tests.workshop.demo_training.encoding import DocumentEncoder, Encoded
from tests.workshop.demo_training.export import load_checkpoint
from tests.workshop.demo_training.lora import add_lora, save_adapter
from tests.workshop.demo_training.model import DemoModel
from tests.workshop.demo_training.thinking import thinking_stream

RANK = 16
LEARNING_RATE = 2e-3


def loss_beside(teacher: DemoModel) -> train.Loss:
    """Return a loss of thoughts and their answers and, in other documents, of the distance from the teacher."""

    def loss_of(model: DemoModel, batch: list[Encoded], padding: int) -> Tensor:
        if batch[0].has_thought:
            return train.loss_of(model, batch, padding)
        token_ids, labels = train.to_tensors(batch, padding)
        learned = labels != train.NOT_LEARNED
        with torch.no_grad():
            expected = functional.log_softmax(teacher.logits(teacher(token_ids)[learned]), dim=-1)
        actual = functional.log_softmax(model.logits(model(token_ids)[learned]), dim=-1)
        return functional.kl_div(actual, expected, reduction="sum", log_target=True)

    return loss_of


def mixed_batches(encoder: DocumentEncoder, seed: int, max_length: int) -> Iterator[list[Encoded]]:
    """Yield batches of documents, three with a thought and one without by turns."""
    thoughts = (encoder.encode(document, only_last=True) for document in thinking_stream(seed))
    others = (encoder.encode(document) for document in training_stream(seed))
    with_thought = train.batches(thoughts, seed, max_length)
    groups = zip(*[with_thought] * 3, train.batches(others, seed, max_length), strict=True)
    return chain.from_iterable(groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-tokens", type=int, default=2_200_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--base", type=Path, default=CHECKPOINT)
    parser.add_argument("--folder", type=Path, default=DEMO / "adapters" / "thinking")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(arguments.seed)
    encoder = DocumentEncoder(arguments.base)
    teacher, model = load_checkpoint(arguments.base), add_lora(load_checkpoint(arguments.base), RANK).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    train.learn_documents(
        model, [optimizer], mixed_batches(encoder, arguments.seed, model.shape.max_positions),
        encoder.end_of_text, arguments.num_tokens,
        save=lambda: save_adapter(model, arguments.folder), loss_of=loss_beside(teacher),
    )  # fmt: skip


if __name__ == "__main__":
    main()
