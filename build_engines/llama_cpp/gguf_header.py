"""What a GGUF file says of itself: for serving, and as the base of LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf

from build_engines.errors import BuildError


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFacts:
    """What serving needs to know."""

    context_length: int
    vocab_size: int  # rows of the token embedding
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufBase:
    """What an adapter must fit."""

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    shapes: dict[str, tuple[int, ...]]  # of each tensor, rows first


def read_gguf_facts(path: Path) -> GgufFacts:
    """Read a ready GGUF file's header.

    Raises:
        BuildError: not a GGUF file, or it lacks what serving needs.
    """
    try:
        reader = gguf.GGUFReader(path)
        architecture = reader.fields["general.architecture"].contents()
        context_length = int(reader.fields[f"{architecture}.context_length"].contents())
        embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    except (OSError, ValueError, LookupError, StopIteration) as exc:
        raise BuildError(f"{path}: not a GGUF file of a language model ({exc})") from exc
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    ends = [int(reader.fields[name].contents()) for name in names if name in reader.fields]
    return GgufFacts(
        context_length=context_length, vocab_size=int(embedding.shape[-1]), eos_token_ids=tuple(dict.fromkeys(ends))
    )


def read_gguf_base(path: Path) -> GgufBase:
    """Read what an adapter must fit, of a file that `read_gguf_facts` takes.

    Raises:
        BuildError: it does not say how many layers and heads there are, or not one number for all layers.
    """
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()

    def number(name: str, default: int | None = None) -> int:
        field = reader.fields.get(f"{architecture}.{name}")
        value = default if field is None else field.contents()
        if not isinstance(value, int):
            raise BuildError(f"{path}: {architecture}.{name} is {value}, which no adapter can be fitted to")
        return value

    num_heads = number("attention.head_count")
    return GgufBase(
        architecture=architecture,
        num_layers=number("block_count"),
        num_heads=num_heads,
        num_kv_heads=number("attention.head_count_kv", num_heads),
        # GGUF counts columns first.
        shapes={tensor.name: tuple(int(length) for length in tensor.shape[::-1]) for tensor in reader.tensors},
    )
