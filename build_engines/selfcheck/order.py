"""What a self-check is asked to do: which model, from where, and how it is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from build_engines.catalog import Catalog
from build_engines.errors import BuildError
from build_engines.gpus import GPUS, Gpu
from build_engines.model_entry import ModelEntry
from build_engines.planner.plan import plan
from build_engines.planner.sizing import Plan
from build_engines.selfcheck.observations import NUM_SLOTS
from build_engines.tensorrt_llm.checks import gpu_of
from model_repository.engine.tensorrt_llm.options import Backend
from model_repository.machine import read_machine

ALIAS = "conch-selfcheck"
DEMO_CATALOG = Path(str(resources.files("build_engines").joinpath("demo_catalog.yaml")))
DEMO_CHECKPOINT = Path(str(resources.files("build_engines").joinpath("demo", "checkpoint")))
_DEMO = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for; None is what `build` makes of it."""

    models: Sequence[str] = ()
    checkpoints: Sequence[str] = ()  # of the models, in their order; none: from the hub
    catalogs: Sequence[Path] = ()
    backend: Backend = Backend.ENGINE
    gpu: str | None = None
    num_gpus: int | None = None
    precision: str | None = None
    max_seq_len: int | None = None
    max_batch_size: int | None = None
    examples: Path | None = None
    state_dir: Path
    report_dir: Path
    ready_timeout_s: float

    def __post_init__(self) -> None:
        if self.checkpoints and len(self.checkpoints) != len(self.models):
            rule = f"expected none, or one for each MODEL in the same order, of which there are {len(self.models)}"
            raise BuildError(f"--checkpoint: given {len(self.checkpoints)} times: {rule}")

    @property
    def is_of_demo(self) -> bool:
        """Whether no model was named: then the demo model of this project is checked, whose checkpoint is here."""
        return not self.models

    def chosen(self) -> tuple[ModelEntry, str]:
        """Return the smallest of the models, and where its checkpoint is.

        Raises:
            BuildError: the catalog has no such model.
        """
        catalog = Catalog.load(*self._catalogs())
        if self.is_of_demo:
            return catalog.find(_DEMO), str(DEMO_CHECKPOINT)
        entries = [catalog.find(model) for model in self.models]
        checkpoints = self.checkpoints or [entry.model_id for entry in entries]
        pairs = zip(entries, checkpoints, strict=True)
        return min(pairs, key=lambda pair: pair[0].architecture.num_parameters)

    def plan(self, entry: ModelEntry) -> Plan:
        """Return the plan that `build` makes.

        Raises:
            BuildError: it does not fit, or nobody knows this machine's GPU.
        """
        gpu: Gpu = GPUS[self.gpu] if self.gpu is not None else gpu_of(read_machine())
        return plan(
            entry,
            gpu,
            num_gpus=self.num_gpus,
            precision=self.precision,
            max_seq_len=self.max_seq_len,
            max_batch_size=self.max_batch_size,
        )

    def build_arguments(self, entry: ModelEntry, checkpoint: str) -> list[str]:
        """Return the arguments of `python`."""
        arguments = ["-m", "build_engines", "build", entry.model_id, "--runtime", "tensorrt_llm"]
        arguments += ["--checkpoint", checkpoint, "--backend", str(self.backend), "--state-dir", str(self.state_dir)]
        arguments += ["--alias", ALIAS, "--max-sequences", str(NUM_SLOTS)]
        if self.backend is Backend.ENGINE:
            arguments += ["--option", "prompt_logprobs=true"]  # the table asks for them
        for catalog in self._catalogs():
            arguments += ["--catalog", str(catalog)]
        optional: dict[str, object] = {
            "--gpu": self.gpu,
            "--gpus": self.num_gpus,
            "--precision": self.precision,
            "--max-seq-len": self.max_seq_len,
            "--max-batch-size": self.max_batch_size,
            "--tensorrt-llm-examples": self.examples,
        }
        for flag, value in optional.items():
            arguments += [] if value is None else [flag, str(value)]
        return arguments

    def _catalogs(self) -> list[Path]:
        return [*self.catalogs, *([DEMO_CATALOG] if self.is_of_demo else [])]
