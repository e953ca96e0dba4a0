"""The part of `build` that makes artifacts for runtimes on CPUs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import asdict

from build_engines.build import build
from build_engines.commands import build_tensorrt_llm
from build_engines.commands.builder import Builder
from build_engines.cpu_spec import CpuSpec, ModelSource, check_options
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.hub import checkpoint_folder
from build_engines.llama_cpp.gguf_tokenizer import write_tokenizer
from build_engines.model_source import check_converted, find_source, gguf_source
from build_engines.serving import check_id
from model_repository.runtimes import RUNTIMES
from model_repository.system.llama_build import usable_build


@dataclass(frozen=True, kw_only=True)
class CpuBuild(Builder):
    """Builds for a runtime on CPUs."""

    def __post_init__(self) -> None:
        options = self.options
        if RUNTIMES[options.runtime].reads_gguf:
            usable_build()  # before a download
        build_tensorrt_llm.check_unused(options)
        if options.checkpoint is not None and options.gguf is not None:
            raise BuildError("--gguf: not together with --checkpoint: write one of them")
        if options.context_window is not None and options.context_window < 2:
            raise BuildError(f"--context-window {options.context_window}: expected at least 2")
        has_files = options.checkpoint is not None or options.gguf is not None  # then MODEL is a name for clients
        for name in (options.model, *self.adapters) if has_files else self.adapters:
            check_id(name)
        check_options(options.runtime, self._precision, self.runtime_options, self.adapters)
        paths = [("tokenizer", options.tokenizer), ("mmproj", options.mmproj)]
        for option, path in (*paths, *(("adapter", folder) for folder in self.adapters.values())):
            if path is not None and not path.exists():
                raise BuildError(f"--{option} {path}: no such file or folder")

    def build(self) -> Path:
        """Find the model, download it if necessary, and return its artifact."""
        source, options = self._source(), self.options
        adapters, projector = dict(self.adapters), options.mmproj
        if RUNTIMES[options.runtime].reads_gguf:
            adapters, projector = source.adapters | adapters, projector or source.projector
            if source.checkpoint is not None:
                check_converted(source.checkpoint)
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = options.tokenizer
            if source.gguf is not None and tokenizer is None:
                tokenizer = Path(folder)
                write_tokenizer(source.gguf, tokenizer)
            spec = CpuSpec(
                **asdict(source) | {"adapters": adapters, "projector": projector},
                runtime=options.runtime,
                tokenizer=tokenizer,
                context_window=options.context_window,
                options=dict(self.runtime_options),
                tool_call_format=options.tool_call_format,
                serving=self.serving,
            )
            return build(spec, options.home / "artifacts")

    def _source(self) -> ModelSource:
        options, precision = self.options, self._precision
        digests = Digests.beside(options.home / "artifacts" / "artifact")
        if options.gguf is not None:
            return gguf_source(options.model, options.gguf, precision, digests)
        if options.checkpoint is not None:
            folder, _ = checkpoint_folder(options.checkpoint, digests)
            return ModelSource(model_id=options.model, checkpoint=folder, precision=precision or "f16")
        return find_source(options.model, precision, digests)

    @property
    def _precision(self) -> str | None:
        return self.options.precision and self.options.precision.lower()  # type: ignore[no-any-return]
