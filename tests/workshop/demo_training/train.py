"""Train the demo model on a CPU and export its checkpoint.

Usage: python -m tests.workshop.demo_training.train --num-tokens 14000000
"""

import argparse
import logging
import random
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tests.workshop.demo_training.checkpoint import CHECKPOINT
from tests.workshop.demo_training.dataset import SEED, training_stream
from tests.workshop.demo_training.encoding import DocumentEncoder, Encoded
from tests.workshop.demo_training.export import load_checkpoint, save_checkpoint
from tests.workshop.demo_training.model import DemoModel
from tests.workshop.demo_training.muon import Muon

POOL_SIZE = 768  # documents sorted by length together
BATCH_TOKENS = 1_024
BATCHES_PER_STEP = 4  # of different lengths: batches of one length pull the model to and fro
DRILL_LENGTH = 64  # tokens
DRILLED_LOSS = 0.3  # below it the model copies, and the documents begin
MUON_LEARNING_RATE = 1.5e-2
ADAM_LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.02
MAX_GRADIENT_NORM = 1.0
EXPORT_EVERY = 200  # steps
LOG_EVERY = 50  # steps
NOT_LEARNED = -100

Loss = Callable[[DemoModel, list[Encoded], int], Tensor]  # summed over the tokens of a batch, which is padded

logger = logging.getLogger(__name__)


def batches(documents: Iterator[Encoded], seed: int, max_length: int) -> Iterator[list[Encoded]]:
    """Group documents of similar length, so that padding is short and each has its own context."""
    rng = random.Random(seed)
    fitting = (document for document in documents if len(document.token_ids) <= max_length)
    while True:
        pool = sorted(islice(fitting, POOL_SIZE), key=lambda document: len(document.token_ids))
        groups: list[list[Encoded]] = [[]]
        for document in pool:
            if (len(groups[-1]) + 1) * len(document.token_ids) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(document)
        rng.shuffle(groups)
        yield from groups


def drill(rng: random.Random, vocabulary: list[int]) -> Encoded:
    """Repeat a few random tokens: only copying predicts them."""
    period = rng.randint(2, 24)
    token_ids = rng.choices(vocabulary, k=period) * DRILL_LENGTH
    return Encoded(token_ids[:DRILL_LENGTH], [position > period for position in range(DRILL_LENGTH)])


def drills(seed: int, encoder: DocumentEncoder) -> Iterator[list[Encoded]]:
    """Yield batches of drills, of tokens as frequent as in the documents."""
    rng = random.Random(seed)
    vocabulary = [id_ for text in islice(training_stream(seed), POOL_SIZE) for id_ in encoder.encode(text).token_ids]
    while True:
        yield [drill(rng, vocabulary) for _ in range(BATCH_TOKENS // DRILL_LENGTH)]


def to_tensors(batch: list[Encoded], padding: int) -> tuple[Tensor, Tensor]:
    """Return token ids and, one place to the left, the ids to predict; int64 [batch, longest - 1]."""
    longest = max(len(document.token_ids) for document in batch)
    token_ids = torch.full((len(batch), longest), padding)
    labels = torch.full((len(batch), longest), NOT_LEARNED)
    for position, document in enumerate(batch):
        ids, learned = torch.tensor(document.token_ids), torch.tensor(document.is_learned)
        token_ids[position, : len(ids)] = ids
        labels[position, : len(ids)] = ids.where(learned, torch.tensor(NOT_LEARNED))
    return token_ids[:, :-1], labels[:, 1:]


def loss_of(model: DemoModel, batch: list[Encoded], padding: int) -> Tensor:
    """Return the summed cross-entropy of the learned tokens; the others get no logits at all."""
    token_ids, labels = to_tensors(batch, padding)
    learned = labels != NOT_LEARNED
    return functional.cross_entropy(model.logits(model(token_ids)[learned]), labels[learned], reduction="sum")


def optimizers_of(model: DemoModel) -> list[torch.optim.Optimizer]:
    """Give the layers' matrices to Muon, the embedding and the gains to AdamW."""
    matrices = [parameter for parameter in model.layers.parameters() if parameter.dim() == 2]
    others = [*model.embed_tokens.parameters(), *(p for p in model.parameters() if p.dim() == 1)]
    return [
        Muon(matrices, lr=MUON_LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        torch.optim.AdamW(others, lr=ADAM_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def update(
    model: DemoModel,
    optimizers: list[torch.optim.Optimizer],
    group: list[list[Encoded]],
    padding: int,
    loss_of: Loss = loss_of,
) -> float:
    """Take one step of the optimizers on a group of batches, and return the mean loss of a token before it."""
    num_learned = sum(sum(document.is_learned[1:]) for batch in group for document in batch)
    total = 0.0
    model.zero_grad()
    for batch in group:
        loss = loss_of(model, batch, padding) / num_learned
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    for optimizer in optimizers:
        optimizer.step()
    return total


def learn_to_copy(
    model: DemoModel, optimizers: list[torch.optim.Optimizer], encoder: DocumentEncoder, seed: int
) -> None:
    """Drill until the model copies. Documents alone teach that late, and half of the skills depend on it."""
    for step, batch in enumerate(drills(seed, encoder), start=1):
        loss = update(model, optimizers, [batch], encoder.end_of_text)
        if step % LOG_EVERY == 0:
            logger.info("drill %d: loss %.3f", step, loss)
        if loss < DRILLED_LOSS:
            break


def learn_documents(
    model: DemoModel,
    optimizers: list[torch.optim.Optimizer],
    stream: Iterator[list[Encoded]],
    padding: int,
    num_tokens: int,
    save: Callable[[], None],
    loss_of: Loss = loss_of,
) -> None:
    """Train on `num_tokens` tokens of documents, without padding, and save the model from time to time."""
    peaks = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    started = time.monotonic()
    seen = 0
    for step in count(1):
        progress = seen / num_tokens
        if progress >= 1:
            break
        for group, peak in peaks:
            group["lr"] = peak * (1 - progress)
        step_batches = list(islice(stream, BATCHES_PER_STEP))
        loss = update(model, optimizers, step_batches, padding, loss_of)
        seen += sum(len(document.token_ids) for batch in step_batches for document in batch)
        if step % LOG_EVERY == 0:
            speed = seen / (time.monotonic() - started)
            logger.info("step %d: %d tokens, loss %.3f, %.0f tokens/s", step, seen, loss, speed)
        if step % EXPORT_EVERY == 0:
            save()
    save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-tokens", type=int, default=14_000_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--folder", type=Path, default=CHECKPOINT, help="where tokenizer.json lies")
    parser.add_argument("--resume", action="store_true", help="go on from the weights in the folder, without drills")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(arguments.seed)
    encoder = DocumentEncoder(arguments.folder)
    model = load_checkpoint(arguments.folder).train() if arguments.resume else DemoModel()
    optimizers = optimizers_of(model)
    if not arguments.resume:
        learn_to_copy(model, optimizers, encoder, arguments.seed)
    documents = (encoder.encode(document) for document in training_stream(arguments.seed))
    stream = batches(documents, arguments.seed, model.shape.max_positions)
    learn_documents(
        model, optimizers, stream, encoder.end_of_text, arguments.num_tokens,
        save=lambda: save_checkpoint(model, encoder, arguments.folder),
    )  # fmt: skip


if __name__ == "__main__":
    main()
