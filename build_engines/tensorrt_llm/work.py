"""The steps of a build on disk. The output of a finished step is kept and reused."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from build_engines import artifact
from build_engines.errors import BuildError
from build_engines.tensorrt_llm.checks import TARGET_VERSION
from build_engines.tensorrt_llm.recipe import (
    PLACEHOLDERS,
    Folders,
    Recipe,
    Step,
    checkpoint_step,
    engine_step,
)
from build_engines.tensorrt_llm.tool import ToolRun, run_tool

logger = logging.getLogger(__name__)

RECORD = ".step.json"  # the last file in the folder of a finished step


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The folder for the steps of one model. Its lock is necessary for writing.

    The name of a step's folder has a digest of its command and inputs, so a build with other limits reuses the
    converted checkpoint.
    """

    folder: Path
    recipe: Recipe
    checkpoint: Path
    examples: Path  # a clone of TensorRT-LLM
    source_digest: str  # digest of the first step's inputs and the tools' version
    run: Callable[[ToolRun], None] = field(default=run_tool)

    @property
    def folders(self) -> Folders:
        """The folders of the steps."""
        # The number of workers does not change the output.
        recipe, names = replace(self.recipe, num_workers=1), []
        digest = self.source_digest
        for step in (checkpoint_step(recipe, PLACEHOLDERS), engine_step(recipe, PLACEHOLDERS)):
            digest = hashlib.sha256(json.dumps([digest, *step.command]).encode()).hexdigest()
            names.append(f"{step.name}-{digest[:12]}")
        converted, engine = (self.folder / name for name in names)
        return Folders(checkpoint=self.checkpoint, examples=self.examples, converted=converted, engine=engine)

    @property
    def is_finished(self) -> bool:
        """Whether the engine is complete."""
        return is_finished(self.folders.engine)

    def check_programs(self) -> None:
        """Check that TensorRT-LLM's examples, which have the converters, exist.

        Raises:
            BuildError: names their source.
        """
        program = self.examples / checkpoint_step(self.recipe, self.folders).program
        if not program.is_file():
            raise BuildError(
                f"{program}: no such file: --tensorrt-llm-examples DIR must be a clone of TensorRT-LLM's repository "
                f"at tag v{TARGET_VERSION}; the wheel has no converters"
            )

    def finish(self, locks: tuple[int, ...]) -> Path:
        """Run the missing steps, and return the folder of the engine.

        Args:
            locks: descriptors of locks, which the tools inherit.

        Raises:
            BuildError: a tool failed, or an output file is missing.
        """
        self._remove_leftovers()
        folders = self.folders
        if not self.is_finished:
            if not is_finished(folders.converted):
                self._run_aside(folders.converted, locks, self._checkpoint_step)
            self._run_aside(folders.engine, locks, self._engine_step)
        return folders.engine

    def remove(self) -> None:
        """Remove the output of the steps."""
        for folder in (self.folders.converted, self.folders.engine):
            shutil.rmtree(folder, ignore_errors=True)
        self._remove_leftovers()

    def _checkpoint_step(self, output: Path) -> Step:
        return checkpoint_step(self.recipe, replace(self.folders, converted=output))

    def _engine_step(self, output: Path) -> Step:
        return engine_step(self.recipe, replace(self.folders, engine=output))

    def _run_aside(self, target: Path, locks: tuple[int, ...], step_into: Callable[[Path], Step]) -> None:
        # The name is new each time, because children of a killed tool may still be writing to an old folder.
        with artifact.written_aside(target) as aside:  # a present target has damaged files
            step = step_into(aside)
            log = self.folder / f"{step.name}.log"
            logger.info("%s  %s", step.name.ljust(10), step.text)
            self.run(
                ToolRun(
                    name=step.name,
                    command=step.command,
                    folder=self.folder,
                    log=log,
                    output=aside,
                    num_bytes=step.num_bytes,
                    locks=locks,
                )
            )
            num_bytes = _record(step, log)
        logger.info("%s  done: %.1f GB", step.name.ljust(10), num_bytes / 1e9)

    def _remove_leftovers(self) -> None:
        for leftover in self.folder.glob(".*.*"):
            logger.info("removing %s of a killed build", leftover)
            shutil.rmtree(leftover, ignore_errors=True)


def is_finished(folder: Path) -> bool:
    """Whether a step's folder has its record, and all files in their recorded sizes."""
    try:
        sizes: dict[str, int] = json.loads((folder / RECORD).read_text(encoding="utf-8"))["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def _record(step: Step, log: Path) -> int:
    """Check the output of a tool, write its record, and return its size.

    Raises:
        BuildError: a file is missing or empty.
    """
    for name in step.files:
        path = step.output / name
        if not path.is_file() or not path.stat().st_size:
            state = "is empty" if path.is_file() else "is missing"
            raise BuildError(
                f"{step.name}: {name} {state}, although {step.command[0]} had exit status 0; its log: {log}"
            )
    files = [path for path in step.output.rglob("*") if path.is_file()]
    sizes = {str(path.relative_to(step.output)): path.stat().st_size for path in files}
    record = {"command": step.command, "sizes": sizes}
    (step.output / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
    return sum(sizes.values())
