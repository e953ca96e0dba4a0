"""The tensors of a converted model: names in both formats, shapes, and order of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy.typing as npt

from build_engines.errors import UnsupportedCheckpoint
from build_engines.llama_cpp.bert import TYPES, WORDS, BertConfig, bert_tensors
from build_engines.llama_cpp.model_config import ModelConfig
from build_engines.llama_cpp.weights import ChosenRows, StoredTensor, TypedRows

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
_BUFFER = ".rotary_emb.inv_freq"  # early Llama checkpoints have it; computed from config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A tensor of the checkpoint, with its place in GGUF."""

    source: StoredTensor
    name: str  # GGUF's
    num_interleaved_heads: int | None  # llama.cpp has another order of their rows


def place_tensors(
    model: ModelConfig | BertConfig, stored: Mapping[str, StoredTensor], *, has_head: bool = True
) -> list[Placement]:
    """Find every tensor of the model in the checkpoint.

    Args:
        has_head: the model generates, so it has an output matrix.

    Raises:
        UnsupportedCheckpoint: a tensor is missing, unknown, or of another shape; names it.
    """
    if isinstance(model, BertConfig):
        shapes, stored, is_tied = dict(model.shapes()), bert_tensors(stored, has_head=bool(model.num_labels)), False
    else:
        shapes, is_tied = dict(_shapes(model, has_head=has_head)), model.has_tied_embeddings
        if not has_head:  # transformers writes a model without a head under shorter names
            stored = {f"model.{name.removeprefix('model.')}": each for name, each in stored.items() if name != OUTPUT}
    names = gguf.get_tensor_name_map(model.arch, model.num_layers)
    placements = []
    for source_name, shape in shapes.items():
        if source_name not in stored:
            raise UnsupportedCheckpoint(f"tensor {source_name}: missing")
        source = stored[source_name]
        if source.shape != shape:
            rule = f"config.json makes it {list(shape)}"
            raise UnsupportedCheckpoint(f"tensor {source_name}: is of shape {list(source.shape)}, {rule}")
        heads = num_interleaved_heads(model.arch, source_name.rpartition(".")[0], model.num_heads, model.num_kv_heads)
        if isinstance(model, BertConfig) and model.has_token_types and source_name == WORDS:
            typed = (2 * shape[0], *shape[1:])
            source = TypedRows(
                path=source.path, name=WORDS, shape=typed, dtype=source.dtype, tokens=source, types=stored[TYPES]
            )
        name = names.get_name(source_name, try_suffixes=(".weight", ".bias"))
        assert name is not None
        placements.append(Placement(source=source, name=name, num_interleaved_heads=heads))
    for name, tensor in stored.items():
        if name == OUTPUT and is_tied:
            _check_equal(tensor, stored[EMBEDDING])
        elif name not in shapes and not name.endswith(_BUFFER):
            raise UnsupportedCheckpoint(f"tensor {name}: unknown in this architecture")
    return placements


def place_judgements(
    model: ModelConfig | BertConfig, stored: Mapping[str, StoredTensor], token_ids: tuple[int, ...]
) -> Placement:
    """Return the classification head of a model that judges: the rows of its output matrix for these tokens.

    Raises:
        UnsupportedCheckpoint: the output matrix is missing.
    """
    assert isinstance(model, ModelConfig)
    name = EMBEDDING if model.has_tied_embeddings else OUTPUT
    if name not in stored:
        raise UnsupportedCheckpoint(f"tensor {name}: missing")
    output = stored[name]
    shape = (len(token_ids), *output.shape[1:])
    rows = ChosenRows(path=output.path, name=name, shape=shape, dtype=output.dtype, rows=token_ids)
    head = f"{gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.CLS_OUT]}.weight"
    return Placement(source=rows, name=head, num_interleaved_heads=None)


def num_interleaved_heads(arch: gguf.MODEL_ARCH, module: str, num_heads: int, num_kv_heads: int) -> int | None:
    """Return the number of heads of a module that needs interleaved rows; None for other modules.

    Hugging Face rotates the halves of a head. llama.cpp does so for Qwen2 and Qwen3, but rotates neighbouring pairs for
    Llama.
    """
    if arch is not gguf.MODEL_ARCH.LLAMA:
        return None
    return {"q_proj": num_heads, "k_proj": num_kv_heads}.get(module.rpartition(".")[2])


def interleave_heads(weight: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Pair the rows of the two halves of each head."""
    halves = weight.reshape(num_heads, 2, len(weight) // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _shapes(model: ModelConfig, *, has_head: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBEDDING, (model.vocab_size, model.hidden_size)
    for layer in range(model.num_layers):
        for name, shape in _layer_shapes(model):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (model.hidden_size,)
    if has_head and not model.has_tied_embeddings:
        yield OUTPUT, (model.vocab_size, model.hidden_size)


def _layer_shapes(model: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, intermediate = model.hidden_size, model.intermediate_size
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    for name, shape, has_bias in (
        ("self_attn.q_proj", (query, hidden), model.has_qkv_bias),
        ("self_attn.k_proj", (key, hidden), model.has_qkv_bias),
        ("self_attn.v_proj", (key, hidden), model.has_qkv_bias),
        ("self_attn.o_proj", (hidden, query), model.has_output_bias),
        ("mlp.gate_proj", (intermediate, hidden), model.has_mlp_bias),
        ("mlp.up_proj", (intermediate, hidden), model.has_mlp_bias),
        ("mlp.down_proj", (hidden, intermediate), model.has_mlp_bias),
    ):
        yield f"{name}.weight", shape
        if has_bias:
            yield f"{name}.bias", shape[:1]
    if model.has_head_norms:
        yield "self_attn.q_norm.weight", (model.head_dim,)
        yield "self_attn.k_norm.weight", (model.head_dim,)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)


def _check_equal(output: StoredTensor, embedding: StoredTensor) -> None:
    pieces = zip(output.read_pieces(), embedding.read_pieces(), strict=True)
    if output.shape != embedding.shape or not all((one == other).all() for one, other in pieces):
        rule = "config.json ties it to the embedding (tie_word_embeddings), from which it differs"
        raise UnsupportedCheckpoint(f"tensor {output.name}: {rule}")
