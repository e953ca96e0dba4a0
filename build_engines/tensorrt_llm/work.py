"""The steps of a build on disk: what one has finished stays, and is not done again."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

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

RECORD = ".step.json"  # in a finished step's folder; the last file of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The folder in which the steps of one model leave what they make; its lock is held where it is written to.

    A step's folder is named by a digest of its command and of what it reads, so a build with other limits finds the
    converted checkpoint of the one before it.
    """

    folder: Path
    recipe: Recipe
    checkpoint: Path
    examples: Path  # a clone of TensorRT-LLM
    source_digest: str  # of everything that the first step reads, and of the tools' version
    run: Callable[[ToolRun], None] = field(default=run_tool)

    @property
    def folders(self) -> Folders:
        """Where the steps read and write."""
        # The number of workers changes nothing in what is written.
        recipe, names = replace(self.recipe, num_workers=1), []
        digest = self.source_digest
        for step in (checkpoint_step(recipe, PLACEHOLDERS), engine_step(recipe, PLACEHOLDERS)):
            digest = hashlib.sha256(json.dumps([digest, *step.command]).encode()).hexdigest()
            names.append(f"{step.name}-{digest[:12]}")
        converted, engine = (self.folder / name for name in names)
        return Folders(checkpoint=self.checkpoint, examples=self.examples, converted=converted, engine=engine)

    @property
    def is_finished(self) -> bool:
        """Whether the engine is there."""
        return is_finished(self.folders.engine)

    def check_programs(self) -> None:
        """Check that TensorRT-LLM's examples are there, of which the converters are.

        Raises:
            BuildError: says where to get them.
        """
        program = self.examples / checkpoint_step(self.recipe, self.folders).program
        if not program.is_file():
            raise BuildError(
                f"{program}: no such file: --tensorrt-llm-examples DIR must be a clone of TensorRT-LLM's repository "
                f"at tag v{TARGET_VERSION}; the wheel has no converters"
            )

    def finish(self, held: tuple[int, ...]) -> Path:
        """Do the steps that are not done; return the folder of the engine.

        Args:
            held: descriptors of locks, which the tools hold too.

        Raises:
            BuildError: a tool failed, or left other files than it should.
        """
        self._remove_leftovers()
        folders = self.folders
        if not self.is_finished:
            if not is_finished(folders.converted):
                self._run_aside(folders.converted, held, self._checkpoint_step)
            self._run_aside(folders.engine, held, self._engine_step)
        return folders.engine

    def remove(self) -> None:
        """Remove what the steps have left."""
        for folder in (self.folders.converted, self.folders.engine):
            shutil.rmtree(folder, ignore_errors=True)
        self._remove_leftovers()

    def _checkpoint_step(self, output: Path) -> Step:
        return checkpoint_step(self.recipe, replace(self.folders, converted=output))

    def _engine_step(self, output: Path) -> Step:
        return engine_step(self.recipe, replace(self.folders, engine=output))

    def _run_aside(self, target: Path, held: tuple[int, ...], step_into: Callable[[Path], Step]) -> None:
        # A new name each time: what a killed tool's children still write goes where nobody looks.
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=self.folder))
        aside.chmod(0o755)
        step = step_into(aside)
        log = self.folder / f"{step.name}.log"
        logger.info("%s  %s", step.name.ljust(10), step.text)
        try:
            self.run(
                ToolRun(
                    what=step.name,
                    command=step.command,
                    folder=self.folder,
                    log=log,
                    output=aside,
                    num_bytes=step.num_bytes,
                    held=held,
                )
            )
            num_bytes = _record(step, log)
            shutil.rmtree(target, ignore_errors=True)  # one whose files have been damaged
            aside.rename(target)
            logger.info("%s  done: %.1f GB", step.name.ljust(10), num_bytes / 1e9)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _remove_leftovers(self) -> None:
        for leftover in self.folder.glob(".*.*"):
            logger.info("removing %s, which a killed build left", leftover)
            shutil.rmtree(leftover, ignore_errors=True)


def is_finished(folder: Path) -> bool:
    """Whether a step's folder has its record, and every file of it in its size."""
    try:
        sizes: dict[str, int] = json.loads((folder / RECORD).read_text(encoding="utf-8"))["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def _record(step: Step, log: Path) -> int:
    """Check what a tool left, and write it down; return how many bytes it is.

    Raises:
        BuildError: a file is missing or empty.
    """
    for name in step.files:
        path = step.output / name
        if not path.is_file() or not path.stat().st_size:
            what = "is empty" if path.is_file() else "is missing"
            raise BuildError(f"{step.name}: {name} {what}, though {step.command[0]} ended well; its log: {log}")
    files = [path for path in step.output.rglob("*") if path.is_file()]
    sizes = {str(path.relative_to(step.output)): path.stat().st_size for path in files}
    record = {"command": step.command, "sizes": sizes}
    (step.output / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
    return sum(sizes.values())
