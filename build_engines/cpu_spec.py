"""Builds for the llama.cpp and synthetic runtimes, from a checkpoint or a GGUF file."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from build_engines.artifact import Contents, copy_or_link
from build_engines.checkpoint import (
    TOKENIZER_FILES,
    Checkpoint,
    named_eos_token_ids,
    named_sampling,
    read_chat_templates,
)
from build_engines.errors import BuildError
from build_engines.json_files import read_json
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.gguf_header import check_projector, gguf_parts, part_names, read_gguf_base, read_gguf_facts
from build_engines.llama_cpp.lora import write_lora
from build_engines.llama_cpp.model_config import read_model
from build_engines.llama_cpp.projector import write_projector
from build_engines.llama_cpp.quantize import QUANTIZED, quantize
from build_engines.llama_cpp.storage import PRECISIONS
from build_engines.llama_cpp.trial_load import check_loads
from build_engines.peft import FILES as ADAPTER_FILES
from build_engines.peft import LoraAdapter
from build_engines.progress import Progress
from build_engines.scores import Scores, pair_template
from build_engines.sentence_transformers import MODULE_FILES, MODULES, PROMPTS
from build_engines.sequence_memory import SequenceMemory
from build_engines.serving import Serving, check_names
from build_engines.text_files import (
    detected_reasoning_format,
    detected_tool_call_format,
    template_fields,
    write_text_files,
)
from build_engines.weight_files import INDEX_FILE, weight_files
from model_repository.capabilities import Capability
from model_repository.contract.tensors import model_id_to_ensemble
from model_repository.model_facts import Task
from model_repository.runtimes import DEFAULT_RUNTIME, PROJECTOR, RUNTIMES
from model_repository.tokenizer.chat_prompt import writes_pairs
from model_repository.tokenizer.chat_template import ChatTemplate

logger = logging.getLogger(__name__)

CONVERTER = 6  # raise it when the output for the same input changes
GGUF_NAME = "model"  # name of the file, or beginning of its parts' names
# One step embeds a whole prompt, and a longer prompt needs more memory. --context-window sets more.
_MAX_EMBEDDED_TOKENS = 8192

MATRIX_PRECISIONS = (*PRECISIONS, *QUANTIZED)


def check_options(runtime: str, precision: str | None, options: Mapping[str, str], adapters: Collection[str]) -> None:
    """Check the options of a build that do not depend on the model.

    Args:
        precision: None: that of the model's name, or the default.
        adapters: their names.

    Raises:
        BuildError: names the option, the value and the rule.
    """
    if adapters and Capability.LORA not in RUNTIMES[runtime].capabilities:
        raise BuildError(f"--adapter: the runtime {runtime} has no adapters")
    if precision not in (None, *MATRIX_PRECISIONS):
        raise BuildError(f"--precision {precision}: expected one of {', '.join(MATRIX_PRECISIONS)}")
    for name, value in options.items():
        taken = RUNTIMES[runtime].options
        if name not in taken:
            raise BuildError(f"--option {name}: the runtime {runtime} takes {', '.join(sorted(taken)) or 'none'}")
        pattern, rule = taken[name]
        if not re.fullmatch(pattern, value, re.ASCII):
            raise BuildError(f"--option {name}={value}: expected {rule}")


class ModelSource(Struct, frozen=True, kw_only=True):
    """The files of a model, and the values that its name implies."""

    model_id: str
    checkpoint: Path | None = None  # a folder in Hugging Face's layout
    gguf: Path | None = None
    projector: Path | None = None  # a GGUF file that makes images readable
    adapters: dict[str, Path] = {}  # name to folder in PEFT's format
    precision: str = "f16"  # KV cache, and matrices of a checkpoint
    named_facts: Mapping[str, Any] = {}  # fields of Contents by name, where the files do not state them


class CpuSpec(ModelSource, frozen=True, kw_only=True):
    """A model to build: a checkpoint, or a GGUF file with its tokenizer's folder."""

    runtime: str = DEFAULT_RUNTIME
    tokenizer: Path | None = None
    context_window: int | None = None  # None: the model's own
    options: dict[str, str] = {}  # the runtime's
    tool_call_format: str | None = None  # None: that of the chat template
    serving: Serving = Serving()

    def __post_init__(self) -> None:
        check_names(self.model_id, self.serving.aliases, self.adapters)
        check_options(self.runtime, self.precision, self.options, self.adapters)
        if self.checkpoint is not None and all((self.checkpoint / name).is_file() for name in ADAPTER_FILES):
            rule = "a LoRA adapter: give its model, and this folder with --adapter NAME=FOLDER"
            raise BuildError(f"{self.checkpoint}: {rule}")
        if self.checkpoint is not None and self.tokenizer is not None:
            raise BuildError("--tokenizer goes with --gguf; a checkpoint has its own tokenizer.json")
        if self.projector is not None and Capability.IMAGES not in RUNTIMES[self.runtime].capabilities:
            raise BuildError(f"--mmproj: the runtime {self.runtime} reads no images")
        if not self.tokenizer_folder.is_dir():
            flag = "--checkpoint" if self.tokenizer is None else "--tokenizer"
            raise BuildError(f"{flag} {self.tokenizer_folder}: no such folder")
        if not (self.tokenizer_folder / "tokenizer.json").is_file():
            other = " and no GGUF file" if self.tokenizer is None else ""
            raise BuildError(f"{self.tokenizer_folder}: there is no tokenizer.json{other} in it")

    @property
    def tokenizer_folder(self) -> Path:
        """The folder with tokenizer.json."""
        folder = self.tokenizer or self.checkpoint
        assert folder is not None
        return folder

    def source_files(self) -> dict[str, Path]:
        """Return every source file by its name in the manifest."""
        paths = [self.tokenizer_folder / name for name in ("generation_config.json", *TOKENIZER_FILES)]
        if self.gguf is not None:
            paths += gguf_parts(self.gguf)
        if self.checkpoint is not None:
            names = ("config.json", "preprocessor_config.json", MODULES, PROMPTS, INDEX_FILE)
            paths += [self.checkpoint / name for name in names]
        if self.checkpoint is not None and RUNTIMES[self.runtime].reads_gguf:
            paths += weight_files(self.checkpoint)
        files = {path.name: path for path in paths}
        if self.checkpoint is not None:
            found = (path for pattern in MODULE_FILES for path in self.checkpoint.glob(pattern))
            files |= {str(path.relative_to(self.checkpoint)): path for path in found}
        if self.projector is not None:
            files[PROJECTOR] = self.projector
        for adapter, folder in self.adapters.items():
            files |= {f"adapters/{model_id_to_ensemble(adapter)}/{name}": folder / name for name in ADAPTER_FILES}
        return {name: path for name, path in files.items() if path.is_file()}

    def key_parts(self) -> dict[str, Any]:
        """Return the inputs of the build beside the sources."""
        return {
            "converter": CONVERTER,
            "context_window": self.context_window,
            "precision": self.precision,
            "options": self.options,
            "tool_call_format": self._tool_call_format,
            "sampling": {},
            "min_dimensions": 0,
            **self.named_facts,
        }

    def write(self, folder: Path, source: dict[str, str], lock: int) -> Contents:
        """Write the weights, the adapters, the tokenizer and the byte table."""
        del source, lock  # there are no child processes
        capabilities = RUNTIMES[self.runtime].capabilities
        if self.gguf is not None:
            checkpoint, (found, vocab_size) = None, _facts_of_gguf(self.gguf, self.tokenizer_folder)
        else:
            checkpoint = Checkpoint.load(self.tokenizer_folder)
            found, vocab_size = _facts_of_checkpoint(checkpoint, self.runtime)
        facts = replace(found, **{name: value for name, value in self.named_facts.items() if not getattr(found, name)})
        for flag, given in (("--option", self.options), ("--adapter", self.adapters)):
            if facts.task is not Task.GENERATE and given:
                raise BuildError(f"{flag} {next(iter(given))}: {self.model_id} embeds, and takes none")
        template = _pair_template(checkpoint)
        write_text_files(self.tokenizer_folder, folder, vocab_size, self._tool_call_format, template)
        context_window = _context_window(self, facts)
        sequence_memory = _write_model(self, checkpoint, folder, facts.pooling, context_window)
        return replace(
            facts,
            context_window=context_window,
            sampling={name: value for name, value in facts.sampling.items() if name in capabilities},
            precision=self.precision,
            options=self.options,
            adapters={name: _adapter_path(name) for name in self.adapters},
            tool_call_format=self._tool_call_format,
            # The template of a judge closes the thinking before it begins.
            reasoning_format=detected_reasoning_format(folder / "tokenizer") if facts.task is Task.GENERATE else "",
            template_fields=template_fields(folder / "tokenizer"),
            has_images=(folder / PROJECTOR).exists(),
            sequence_memory=sequence_memory,
        )

    def clean_up(self, source: dict[str, str]) -> None:
        """There are no intermediate files."""

    @property
    def _tool_call_format(self) -> str:
        return self.tool_call_format or detected_tool_call_format(self.tokenizer_folder)


def _pair_template(checkpoint: Checkpoint | None) -> str | None:
    """Return the template of pairs of a model that judges them; None: the model has another task."""
    if checkpoint is None or checkpoint.scores is None or not checkpoint.scores.token_ids:
        return None
    own = read_chat_templates(checkpoint.folder).get("default")
    return pair_template(checkpoint.scores, own if own and writes_pairs(ChatTemplate(own, {})) else None)


def _write_model(
    spec: CpuSpec, checkpoint: Checkpoint | None, folder: Path, pooling: str, window: int
) -> SequenceMemory | None:
    """Write the weights and the adapters, and return the memory of a sequence or a step, if it is known."""
    adapters = {name: LoraAdapter.load(source) for name, source in spec.adapters.items()}
    _write_weights(spec, checkpoint, folder)
    if spec.projector is not None:
        check_projector(spec.projector)
        copy_or_link(spec.projector, folder / PROJECTOR)
    if not RUNTIMES[spec.runtime].reads_gguf:
        return None
    model, projector = min(folder.glob(f"{GGUF_NAME}*.gguf")), folder / PROJECTOR  # the first part
    name, is_f32 = str(spec.gguf or spec.checkpoint), spec.precision == "f32"
    found = projector if projector.exists() else None
    sequence_memory = check_loads(name, model, found, pooling, window, is_f32=is_f32)
    if adapters:
        base = read_gguf_base(model)
        (folder / "adapters").mkdir()
        for name, adapter in adapters.items():
            write_lora(adapter, base, folder / _adapter_path(name))
    return sequence_memory


def _write_weights(spec: CpuSpec, checkpoint: Checkpoint | None, folder: Path) -> None:
    if spec.gguf is not None:
        parts = gguf_parts(spec.gguf)
        for part, name in zip(parts, part_names(GGUF_NAME, len(parts)), strict=True):
            copy_or_link(part, folder / name)
    elif checkpoint is not None and RUNTIMES[spec.runtime].reads_gguf:
        path = folder / f"{GGUF_NAME}.gguf"
        converted = folder / "f16.gguf" if spec.precision in QUANTIZED else path
        precision = "f16" if spec.precision in QUANTIZED else spec.precision
        with Progress("converting", 0) as progress:
            write_gguf(checkpoint, converted, precision, lambda done, total: progress.set(done, total_bytes=total))
        if converted != path:
            quantize(converted, path, spec.precision)
            converted.unlink()
        if checkpoint.has_images and spec.projector is None:
            write_projector(checkpoint, folder / PROJECTOR, precision)


def _facts_of_checkpoint(checkpoint: Checkpoint, runtime: str) -> tuple[Contents, int]:
    """Return the facts of a model in its checkpoint, and the size of its vocabulary."""
    context_window = checkpoint.context_window
    if RUNTIMES[runtime].reads_gguf:
        model = read_model(checkpoint.config)
        if model.context_window < context_window:
            rule = f"the context window has no more tokens, in place of {context_window}"
            logger.warning("warning: config.json: sliding_window=%d: %s", model.context_window, rule)
        context_window = model.context_window
    scores, vocab_size = checkpoint.scores or Scores(labels=()), int(checkpoint.config["vocab_size"])
    contents = Contents(
        context_window=context_window,
        eos_token_ids=frozenset(checkpoint.eos_token_ids),
        sampling=checkpoint.sampling,
        pooling=checkpoint.pooling or "",
        min_dimensions=checkpoint.min_dimensions,
        labels=scores.labels,
        has_token_types=scores.has_token_types,
    )
    return contents, vocab_size * 2 if scores.has_token_types else vocab_size


def _facts_of_gguf(path: Path, tokenizer_folder: Path) -> tuple[Contents, int]:
    """Return the facts of a model in its GGUF file, and the size of its vocabulary."""
    header = read_gguf_facts(path)
    generation = read_json(tokenizer_folder / "generation_config.json", is_optional=True)
    eos_token_ids = named_eos_token_ids(generation) or header.eos_token_ids
    if not eos_token_ids and not header.pooling:
        raise BuildError(f"{path}: names no end-of-generation token, nor does generation_config.json")
    contents = Contents(
        context_window=header.context_length,
        eos_token_ids=frozenset(eos_token_ids),
        sampling=named_sampling(header.sampling, path.name) | named_sampling(generation),
        pooling=header.pooling,
        labels=header.labels,
    )
    return contents, header.vocab_size


def _context_window(spec: CpuSpec, facts: Contents) -> int:
    if spec.context_window is None:
        generates = facts.task is Task.GENERATE
        return facts.context_window if generates else min(facts.context_window, _MAX_EMBEDDED_TOKENS)
    if not 2 <= spec.context_window <= facts.context_window:
        raise BuildError(f"context window {spec.context_window}: this model has 2 to {facts.context_window} tokens")
    return spec.context_window


def _adapter_path(name: str) -> str:
    """Return the path of an adapter, relative to the artifact."""
    return f"adapters/{model_id_to_ensemble(name)}.gguf"
