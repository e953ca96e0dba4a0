"""Train the demo embedder on a CPU. It is a small BERT, which gives near vectors to texts that belong together.

Usage: python -m tests.workshop.demo_training.embedder

The checkpoint is in the format of sentence-transformers. A run goes on from --state where an earlier one stopped.
"""

import argparse
import json
import logging
import random
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional

from tests.workshop.demo_training.checkpoint import DEMO, replace_files
from tests.workshop.demo_training.dataset import SEED
from tests.workshop.demo_training.export import to_json
from tests.workshop.demo_training.parallel import draw_pair

EMBEDDER = DEMO / "embedder"
VOCAB_SIZE, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_LAYERS, NUM_HEADS = 2_048, 96, 192, 2, 4
CONTEXT_WINDOW = 256
LAYER_NORM_EPS = 1e-12
PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BATCH_SIZE = 256  # pairs; each text has the others' as wrong ones
LEARNING_RATE = 2e-3
WARM_UP = 200  # steps
LOG_EVERY = 50  # steps
SHARPNESS = 20.0  # cosines are multiplied by it in the loss
KANA = [chr(code) for code in (*range(0x3041, 0x3097), *range(0x30A1, 0x30FB), 0x30FC)]

logger = logging.getLogger(__name__)


def train_tokenizer() -> Tokenizer:
    """Train a WordPiece vocabulary. Accents are kept: without them kana would be other kana."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    alphabet = [*map(chr, range(0x21, 0x7F)), *"áàâäéèêëíìîïóòôöúùûüñçœß¡¿", *KANA]
    rng = random.Random(SEED)
    texts = (text for _ in range(100_000) for text in draw_pair(rng))
    tokenizer.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(
            vocab_size=VOCAB_SIZE, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
        ),
    )
    ends = [(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=ends
    )
    return tokenizer


def norm() -> nn.LayerNorm:
    return nn.LayerNorm(HIDDEN_SIZE, eps=LAYER_NORM_EPS)


class Layer(nn.Module):
    """A layer of BERT, with transformers' names."""

    def __init__(self) -> None:
        super().__init__()
        projections = nn.ModuleDict({name: nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE) for name in ("query", "key", "value")})
        output = nn.ModuleDict({"dense": nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE), "LayerNorm": norm()})
        self.attention = nn.ModuleDict({"self": projections, "output": output})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(HIDDEN_SIZE, INTERMEDIATE_SIZE)})
        self.output = nn.ModuleDict({"dense": nn.Linear(INTERMEDIATE_SIZE, HIDDEN_SIZE), "LayerNorm": norm()})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = (
            project(x).view(batch, length, NUM_HEADS, -1).transpose(1, 2) for project in self.attention["self"].values()
        )
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None, :])
        output = self.attention["output"]
        x = output["LayerNorm"](x + output["dense"](mixed.transpose(1, 2).reshape(batch, length, -1)))
        inner = functional.gelu(self.intermediate["dense"](x), approximate="tanh")  # as llama.cpp computes it
        return self.output["LayerNorm"](x + self.output["dense"](inner))


class Embedder(nn.Module):
    """A BERT with the mean of its tokens' vectors, of length 1."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(vocab_size, HIDDEN_SIZE),
                "position_embeddings": nn.Embedding(CONTEXT_WINDOW, HIDDEN_SIZE),
                "token_type_embeddings": nn.Embedding(1, HIDDEN_SIZE),
                "LayerNorm": norm(),
            }
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(NUM_LAYERS))})
        for name, parameter in self.named_parameters():
            if "position" in name:
                nn.init.zeros_(parameter)  # positions beyond the trained texts change nothing
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.05)

    def forward(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Embed texts.

        Args:
            token_ids: [texts, tokens], padded.
            mask: [texts, tokens]; whether a token is none of the padding.
        """
        parts = self.embeddings
        x = parts["word_embeddings"](token_ids) + parts["position_embeddings"].weight[: token_ids.shape[1]]
        x = parts["LayerNorm"](x + parts["token_type_embeddings"].weight[0])
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        return functional.normalize((x * mask[..., None]).sum(1), dim=-1)


def embed(model: Embedder, tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    encodings = tokenizer.encode_batch(texts)
    return model(
        torch.tensor([each.ids for each in encodings]), torch.tensor([each.attention_mask for each in encodings]).bool()
    )


def save_checkpoint(model: Embedder, tokenizer: Tokenizer, folder: Path) -> None:
    weights = {name: tensor.to(torch.float16).contiguous() for name, tensor in model.state_dict().items()}
    config = {
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "layer_norm_eps": LAYER_NORM_EPS,
        "max_position_embeddings": CONTEXT_WINDOW,
        "model_type": "bert",
        "num_attention_heads": NUM_HEADS,
        "num_hidden_layers": NUM_LAYERS,
        "pad_token_id": tokenizer.token_to_id(PAD),
        "position_embedding_type": "absolute",
        "torch_dtype": "float16",
        "type_vocab_size": 1,
        "vocab_size": tokenizer.get_vocab_size(),
    }
    tokenizer_config = {
        "cls_token": CLS,
        "do_lower_case": True,
        "mask_token": MASK,
        "model_max_length": CONTEXT_WINDOW,
        "pad_token": PAD,
        "sep_token": SEP,
        "strip_accents": False,
        "tokenizer_class": "BertTokenizer",
        "unk_token": UNKNOWN,
    }
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    without_padding = json.loads(tokenizer.to_str()) | {"padding": None}
    replace_files(
        folder,
        {
            "config.json": to_json(config),
            "model.safetensors": save(weights, metadata={"format": "pt"}),
            "modules.json": f"{json.dumps(modules, indent=2)}\n".encode(),
            "tokenizer.json": json.dumps(without_padding, ensure_ascii=False, indent=1).encode(),
            "tokenizer_config.json": to_json(tokenizer_config),
        },
    )
    pooling: dict[str, object] = {"word_embedding_dimension": HIDDEN_SIZE, "pooling_mode_mean_tokens": True}
    replace_files(folder / "1_Pooling", {"config.json": to_json(pooling)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_500)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this time; the next run goes on")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "demo_embedder.pt")
    parser.add_argument("--folder", type=Path, default=EMBEDDER)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(SEED)
    state = torch.load(arguments.state) if arguments.state.exists() else None
    tokenizer = Tokenizer.from_str(state["tokenizer"]) if state else train_tokenizer()
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(PAD), pad_token=PAD)
    model = Embedder(tokenizer.get_vocab_size())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    first = step = state["step"] if state else 0
    end, mean_loss = time.monotonic() + 60 * arguments.minutes, 0.0
    rng = random.Random(SEED + step)
    while step < arguments.steps and time.monotonic() < end:
        step += 1
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(step / WARM_UP, 1 - step / (arguments.steps + 1))
        firsts, seconds = zip(*(draw_pair(rng) for _ in range(BATCH_SIZE)), strict=True)
        vectors = embed(model, tokenizer, [*firsts, *seconds])
        cosines = SHARPNESS * vectors[:BATCH_SIZE] @ vectors[BATCH_SIZE:].T
        right = torch.arange(BATCH_SIZE)
        loss = functional.cross_entropy(cosines, right) + functional.cross_entropy(cosines.T, right)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean_loss += (loss.item() - mean_loss) / min(step - first, LOG_EVERY)
        if step % LOG_EVERY == 0:
            logger.info("step %d, loss %.3f", step, mean_loss)
    logger.info("step %d, loss %.3f", step, mean_loss)
    state = {
        "tokenizer": tokenizer.to_str(),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    torch.save(state, arguments.state)
    save_checkpoint(model, tokenizer, arguments.folder)


if __name__ == "__main__":
    main()
