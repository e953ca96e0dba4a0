"""The header of a GGUF file: facts for serving, and for LoRA adapters."""

from __future__ import annotations

import functools
import logging
import math
import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import gguf

from build_engines.errors import BuildError
from model_repository.model_facts import Pooling
from model_repository.runtimes import WITH_SOFTMAX

logger = logging.getLogger(__name__)

_ARCHITECTURE, _FILE_TYPE = gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE
_SPLIT_NUMBER, _SPLIT_COUNT = gguf.Keys.Split.LLM_KV_SPLIT_NO, gguf.Keys.Split.LLM_KV_SPLIT_COUNT
TURN_ENDS = (gguf.Keys.Tokenizer.EOS_ID, gguf.Keys.Tokenizer.EOT_ID, gguf.Keys.Tokenizer.EOM_ID)  # keys
_SAMPLING = {
    "temperature": gguf.Keys.General.SAMPLING_TEMP,
    "top_p": gguf.Keys.General.SAMPLING_TOP_P,
    "top_k": gguf.Keys.General.SAMPLING_TOP_K,
    "min_p": gguf.Keys.General.SAMPLING_MIN_P,
    "repetition_penalty": gguf.Keys.General.SAMPLING_PENALTY_REPEAT,
}
_EMBEDDING = "token_embd.weight"
_OF_INPUT = ("token_types.weight", "position_embd.weight", "per_layer_token_embd.weight")
_LAYER_NAME = re.compile(r"blk\.(\d+)\.")
_HEAD, _HEAD_OUTPUT = "cls.weight", "cls.output.weight"
# llama.cpp's converter leaves out EmbeddingGemma's last layers without --sentence-transformers-dense-modules.
_WITH_DENSE, _DENSE = "gemma-embedding", "dense_2.weight"
_MAGIC = b"GGUF"
NO_TOKEN = 2**32 - 1  # -1 in a key for the id of a special token: the model has none
_DIFFUSION = "makes all tokens of a text together, by diffusion"
_NOT_SERVED = {
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    "t5": "has an encoder and a decoder",
    "t5encoder": "is the encoder of a model with a decoder",
}
PART_NAME = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFacts:
    """Facts for serving."""

    context_length: int
    vocab_size: int  # rows of the token embedding
    eos_token_ids: tuple[int, ...]
    sampling: dict[str, Any]  # unchecked values for requests without these fields
    pooling: str  # see Pooling; empty: the model generates
    labels: tuple[str, ...] = ()  # of the scores; none: the model does not score


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufBase:
    """Facts of a model that its adapters must fit."""

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    shapes: dict[str, tuple[int, ...]]  # rows first, by tensor


def gguf_parts(path: Path) -> tuple[Path, ...]:
    """Return the files of a model in order: the file itself, or all parts of a split model, of which it is the first.

    Raises:
        BuildError: not a GGUF file, not the first part, or another part is missing.
    """
    return tuple(_readers(path))


def part_names(model: str, count: int) -> tuple[str, ...]:
    """Return the names of a model's parts by llama.cpp's rule."""
    if count == 1:
        return (f"{model}.gguf",)
    return tuple(f"{model}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))


def read_gguf_facts(path: Path) -> GgufFacts:
    """Read the header of a GGUF file, or of all parts of a split model.

    Raises:
        BuildError: not a GGUF file, a necessary field is missing, or two tokens have the same text.
    """
    readers = tuple(_readers(path).values())
    architecture = _architecture(readers[0], path)
    if kind := _NOT_SERVED.get(architecture):
        raise BuildError(f"{path}: a model of the architecture {architecture} {kind}: such models are not served")
    context_length = _number(readers[0], path, f"{architecture}.context_length")
    if not 2 <= context_length < 2**31:
        rule = f"{context_length}: expected at least 2 tokens, less than 2^31"
        raise BuildError(f"{path}: {architecture}.context_length is {rule}")
    embedding = _shapes(readers).get(_EMBEDDING)
    if embedding is None:
        raise BuildError(f"{path}: not a GGUF file of a language model: no {_EMBEDDING}")
    _check_tokens(readers[0], path, embedding[0])
    ends = dict.fromkeys(_number(readers[0], path, key) for key in TURN_ENDS if key in readers[0].fields)
    ends.pop(NO_TOKEN, None)
    for token_id in ends:
        if not 0 <= token_id < embedding[0]:
            raise BuildError(f"{path}: ends with token {token_id}: the model has tokens 0 to {embedding[0] - 1}")
    if architecture == _WITH_DENSE and _DENSE not in _shapes(readers):
        rule = "its vectors are not those of the model; newer files of it have these layers"
        logger.warning("warning: %s: no layers behind the pooling (%s): %s", path, _DENSE, rule)
    pooling = _pooling(readers, path, architecture)
    named = {name: readers[0].fields[key].contents() for name, key in _SAMPLING.items() if key in readers[0].fields}
    return GgufFacts(
        context_length=context_length,
        vocab_size=embedding[0],
        eos_token_ids=tuple(ends),
        # 0.95 in 32 bits reads as 0.949999988.
        sampling={name: round(value, 6) if isinstance(value, float) else value for name, value in named.items()},
        pooling=pooling,
        labels=_labels(readers, path, architecture) if pooling == Pooling.RANK else (),
    )


def _pooling(readers: tuple[gguf.GGUFReader, ...], path: Path, architecture: str) -> str:
    """Return how a model pools.

    If the file of an encoder names no pooling, a classification head means that the model scores: llama.cpp's converter
    names no pooling of cross-encoders. Without a head it has the mean, as in sentence-transformers.
    """
    pooling = _number(readers[0], path, f"{architecture}.pooling_type", gguf.PoolingType.NONE)
    if pooling == gguf.PoolingType.NONE:
        causal = readers[0].fields.get(f"{architecture}.attention.causal")
        if causal is None or causal.contents():
            return ""
        shapes = _shapes(readers)
        num_rows, width = shapes.get(_HEAD, (0, 0))  # as many as the width: the layer before _HEAD_OUTPUT, or a pooler
        return Pooling.RANK if _HEAD_OUTPUT in shapes or num_rows != width else Pooling.MEAN
    try:
        return Pooling[gguf.PoolingType(pooling).name]
    except (ValueError, KeyError) as exc:
        rule = f"expected one of {', '.join(Pooling)}"
        raise BuildError(f"{path}: {architecture}.pooling_type is {pooling}: {rule}") from exc


def _check_tokens(reader: gguf.GGUFReader, path: Path, num_rows: int) -> None:
    """Check that each row of the embedding has a token, and that no two tokens have the same text.

    At tokens of the same text, llama.cpp aborts the process.
    """
    field = reader.fields.get(gguf.Keys.Tokenizer.LIST)
    if field is None:
        return
    first_ids: dict[bytes, int] = {}
    for token_id, part in enumerate(field.data):
        text = bytes(field.parts[part])
        first_id = first_ids.setdefault(text, token_id)
        if text and first_id != token_id:
            same = f"tokens {first_id} and {token_id} have the same text, {text.decode(errors='replace')!r}"
            raise BuildError(f"{path}: {same}: llama.cpp does not load such a file")
    if len(field.data) != num_rows:
        differ = f"{len(field.data):,} tokens, and {_EMBEDDING} has {num_rows:,} rows"
        raise BuildError(f"{path}: {differ}: llama.cpp does not load such a file")


def read_gguf_base(path: Path) -> GgufBase:
    """Read the facts for adapters.

    Raises:
        BuildError: the header has no numbers of layers and heads, or several for different layers.
    """
    readers = tuple(_readers(path).values())
    architecture = _architecture(readers[0], path)
    num_heads = _number(readers[0], path, f"{architecture}.attention.head_count")
    return GgufBase(
        architecture=architecture,
        num_layers=_number(readers[0], path, f"{architecture}.block_count"),
        num_heads=num_heads,
        num_kv_heads=_number(readers[0], path, f"{architecture}.attention.head_count_kv", num_heads),
        shapes=_shapes(readers),
    )


def _labels(readers: tuple[gguf.GGUFReader, ...], path: Path, architecture: str) -> tuple[str, ...]:
    """Return the labels of the scores of a model with a classification head. llama.cpp has one score without labels."""
    if not {_HEAD, _HEAD_OUTPUT} & set(_shapes(readers)):
        # Older converters made such files of Qwen3-Reranker; llama.cpp would return noise.
        raise BuildError(f"{path}: a reranker without its head ({_HEAD} or {_HEAD_OUTPUT}): take another file")
    field = readers[0].fields.get(gguf.Keys.Classifier.OUTPUT_LABELS.format(arch=architecture))
    labels = ["LABEL_0"] if field is None else field.contents()
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise BuildError(f"{path}: {field and field.name} is {labels!r:.200}: expected a list of texts")
    if architecture in WITH_SOFTMAX and len(labels) < 2:
        raise BuildError(f"{path}: an architecture {architecture} with one score: llama.cpp makes it 1 for every pair")
    return tuple(labels)


def read_gguf_kind(path: Path) -> tuple[str, str, int]:
    """Return the architecture, the precision of the matrices (empty: unknown) and the number of weights.

    Raises:
        BuildError: not a GGUF file of a language model.
    """
    readers = tuple(_readers(path).values())
    file_type, names = readers[0].fields.get(_FILE_TYPE), {each.value: each.name for each in gguf.LlamaFileType}
    name = "" if file_type is None else names.get(file_type.contents(), "")  # ALL_F32, MOSTLY_Q8_0
    num_weights = sum(math.prod(shape) for shape in _shapes(readers).values())
    return _architecture(readers[0], path), name.partition("_")[2].lower(), num_weights


def quantized_types(path: Path) -> list[str]:
    """Return the quantized types that tensors of a model are stored in.

    Raises:
        BuildError: not a GGUF file of a model.
    """
    stored = {tensor.tensor_type for reader in _readers(path).values() for tensor in reader.tensors}
    return sorted(each.name.lower() for each in stored if gguf.GGML_QUANT_SIZES[each][0] > 1)


def read_layer_bytes(path: Path, num_layers: int) -> tuple[list[int], int]:
    """Return the size of the weights of each layer, and that of the token embedding.

    As llama.cpp counts layers, the last one is the output, and the matrices of the input belong to no layer.

    Raises:
        BuildError: not a GGUF file of a model.
    """
    sizes, embedding_bytes = [0] * num_layers, 0
    for tensor in chain.from_iterable(reader.tensors for reader in _readers(path).values()):
        layer = _LAYER_NAME.match(tensor.name)
        if layer is not None:
            sizes[min(int(layer[1]), num_layers - 1)] += int(tensor.n_bytes)
        elif tensor.name == _EMBEDDING:
            embedding_bytes = int(tensor.n_bytes)
        elif tensor.name not in _OF_INPUT:
            sizes[-1] += int(tensor.n_bytes)
    return sizes, embedding_bytes


def check_projector(path: Path) -> None:
    """Check that a GGUF file is a projector of images.

    Raises:
        BuildError: it is something else.
    """
    reader = open_gguf(path)
    has_vision = reader.fields.get("clip.has_vision_encoder")
    if _architecture(reader, path) != "clip" or has_vision is None or not has_vision.contents():
        raise BuildError(f"{path}: not a projector of images (general.architecture clip, with a vision encoder)")


def _readers(path: Path) -> dict[Path, gguf.GGUFReader]:
    first = open_model(path)
    count, name = _number(first, path, _SPLIT_COUNT, 1), PART_NAME.fullmatch(path.name)
    if name is None or count == 1:
        return {path: first}
    readers = {path: first}
    for number, part_name in enumerate(part_names(name["model"], count)[1:], 1):
        part = path.with_name(part_name)
        if not part.is_file():
            raise BuildError(f"{part}: missing; {path.name} says that the model is in {count} files")
        readers[part] = open_gguf(part)
        found = (_number(readers[part], part, _SPLIT_NUMBER), _number(readers[part], part, _SPLIT_COUNT))
        if found != (number, count):
            raise BuildError(f"{part}: its header has number {found[0] + 1} of {found[1]}")
    return readers


def open_model(path: Path) -> gguf.GGUFReader:
    """Read the header of the file of a model, or of its first part.

    Raises:
        BuildError: not a GGUF file, or one of another kind: names the right one.
    """
    reader = open_gguf(path)
    kinds = [reader.fields[key].contents() for key in (_ARCHITECTURE, gguf.Keys.General.TYPE) if key in reader.fields]
    if "clip" in kinds:
        raise BuildError(f"{path}: a projector of images: give the model's own file, and this one with --mmproj")
    if gguf.GGUFType.ADAPTER in kinds:
        rule = "give the model's own file, and the adapter as a folder in PEFT's format with --adapter"
        raise BuildError(f"{path}: a LoRA adapter: {rule}")
    count, name = _number(reader, path, _SPLIT_COUNT, 1), PART_NAME.fullmatch(path.name)
    first = part_names(name["model"] if name else "NAME", count)[0]
    if count > 1 and path.name != first:
        raise BuildError(f"{path}: one of {count} files of a model: give the first, {first}, with the others beside it")
    return reader


class _Reader(gguf.GGUFReader):
    """Reads an array in one step, where GGUFReader makes two numpy arrays for each element, and checks the length."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        element_type = gguf.GGUFValueType(int(self._get(orig_offs, "u4")[0]))
        length, start = int(self._get(orig_offs + 4, "u8")[0]), orig_offs + 12
        types = [gguf.GGUFValueType.ARRAY, element_type]
        if element_type == gguf.GGUFValueType.STRING:
            texts, end = self._texts(start, length)
            return end - orig_offs, texts, list(range(length)), types
        if element_type not in self.gguf_scalar_to_np:
            raise ValueError(f"an array of {element_type.name}")
        numbers = self._get(start, self.gguf_scalar_to_np[element_type], length)
        if len(numbers) != length:
            raise ValueError("an array beyond its end")
        return 12 + numbers.nbytes, [numbers], [0], types

    def _texts(self, start: int, length: int) -> tuple[list[memoryview], int]:
        """Return the texts that begin at an offset, and their end."""
        content, texts = memoryview(self.data), []
        is_little = self.endianess == gguf.GGUFEndian.LITTLE
        for _ in range(length):
            end = start + 8 + int.from_bytes(content[start : start + 8], "little" if is_little else "big")
            if end > len(content):
                raise ValueError("a text beyond its end")
            texts.append(content[start + 8 : end])
            start = end
        return texts, start

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        """Check the length of the file before its tensors are read."""
        end = max((start_offs + _end_of_tensor(field) for field in fields), default=0)
        if end > len(self.data):
            raise ValueError(f"the file has {len(self.data):,} bytes of at least {end:,}")
        super()._build_tensors(start_offs, fields)


class _UnknownType(Exception):
    """A tensor is quantized in another way than those of llama.cpp."""


def _end_of_tensor(field: gguf.ReaderField) -> int:
    """Return the end of a tensor, relative to the first tensor."""
    dimensions, kind, offset = field.parts[3:]
    try:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind[0])]
    except ValueError:
        raise _UnknownType(kind[0]) from None
    return int(offset[0]) + math.prod(map(int, dimensions)) // block_size * block_bytes


def open_gguf(path: Path) -> gguf.GGUFReader:
    """Read the header of a GGUF file.

    Raises:
        BuildError: not a GGUF file, or one that is cut off.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise BuildError(f"{path}: not a GGUF file: begins with {magic!r}")
        state = path.stat()
        reader = _cached_reader(path, state.st_mtime_ns, state.st_size)
        if reader.byte_order == "S":  # swapped
            rule = "the byte order of other machines: gguf's program gguf-convert-endian converts it"
            raise BuildError(f"{path}: {rule}")
        return reader
    except _UnknownType as exc:
        rule = "this llama.cpp does not know the type: take another file of the model"
        raise BuildError(f"{path}: a tensor is quantized as type {exc}: {rule}") from exc
    except OSError as exc:
        raise BuildError(f"{path}: {(exc.strerror or str(exc)).lower()}") from exc
    except (ValueError, LookupError) as exc:
        raise BuildError(f"{path}: a GGUF file that is cut off or damaged: download it again ({exc})") from exc


@functools.cache
def _cached_reader(path: Path, mtime_ns: int, num_bytes: int) -> gguf.GGUFReader:
    """Read a header once for a state of the file: a large vocabulary takes a tenth of a second."""
    return _Reader(path)


def _shapes(readers: tuple[gguf.GGUFReader, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, rows first: GGUF counts columns first."""
    return {
        tensor.name: tuple(int(length) for length in tensor.shape[::-1])
        for reader in readers
        for tensor in reader.tensors
    }


def _architecture(reader: gguf.GGUFReader, path: Path) -> str:
    field = reader.fields.get(_ARCHITECTURE)
    if field is None:
        raise BuildError(f"{path}: not a GGUF file of a language model: no {_ARCHITECTURE}")
    return str(field.contents())


def _number(reader: gguf.GGUFReader, path: Path, key: str, default: int | None = None) -> int:
    field = reader.fields.get(key)
    value = default if field is None else field.contents()
    if not isinstance(value, int):
        raise BuildError(f"{path}: {key} is {value}: expected one whole number")
    return value
