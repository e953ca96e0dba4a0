"""A model of the catalog for the tensorrt_llm runtime: as an engine, or as a checkpoint for the PyTorch backend."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.artifact import Contents, copy_or_link
from build_engines.errors import BuildError
from build_engines.lock import lock_path, locked, locked_if_free
from build_engines.model_entry import ModelEntry, chat_template_text
from build_engines.peft import FILES as ADAPTER_FILES
from build_engines.planner.sizing import Plan
from build_engines.serving import Serving
from build_engines.tensorrt_llm.checks import Check, check_room, check_version, machine_requires
from build_engines.tensorrt_llm.lora import copy_adapter
from build_engines.tensorrt_llm.options import RUNTIME, build_record, runtime_options
from build_engines.tensorrt_llm.recipe import Recipe, SourceFormat
from build_engines.tensorrt_llm.source import READY_PRECISIONS, Source
from build_engines.tensorrt_llm.tool import ToolRun, run_tool
from build_engines.tensorrt_llm.work import RECORD, Work
from build_engines.text_files import detected_reasoning_format, template_fields, write_text_files
from model_repository.contract.tensors import model_id_to_ensemble
from model_repository.engine.tensorrt_llm.options import Backend
from model_repository.system.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools of a build. Only the version of TensorRT-LLM changes the artifact."""

    machine: Machine
    work_dir: Path
    examples: Path  # a clone of TensorRT-LLM
    skipped_checks: frozenset[Check] = frozenset()
    keeps_work: bool = False
    run: Callable[[ToolRun], None] = field(default=run_tool)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtLlmSpec:
    """A model to build."""

    recipe: Recipe
    source: Source
    revision: str | None  # the commit; None: a folder
    backend: Backend
    options: dict[str, str]  # the model's and the user's options of the runtime
    adapters: dict[str, Path]  # folders in PEFT's format, by name
    tool_call_format: str
    serving: Serving
    tools: Tools
    runtime: str = field(default=RUNTIME, init=False)

    def __post_init__(self) -> None:
        _check_format(self.recipe, self.backend)

    @property
    def plan(self) -> Plan:
        """The layout over GPUs."""
        return self.recipe.plan

    @property
    def model_id(self) -> str:
        """The id in the catalog."""
        return self.plan.entry.model_id

    def source_files(self) -> dict[str, Path]:
        """Return every source file by its name in the manifest."""
        files = self.source.files()
        for adapter, folder in self.adapters.items():
            files |= {f"adapters/{model_id_to_ensemble(adapter)}/{name}": folder / name for name in ADAPTER_FILES}
        return files

    def key_parts(self) -> dict[str, Any]:
        """Return the inputs of the build beside the sources."""
        return {
            "build": self._build_record(),
            "requires": self._requires(),
            "options": self._all_options(),
            "tool_call_format": self.tool_call_format,
            "eos_token_ids": _eos_token_ids(self.plan.entry, self.source),
            "chat_template": chat_template_text(self.plan.entry),
            "adapters": sorted(self.adapters),
        }

    def write(self, folder: Path, source: dict[str, str], lock: int) -> Contents:
        """Run the steps, and write engine, tokenizer, byte table and adapters.

        Raises:
            BuildError: a check or a tool failed.
        """
        if self.backend is Backend.ENGINE:
            self._write_engine(folder / "engine", source, lock)
        else:
            _link_files(self.source.files(), folder / "checkpoint")
        template = chat_template_text(self.plan.entry)
        vocab_size = int(self.source.checkpoint.config["vocab_size"])
        write_text_files(self.source.folder, folder, vocab_size, self.tool_call_format, template)
        for name, adapter in self.adapters.items():
            copy_adapter(adapter, folder / _adapter_path(name))
        return Contents(
            context_window=self.plan.max_seq_len,
            eos_token_ids=frozenset(_eos_token_ids(self.plan.entry, self.source)),
            sampling=self.source.checkpoint.sampling,
            precision=self.plan.precision,
            options=self._all_options(),
            requires=self._requires(),
            build=self._build_record(),
            adapters={name: _adapter_path(name) for name in self.adapters},
            tool_call_format=self.tool_call_format,
            reasoning_format=detected_reasoning_format(folder / "tokenizer"),
            template_fields=template_fields(folder / "tokenizer"),
            has_images=self.plan.entry.architecture.vision is not None,
            gpu_bytes=self.plan.parallelism.num_gpus * (self.plan.memory.total_bytes - self.plan.memory.free_bytes),
        )

    def clean_up(self, source: dict[str, str]) -> None:
        """Remove intermediate files, unless they are kept for the next build."""
        if self.backend is Backend.ENGINE and not self.tools.keeps_work:
            work = self._work(source)
            if not work.folder.is_dir():
                return
            # Another build of this model with other limits may be using the converted checkpoint.
            with locked_if_free(lock_path(work.folder), f"cleans up after {self.model_id}") as is_free:
                if is_free:
                    work.remove()

    def _write_engine(self, target: Path, source: dict[str, str], lock: int) -> None:
        work = self._work(source)
        work.folder.mkdir(parents=True, exist_ok=True)
        with locked(lock_path(work.folder), f"builds {self.model_id}") as work_lock:
            if not work.is_finished:
                check_room(work.folder, target.parent, self.recipe, self.tools.skipped_checks)
                work.check_programs()
            engine = work.finish((lock, work_lock))
            files = {str(path.relative_to(engine)): path for path in engine.rglob("*") if path.is_file()}
            _link_files({name: path for name, path in files.items() if name != RECORD}, target)

    def _work(self, source: dict[str, str]) -> Work:
        inputs = [
            self._requires(),
            {name: digest for name, digest in source.items() if not name.startswith("adapters/")},
        ]
        return Work(
            folder=self.tools.work_dir.resolve() / model_id_to_ensemble(self.model_id),
            recipe=self.recipe,
            checkpoint=self.source.folder.resolve(),
            examples=self.tools.examples.resolve(),
            source_digest=hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
            run=self.tools.run,
        )

    def _requires(self) -> dict[str, str]:
        version = check_version(self.tools.machine) if self.backend is Backend.ENGINE else None
        return machine_requires(self.plan, version)

    def _build_record(self) -> dict[str, Any]:
        return build_record(self.recipe, self.backend, self.revision)

    def _all_options(self) -> dict[str, str]:
        return runtime_options(self.recipe, self.backend) | self.options


def _check_format(recipe: Recipe, backend: Backend) -> None:
    """Check that a backend can use the checkpoint's format. The PyTorch backend does not convert it."""
    found, precision = recipe.source_format, recipe.plan.precision
    expected = [each for each, ready in READY_PRECISIONS.items() if ready is precision] or [SourceFormat.SIXTEEN_BIT]
    if backend is Backend.ENGINE:
        expected = [SourceFormat.SIXTEEN_BIT, SourceFormat.FP8_ROWWISE]
    if found not in expected:
        rule = f"expected a checkpoint in {' or '.join(expected)}"
        raise BuildError(f"--backend {backend} --precision {precision}: the checkpoint is in {found}: {rule}")


def _eos_token_ids(entry: ModelEntry, source: Source) -> tuple[int, ...]:
    """Return the ids that end an answer: those of the catalog and of the checkpoint."""
    return tuple(dict.fromkeys((*entry.eos_token_ids, *source.checkpoint.eos_token_ids)))


def _adapter_path(name: str) -> str:
    """Return the path of an adapter, relative to the artifact."""
    return f"adapters/{model_id_to_ensemble(name)}"


def _link_files(files: Mapping[str, Path], target: Path) -> None:
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        copy_or_link(path, target / name)
