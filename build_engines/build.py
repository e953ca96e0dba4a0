"""From a checkpoint or a GGUF file to an artifact that the engine stage can load."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from build_engines import artifact
from build_engines.artifact import Manifest
from build_engines.checkpoint import TOKENIZER_FILES, Checkpoint, named_eos_token_ids, read_chat_templates, read_json
from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_file import PRECISIONS, write_gguf
from build_engines.llama_cpp.gguf_header import read_gguf_base, read_gguf_facts
from build_engines.llama_cpp.lora import FILES as ADAPTER_FILES
from build_engines.llama_cpp.lora import LoraAdapter, write_lora
from build_engines.serving import Serving, check_id, check_names_differ, names_of
from build_engines.vocabulary import token_bytes
from model_repository.byte_table import FILE_NAME as BYTE_TABLE
from model_repository.byte_table import save_byte_table
from model_repository.capabilities import Capability
from model_repository.contract import model_id_to_slug
from model_repository.engine.runtime import RUNTIMES
from model_repository.tool_formats import TOOL_FORMATS, detect_tool_format

CONVERTER = 1  # raise it when the same input is converted to other bytes
GGUF_FILE = "model.gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """What to build: a checkpoint folder in Hugging Face's layout, or a GGUF file with its tokenizer's folder."""

    model_id: str
    runtime: str = "llama_cpp"
    checkpoint: Path | None = None
    gguf: Path | None = None
    tokenizer: Path | None = None
    context_window: int | None = None  # None: the model's own
    precision: str = "f16"  # of the KV cache, and of the matrices that are converted from a checkpoint
    options: dict[str, str] = field(default_factory=dict)  # the runtime's own
    adapters: dict[str, Path] = field(default_factory=dict)  # by name: folders in PEFT's format
    tool_call_format: str | None = None  # None: the one that the chat template speaks
    serving: Serving = field(default_factory=Serving)

    def __post_init__(self) -> None:
        for name in (self.model_id, *self.adapters):
            check_id(name)
        check_names_differ(names_of(self.model_id, self.serving.aliases, self.adapters))
        if self.adapters and Capability.LORA not in RUNTIMES[self.runtime].capabilities:
            raise BuildError(f"--adapter: the runtime {self.runtime} takes none")
        if self.tool_call_format not in (None, *TOOL_FORMATS):
            raise BuildError(f"--tool-call-format {self.tool_call_format}: expected one of {', '.join(TOOL_FORMATS)}")
        if self.precision not in PRECISIONS:
            raise BuildError(f"--precision {self.precision}: expected one of {', '.join(PRECISIONS)}")
        for name in self.options:
            taken = sorted(RUNTIMES[self.runtime].options)
            if name not in taken:
                raise BuildError(f"--option {name}: the runtime {self.runtime} takes {', '.join(taken) or 'none'}")
        if (self.checkpoint is None) == (self.gguf is None):
            raise BuildError("expected either --checkpoint DIR or --gguf FILE")
        if self.gguf is not None and self.tokenizer is None:
            raise BuildError("--gguf needs --tokenizer DIR, the folder with the model's tokenizer.json")
        if self.checkpoint is not None and self.tokenizer is not None:
            raise BuildError("--tokenizer goes with --gguf; a checkpoint has its own tokenizer.json")
        if not (self.tokenizer_folder / "tokenizer.json").is_file():
            raise BuildError(f"{self.tokenizer_folder / 'tokenizer.json'}: no such file")

    @property
    def tokenizer_folder(self) -> Path:
        """Where tokenizer.json is."""
        folder = self.tokenizer or self.checkpoint
        assert folder is not None
        return folder

    def source_files(self) -> Iterator[Path]:
        """Yield every file that the artifact is made of."""
        if self.gguf is not None:
            yield self.gguf
        if self.checkpoint is not None:
            yield self.checkpoint / "config.json"
            yield from sorted(self.checkpoint.glob("*.safetensors"))
        yield from (self.tokenizer_folder / name for name in ("generation_config.json", *TOKENIZER_FILES))

    def source_digests(self) -> dict[str, str]:
        """Return the sha256 of every file that the artifact is made of, by name."""
        files = {path.name: path for path in self.source_files()}
        for adapter, folder in self.adapters.items():
            files |= {f"adapters/{model_id_to_slug(adapter)}/{name}": folder / name for name in ADAPTER_FILES}
        return {name: artifact.file_digest(path) for name, path in files.items() if path.is_file()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the source says about the model."""

    context_window: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int


def build(spec: BuildSpec, artifacts_dir: Path) -> Path:
    """Return the artifact of a spec, building it unless it is there already.

    Raises:
        BuildError: one line that names the input and the rule.
    """
    source = spec.source_digests()
    templates = read_chat_templates(spec.tokenizer_folder)
    tool_template = templates.get("tool_use") or templates.get("default", "")
    tool_call_format = spec.tool_call_format or detect_tool_format(tool_template)
    key = artifact.key_of(
        converter=CONVERTER,
        model_id=spec.model_id,
        runtime=spec.runtime,
        context_window=spec.context_window,
        precision=spec.precision,
        options=spec.options,
        tool_call_format=tool_call_format,
        source=source,
    )
    target = artifacts_dir / f"{model_id_to_slug(spec.model_id)}-{key}"
    with artifact.locked(artifacts_dir):
        if artifact.is_complete(target):
            artifact.serve_as(target, spec.serving)
            return target
        with artifact.written_aside(target) as folder:
            facts = _write_files(spec, folder, TOOL_FORMATS[tool_call_format].special_tokens)
            manifest = Manifest(
                model_id=spec.model_id,
                runtime=spec.runtime,
                context_window=_context_window(spec, facts),
                eos_token_ids=facts.eos_token_ids,
                created=int(time.time()),
                source=source,
                key=key,
                precision=spec.precision,
                options=spec.options,
                adapters={name: _adapter_path(name) for name in spec.adapters},
                tool_call_format=tool_call_format,
                has_chat_template="default" in templates,
                serving=spec.serving,
            )
            artifact.seal(folder, manifest)
    return target


def _write_files(spec: BuildSpec, folder: Path, visible: Collection[str]) -> ModelFacts:
    """Write the weights, the adapters, the tokenizer and the byte table; return what the source says."""
    adapters = {name: LoraAdapter.load(source) for name, source in spec.adapters.items()}
    facts = _write_weights(spec, folder / GGUF_FILE)
    if adapters:
        base = read_gguf_base(folder / GGUF_FILE)
        (folder / "adapters").mkdir()
        for name, adapter in adapters.items():
            write_lora(adapter, base, folder / _adapter_path(name))
    _copy_tokenizer(spec.tokenizer_folder, folder / "tokenizer")
    description = read_json(spec.tokenizer_folder / "tokenizer.json")
    save_byte_table(folder / BYTE_TABLE, token_bytes(description, facts.vocab_size, visible))
    return facts


def _write_weights(spec: BuildSpec, path: Path) -> ModelFacts:
    if spec.gguf is not None:
        facts = _facts_of_gguf(spec.gguf, spec.tokenizer_folder)
        _link_or_copy(spec.gguf, path)
        return facts
    assert spec.checkpoint is not None
    checkpoint = Checkpoint.load(spec.checkpoint)
    if spec.runtime == "llama_cpp":  # the synthetic runtime has no weights
        write_gguf(checkpoint, path, spec.precision)
    return ModelFacts(
        context_window=checkpoint.context_window,
        eos_token_ids=checkpoint.eos_token_ids,
        vocab_size=int(checkpoint.config["vocab_size"]),
    )


def _facts_of_gguf(path: Path, tokenizer_folder: Path) -> ModelFacts:
    header = read_gguf_facts(path)
    generation = read_json(tokenizer_folder / "generation_config.json", is_optional=True)
    eos_token_ids = named_eos_token_ids(generation) or header.eos_token_ids
    if not eos_token_ids:
        raise BuildError(f"{path}: names no end-of-generation token, nor does generation_config.json")
    return ModelFacts(context_window=header.context_length, eos_token_ids=eos_token_ids, vocab_size=header.vocab_size)


def _context_window(spec: BuildSpec, facts: ModelFacts) -> int:
    if spec.context_window is None:
        return facts.context_window
    if not 2 <= spec.context_window <= facts.context_window:
        raise BuildError(f"context window {spec.context_window}: this model has 2 to {facts.context_window} tokens")
    return spec.context_window


def _adapter_path(name: str) -> str:
    """Return where an adapter is, relative to the artifact."""
    return f"adapters/{model_id_to_slug(name)}.gguf"


def _copy_tokenizer(source: Path, target: Path) -> None:
    target.mkdir()
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _link_or_copy(source: Path, target: Path) -> None:
    """Share the bytes of a large file where the file system can; the artifact never writes to it."""
    try:
        os.link(source.resolve(), target)  # of a symbolic link, as in a download cache, link what it points to
    except OSError:
        shutil.copyfile(source, target)
