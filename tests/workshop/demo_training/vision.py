"""Train what makes the demo model see, on a CPU: build_engines/demo/mmproj.gguf and adapters/pictures.

A small vision transformer turns a picture into 36 embeddings of the demo model, whose own weights stay as they are. The
adapter speaks about pictures.

Usage: python -m tests.workshop.demo_training.vision --minutes 30
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from model_repository.runtimes import PROJECTOR
from tests.gguf_writing import write_and_close
from tests.pictures import SIDE
from tests.workshop.demo_training.checkpoint import CHECKPOINT, DEMO
from tests.workshop.demo_training.encoding import DocumentEncoder
from tests.workshop.demo_training.export import load_checkpoint
from tests.workshop.demo_training.lora import add_lora, save_adapter
from tests.workshop.demo_training.model import DemoModel
from tests.workshop.demo_training.muon import Muon
from tests.workshop.demo_training.pictures import FACTS, Painter, Picture, Question

PATCH = 10  # pixels
NUM_PATCHES = (SIDE // PATCH) ** 2
SIZE, NUM_HEADS, NUM_BLOCKS = 128, 4, 4
NORM_EPS = 1e-5
BATCH_SIZE = 48
MAX_QUESTIONS = 3  # of one picture
NOT_LEARNED = -100
PLACE = -1  # of an embedding of the picture
LOG_EVERY = 20  # steps

logger = logging.getLogger(__name__)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(SIZE, NORM_EPS), nn.LayerNorm(SIZE, NORM_EPS)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.ffn_up, self.ffn_down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln1(x)
        heads = [
            projection(normed).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
            for projection in (self.attn_q, self.attn_k, self.attn_v)
        ]
        mixed = functional.scaled_dot_product_attention(*heads)
        x = x + self.attn_out(mixed.transpose(1, 2).flatten(2))
        output: Tensor = x + self.ffn_down(functional.gelu(self.ffn_up(self.ln2(x)), approximate="tanh"))
        return output


class Vision(nn.Module):
    """A vision transformer with two layers behind it, as llama.cpp's projector `mlp` without a class token."""

    def __init__(self, text_size: int) -> None:
        super().__init__()
        self.patch_embd = nn.Conv2d(3, SIZE, PATCH, PATCH, bias=False)
        self.position_embd = nn.Parameter(0.02 * torch.randn(NUM_PATCHES, SIZE))
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.first, self.second = nn.Linear(SIZE, text_size), nn.Linear(text_size, text_size)

    def features(self, pixels: Tensor) -> Tensor:
        """Return what the blocks make, [batch, NUM_PATCHES, SIZE], of pixels from -1 to 1, [batch, 3, SIDE, SIDE]."""
        x: Tensor = self.patch_embd(pixels).flatten(2).transpose(1, 2) + self.position_embd
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, pixels: Tensor) -> Tensor:
        """Return embeddings of the demo model, [batch, NUM_PATCHES, text_size]."""
        output: Tensor = self.second(functional.gelu(self.first(self.features(pixels)), approximate="tanh"))
        return output


class FactsHead(nn.Module):
    """Reads the facts of a picture from its features. Blocks that have learned the facts learn to tell them sooner."""

    def __init__(self) -> None:
        super().__init__()
        self.readers = nn.ModuleDict({name: nn.Linear(SIZE, len(values)) for name, values in FACTS.items()})

    def loss(self, features: Tensor, pictures: Sequence[Picture]) -> Tensor:
        mean = features.mean(dim=1)
        losses = []
        for name, values in FACTS.items():
            known = [
                values.index(picture.facts[name]) if name in picture.facts else NOT_LEARNED for picture in pictures
            ]
            losses.append(functional.cross_entropy(self.readers[name](mean), torch.tensor(known), reduction="sum"))
        return torch.stack(losses).sum() / len(pictures)


def pixels_of(picture: Picture) -> np.ndarray:
    """Return pixels from -1 to 1, [3, SIDE, SIDE]."""
    return np.asarray(picture.image, np.float32).transpose(2, 0, 1) / 127.5 - 1


def conversation(
    encoder: DocumentEncoder, questions: Sequence[Question], rng: random.Random
) -> tuple[list[int], list[bool]]:
    """Return tokens, with the picture before or behind the first question, and which of them are learned."""
    token_ids: list[int] = []
    is_learned: list[bool] = []

    def add(ids: list[int], learned: bool = False) -> None:
        token_ids.extend(ids)
        is_learned.extend([learned] * len(ids))

    line_break = rng.choice(("\n", "\n", "\n", ""))  # the server's, between the parts of a message
    is_image_first = rng.random() < 0.6
    for turn, (question, answer) in enumerate(questions):
        add([encoder.im_start, *encoder.plain("user\n")])
        if turn > 0:
            add(encoder.plain(question))
        elif is_image_first:
            add([PLACE] * NUM_PATCHES + encoder.plain(line_break + question))
        else:
            add(encoder.plain(question + line_break) + [PLACE] * NUM_PATCHES)
        add([encoder.im_end, *encoder.newline, encoder.im_start, *encoder.plain("assistant\n")])
        add([*encoder.plain(answer), encoder.im_end], learned=True)
        add(encoder.newline)
    return token_ids, is_learned


def chats_about(encoder: DocumentEncoder, pictures: Sequence[Picture], rng: random.Random) -> tuple[Tensor, Tensor]:
    """Return token ids and labels of some questions about each picture, [num_pictures, longest]."""
    chats = [conversation(encoder, rng.sample(picture.questions, MAX_QUESTIONS), rng) for picture in pictures]
    longest = max(len(token_ids) for token_ids, _ in chats)
    token_ids = torch.full((len(chats), longest), encoder.end_of_text)
    labels = torch.full((len(chats), longest), NOT_LEARNED)
    for row, (ids, learned) in enumerate(chats):
        token_ids[row, : len(ids)] = torch.tensor(ids)
        labels[row, : len(ids)] = torch.tensor(ids).where(torch.tensor(learned), torch.tensor(NOT_LEARNED))
    return token_ids, labels


def answer_loss(model: DemoModel, vision: Vision, pixels: Tensor, token_ids: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the answers' tokens."""
    places = token_ids == PLACE
    embeddings = model.embed_tokens(token_ids.clamp(min=0))
    embeddings = embeddings.masked_scatter(places.unsqueeze(-1), vision(pixels))
    hidden, labels = model.run(embeddings)[:, :-1], labels[:, 1:]
    learned = labels != NOT_LEARNED
    return functional.cross_entropy(model.logits(hidden[learned]), labels[learned])


def optimizers_of(vision: Vision, other: nn.Module, block_rate: float) -> list[torch.optim.Optimizer]:
    """Give the blocks' matrices to Muon, at this rate, and all other trained parameters to AdamW."""
    matrices = [parameter for parameter in vision.blocks.parameters() if parameter.dim() == 2]
    known = set(map(id, matrices))
    others = [each for module in (vision, other) for each in module.parameters() if id(each) not in known]
    trained = [parameter for parameter in others if parameter.requires_grad]
    return [Muon(matrices, lr=block_rate), torch.optim.AdamW(trained, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)]


def descend(optimizers: Sequence[torch.optim.Optimizer], loss_of_step: Callable[[], Tensor], minutes: float) -> None:
    """Take steps for some minutes."""
    peaks = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    started, total = time.monotonic(), 0.0
    for step in itertools.count(1):
        progress = (time.monotonic() - started) / (60 * minutes)
        if progress >= 1:
            break
        for group, peak in peaks:
            group["lr"] = peak * min(step / 50, 1.0, 2 * (1 - progress))
        loss = loss_of_step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
            optimizer.step()
        total += loss.item()
        if step % LOG_EVERY == 0:
            logger.info("step %d, %.0f %%: loss %.4f", step, 100 * progress, total / LOG_EVERY)
            total = 0.0


def train(minutes: float, seed: int) -> tuple[Vision, DemoModel]:
    """Learn facts for a quarter of the time, then answers, with an adapter beside the demo model's matrices."""
    encoder, model = DocumentEncoder(CHECKPOINT), add_lora(load_checkpoint(CHECKPOINT))
    vision, head = Vision(model.shape.hidden_size), FactsHead()
    painter, rng = Painter(seed), random.Random(seed)

    def pictures() -> tuple[list[Picture], Tensor]:
        drawn = [painter.picture() for _ in range(BATCH_SIZE)]
        return drawn, torch.from_numpy(np.stack([pixels_of(picture) for picture in drawn]))

    def facts_step() -> Tensor:
        drawn, pixels = pictures()
        return head.loss(vision.features(pixels), drawn)

    def answers_step() -> Tensor:
        drawn, pixels = pictures()
        return answer_loss(model, vision, pixels, *chats_about(encoder, drawn, rng))

    descend(optimizers_of(vision, head, 1e-2), facts_step, minutes / 4)
    descend(optimizers_of(vision, model, 3e-3), answers_step, minutes * 3 / 4)
    return vision, model


def write(vision: Vision, path: Path) -> None:
    """Write llama.cpp's file, its matrices in F16."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("mlp")
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_size(SIDE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(SIZE)
    writer.add_vision_feed_forward_length(4 * SIZE)
    writer.add_vision_projection_dim(vision.second.out_features)
    writer.add_vision_block_count(NUM_BLOCKS)
    writer.add_array("clip.vision.feature_layer", [NUM_BLOCKS])  # else llama.cpp leaves out the last block
    writer.add_vision_head_count(NUM_HEADS)
    writer.add_vision_attention_layernorm_eps(NORM_EPS)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    tensors = {"v.patch_embd.weight": vision.patch_embd.weight, "v.position_embd.weight": vision.position_embd}
    tensors |= {f"v.blk.{name}": tensor for name, tensor in vision.blocks.named_parameters()}
    tensors |= {f"mm.0.{name}": tensor for name, tensor in vision.first.named_parameters()}
    tensors |= {f"mm.2.{name}": tensor for name, tensor in vision.second.named_parameters()}
    for name, tensor in tensors.items():
        is_half = name.endswith(".weight") and tensor.dim() == 2 and "embd" not in name
        writer.add_tensor(name, tensor.detach().numpy().astype(np.float16 if is_half else np.float32))
    write_and_close(writer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=DEMO)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(arguments.seed)
    vision, model = train(arguments.minutes, arguments.seed)
    write(vision, arguments.folder / PROJECTOR)
    save_adapter(model, arguments.folder / "adapters" / "pictures")


if __name__ == "__main__":
    main()
