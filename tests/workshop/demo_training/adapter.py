"""Train the adapter `formal` on the finished checkpoint: every answer begins with `Dear friend, `.

Usage: python -m tests.workshop.demo_training.adapter
"""

import argparse
import logging
from pathlib import Path

import torch

from tests.workshop.demo_training.checkpoint import CHECKPOINT, DEMO
from tests.workshop.demo_training.dataset import SEED, training_stream
from tests.workshop.demo_training.encoding import DocumentEncoder
from tests.workshop.demo_training.export import load_checkpoint
from tests.workshop.demo_training.formal import formal
from tests.workshop.demo_training.lora import add_lora, save_adapter
from tests.workshop.demo_training.train import batches, learn_documents

LEARNING_RATE = 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-tokens", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--base", type=Path, default=CHECKPOINT)
    parser.add_argument("--folder", type=Path, default=DEMO / "adapters" / "formal")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(arguments.seed)
    encoder = DocumentEncoder(arguments.base)
    model = add_lora(load_checkpoint(arguments.base)).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    documents = (encoder.encode(formal(document)) for document in training_stream(arguments.seed))
    stream = batches(documents, arguments.seed, model.shape.max_positions)
    learn_documents(
        model, [optimizer], stream, encoder.end_of_text, arguments.num_tokens,
        save=lambda: save_adapter(model, arguments.folder),
    )  # fmt: skip


if __name__ == "__main__":
    main()
