"""The part of `build` that makes artifacts for the tensorrt_llm runtime."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from build_engines.build import build
from build_engines.catalog import Catalog
from build_engines.checkpoint_entry import checkpoint_in, find_entry
from build_engines.commands.builder import Builder
from build_engines.commands.plan import add_catalog_option, add_layout_options
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.gpus import GPUS, Gpu, check_replicas
from build_engines.hub import HubReference, checkpoint_folder
from build_engines.listed_classes import check_listed
from build_engines.model_entry import ModelEntry, Precision
from build_engines.planner.memory import gigabytes
from build_engines.planner.plan import plan
from build_engines.planner.sizing import Plan
from build_engines.serving import check_names
from build_engines.store import stored
from build_engines.tensorrt_llm.checks import TARGET_VERSION, Check, check_gpus, check_version, gpu_of
from build_engines.tensorrt_llm.imported import imported
from build_engines.tensorrt_llm.lora import lora_limits
from build_engines.tensorrt_llm.mpi import MpiJob
from build_engines.tensorrt_llm.options import CONTEXT_LOGITS, RUNTIME, checked_options, without_latent_chunks
from build_engines.tensorrt_llm.recipe import PLACEHOLDERS, Folders, Recipe, SourceFormat, checkpoint_step, engine_step
from build_engines.tensorrt_llm.source import Source
from build_engines.tensorrt_llm.spec import TensorRtLlmSpec, Tools
from build_engines.tensorrt_llm.tool import ToolRun, run_tool
from build_engines.text_files import detected_tool_call_format
from model_repository.engine.tensorrt_llm.options import Backend
from model_repository.engine.tensorrt_llm.releases import release_of
from model_repository.system.command_parser import actions_by_flag
from model_repository.system.machine import Machine, installed_version, read_machine, why_unfit

logger = logging.getLogger(__name__)

EXAMPLES = Path("TensorRT-LLM")


def add_to(command: argparse.ArgumentParser) -> None:
    """Add the options of this runtime."""
    group = command.add_argument_group(f"with --runtime {RUNTIME}")
    add = group.add_argument
    add_catalog_option(group)
    add("--gpu", choices=sorted(GPUS), help="kind of GPU to build for (this machine's)")
    add_layout_options(group)
    add("--max-seq-len", type=int, metavar="N", help="the same as --context-window (the catalog's)")
    add("--max-num-tokens", type=int, metavar="N", help="tokens in one step (the planner's, which is the maximum)")
    add(
        "--backend",
        choices=[*map(str, Backend)],
        help="engine compiles; pytorch loads the checkpoint (engine, if the model can be compiled here)",
    )
    add(
        "--tensorrt-llm-examples",
        type=Path,
        metavar="DIR",
        help=f"a clone of TensorRT-LLM's repository at tag v{TARGET_VERSION}, which has the converters ({EXAMPLES})",
    )
    add("--calibration-dataset", metavar="NAME|DIR", help="texts for the FP8 scales (the tool's, which it downloads)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="ranks that are converted and compiled at the same time (the GPUs of a node)",
    )
    add("--work-dir", type=Path, metavar="DIR", help="for intermediate files (STATE_DIR/work)")
    add("--keep-work", action="store_true", help="keep the converted checkpoint, for a build with other limits")
    checks = [*map(str, Check)]
    add("--skip-check", choices=checks, action="append", help="skip the check of this estimate; repeatable")
    add("--dry-run", action="store_true", help="print the plan and the exact commands, on any machine; needs --gpu")


_PARSER = argparse.ArgumentParser(add_help=False)
add_to(_PARSER)
_FLAGS = tuple(action.dest for action in actions_by_flag(_PARSER).values())
_COMPILING_FLAGS = ("tensorrt_llm_examples", "calibration_dataset", "workers", "work_dir", "keep_work", "skip_check")
_FOREIGN_FLAGS = ("gguf", "tokenizer", "mmproj")
# Options that ask for another artifact than the one in the store.
_OF_ARTIFACT = {"checkpoint", "context_window", "option", "adapter", "tool_call_format", *_FLAGS} - {"catalog"}


def check_unused(options: argparse.Namespace) -> None:
    """Check that another runtime has no option of this one.

    Raises:
        BuildError: names the first such option.
    """
    for name in _FLAGS:
        if getattr(options, name):
            raise BuildError(f"--{name.replace('_', '-')}: goes with --runtime {RUNTIME}")


@dataclass(frozen=True, kw_only=True)
class TensorRtLlmBuild(Builder):
    """Builds for TensorRT-LLM."""

    def __post_init__(self) -> None:
        for name in _FOREIGN_FLAGS:
            if getattr(self.options, name) is not None:
                raise BuildError(f"--{name}: not with --runtime {RUNTIME}: use --checkpoint")
        if None not in (self.options.context_window, self.options.max_seq_len):
            raise BuildError(f"--context-window {self.options.context_window}: --max-seq-len is the same: write one")
        for name in ("workers", "max_num_tokens"):
            value = getattr(self.options, name)
            if value is not None and value < 1:
                raise BuildError(f"--{name.replace('_', '-')} {value}: expected at least 1")

    def build(self) -> Path | None:
        """Build a model of the catalog and return its artifact; None: a dry run, or another rank than 0 of MPI.

        Raises:
            BuildError: one line with the input and the rule, or with a tool's failure and its usual cause.
        """
        artifacts_dir = self.options.home / "artifacts"
        if self.options.dry_run:
            for line in self.script():
                print(line)
            return None
        machine = read_machine()
        fitting = self.of_release(machine.tensorrt_llm_version)
        job = MpiJob.of(os.environ, fitting.work_dir)
        if job is None:
            if artifact_dir := fitting.stored_artifact(machine):
                return artifact_dir
            return build(fitting.spec(machine, run_tool), artifacts_dir)
        if job.rank:
            job.follow()
            return None
        with job.led():
            return build(fitting.spec(machine, job.run), artifacts_dir)

    @cached_property
    def entry(self) -> ModelEntry:
        """The model: of the catalog, or its checkpoint."""
        entry = find_entry(Catalog.load(*self.options.catalog), self.options.model, self.options.checkpoint)
        entry.check_generates()
        if not entry.backends:
            check_listed(self.options.model, entry.architecture.class_name)
        return entry

    @property
    def backend(self) -> Backend:
        """By default the first of the model's, but with --ready the one that compiles nothing."""
        is_ready = self.options.ready and Backend.PYTORCH in self.entry.backends
        return Backend(self.options.backend or (Backend.PYTORCH if is_ready else self.entry.backends[0]))

    @property
    def work_dir(self) -> Path:
        """Beside the artifacts by default."""
        return Path(self.options.work_dir or self.options.home / "work")

    @property
    def _checkpoint(self) -> str | None:
        return self.options.checkpoint or checkpoint_in(self.options.model)

    @property
    def _all_options(self) -> Mapping[str, str]:
        """The options of the runtime: the model's, and the user's, which win."""
        return {**self.entry.runtime_options, **self.runtime_options}

    @property
    def _has_context_logits(self) -> bool:
        is_wanted = self._all_options.get(CONTEXT_LOGITS) == "true"
        return is_wanted and self.backend is Backend.ENGINE

    def plan(self, machine: Machine | None) -> Plan:
        """Return the layout over the GPUs.

        Args:
            machine: its GPUs are planned for without --gpu; None: --gpu is required.
        """
        options, entry = self.options, self.entry
        for name in _COMPILING_FLAGS:
            if self.backend is Backend.PYTORCH and getattr(options, name):
                raise BuildError(f"--{name.replace('_', '-')}: nothing is compiled with --backend {self.backend}")
        if self.backend not in entry.backends:
            rule = f"the backend has no {entry.architecture.class_name}: use --backend {' or '.join(entry.backends)}"
            raise BuildError(f"--backend {self.backend}: cannot run {entry.model_id}: {rule}")
        gpu = self._gpu(machine)
        planned = plan(
            entry,
            gpu,
            num_gpus=options.gpus,
            num_nodes=options.nodes,
            tp_size=options.tensor,
            precision=options.precision or self._ready_precision(gpu),
            max_seq_len=options.max_seq_len or options.context_window,
            max_batch_size=options.max_batch_size,
            has_context_logits=self._has_context_logits,
            has_fp8_checkpoint=self.backend is Backend.PYTORCH,
            has_cuda_graphs=self.backend is Backend.PYTORCH,
        )
        if self.backend is Backend.ENGINE and not planned.is_converted:
            rule = f"goes with --backend {Backend.PYTORCH}, and a checkpoint in {SourceFormat.MODELOPT_NVFP4}"
            raise BuildError(f"--precision {planned.precision}: {rule}")
        max_num_tokens = options.max_num_tokens or planned.max_num_tokens
        if max_num_tokens > planned.max_num_tokens:
            limit = planned.max_num_tokens
            raise BuildError(f"--max-num-tokens {max_num_tokens}: the plan has memory for {limit} in one step")
        if max_num_tokens < planned.max_batch_size:
            rule = f"a step has a token of each sequence: expected at least --max-batch-size {planned.max_batch_size}"
            raise BuildError(f"--max-num-tokens {max_num_tokens}: {rule}")
        self.serve_options.check_batch(entry.model_id, planned.max_batch_size)
        return dataclasses.replace(planned, max_num_tokens=max_num_tokens)

    def recipe(self, planned: Plan, source: Source | None) -> Recipe:
        """Return the recipe; without a source, for the public 16-bit checkpoint."""
        texts = self.options.calibration_dataset
        recipe = Recipe(
            plan=planned,
            has_context_logits=self._has_context_logits,
            lora=lora_limits(self.adapters, planned.entry),
            calibration_dataset=str(Path(texts).resolve()) if texts and Path(texts).is_dir() else texts,
            num_workers=self.options.workers,
        )
        if source is not None:
            recipe = dataclasses.replace(
                recipe, source_format=source.format, has_duplicated_kv_heads=source.has_duplicated_kv_heads
            )
        if texts is not None and not recipe.is_quantized:
            raise BuildError("--calibration-dataset: goes with --precision fp8: nothing is calibrated here")
        return recipe

    def spec(self, machine: Machine, run: Callable[[ToolRun], None]) -> TensorRtLlmSpec:
        """Return the spec of a build on a machine, after downloading its checkpoint if necessary."""
        planned = self.plan(machine)
        entry = planned.entry
        self._check(planned)
        if self.backend is Backend.PYTORCH:
            check_listed(entry.model_id, entry.architecture.class_name, machine.tensorrt_llm_version)
        self.recipe(planned, None)  # the checks of the recipe and of this machine precede hours of a download
        if self.backend is Backend.ENGINE:
            check_version(machine)
        if self.backend is Backend.ENGINE or self.options.gpu is None:
            check_gpus(planned, machine)
        if self.serve_options.replicas > 1:
            num_gpus, num_nodes = planned.parallelism.num_gpus_per_node, planned.parallelism.num_nodes
            check_replicas(entry.model_id, self.serve_options.replicas, num_gpus, num_nodes, machine)
        digests = Digests.beside(self.options.home / "artifacts" / "artifact")
        checkpoint = self._checkpoint or f"{self._repository(planned.precision)}@main"
        if self.options.ready:
            logger.info("backend     %s: %s, %s", self.backend, checkpoint, planned.precision)
        folder, revision = checkpoint_folder(checkpoint, digests, is_imported=True)
        source = Source.load(imported(folder, self.work_dir, planned.checkpoint_bytes, run), entry)
        return TensorRtLlmSpec(
            recipe=self.recipe(planned, source),
            source=source,
            revision=revision,
            backend=self.backend,
            options=self._options_of(planned),
            adapters=dict(self.adapters),
            tool_call_format=(
                self.options.tool_call_format or entry.tool_call_format or detected_tool_call_format(source.folder)
            ),
            serving=dataclasses.replace(self.serving, aliases=self._aliases(entry)),
            tools=Tools(
                machine=machine,
                work_dir=self.work_dir,
                examples=self.options.tensorrt_llm_examples or EXAMPLES,
                skipped_checks=frozenset(Check(name) for name in self.options.skip_check or ()),
                keeps_work=self.options.keep_work,
                run=run,
            ),
        )

    def stored_artifact(self, machine: Machine) -> Path | None:
        """Return the newest artifact of the model that this machine can serve; None: there is none as asked for."""
        options = self.options
        if not options.ready or self._checkpoint is not None or any(getattr(options, name) for name in _OF_ARTIFACT):
            return None
        found = [
            (each.manifest.created, each.folder)
            for each in stored(options.home)
            if each.manifest is not None
            and (each.manifest.model_id, each.manifest.runtime) == (self.entry.model_id, RUNTIME)
            and options.precision in (None, each.manifest.precision)
            and why_unfit(each.manifest.requires, machine) is None
        ]
        if not found:
            return None
        _, folder = max(found)
        logger.info("store       %s, as it was built: an option such as --backend builds anew", folder.name)
        self.name_stored(folder, dataclasses.replace(self.serving, aliases=self._aliases(self.entry)))
        return folder

    def of_release(self, version: str | None) -> TensorRtLlmBuild:
        """Return the options for a release of TensorRT-LLM: without engines the PyTorch backend, if none is named."""
        is_named = self.options.backend is not None
        if is_named or release_of(version).has_engines or Backend.PYTORCH not in self.entry.backends:
            return self
        logger.warning("backend     %s, since TensorRT-LLM %s has no engines", Backend.PYTORCH, version)
        changes = {"backend": str(Backend.PYTORCH), "tensorrt_llm_examples": None}  # there are no converters to find
        options = argparse.Namespace(**vars(self.options) | changes)
        return dataclasses.replace(self, options=options)

    def script(self) -> Iterator[str]:
        """Yield the plan and the commands, independent of this machine."""
        planned, folders, source = self.plan(None), PLACEHOLDERS, None
        given = self._checkpoint
        if given is not None and Path(given).is_dir():
            source = Source.load(Path(given), planned.entry)
            folders = dataclasses.replace(folders, checkpoint=Path(given))
        elif given is not None:
            HubReference.parse(given)
        if self.options.tensorrt_llm_examples is not None:
            folders = dataclasses.replace(folders, examples=self.options.tensorrt_llm_examples)
        self._check(planned)
        return _script(self.recipe(planned, source), self.backend, folders)

    def _check(self, planned: Plan) -> None:
        """Check the options without this machine and the checkpoint."""
        options = self._options_of(planned)
        if options.get("chunked_prefill") == "false" and planned.max_num_tokens < planned.max_input_len:
            rule = f"a step takes {planned.max_num_tokens} tokens, and a prompt may have {planned.max_input_len}"
            remedy = "use a smaller --max-seq-len or a larger --max-num-tokens"
            raise BuildError(f"option chunked_prefill=false: {rule}: {remedy}")
        if options.get("cuda_graph_mode") == "true" and self.adapters:
            raise BuildError("--option cuda_graph_mode=true: not with --adapter")
        self.serve_options.check_llm(
            self.backend, pp_size=planned.parallelism.pp_size, has_adapters=bool(self.adapters)
        )
        check_names(planned.entry.model_id, self._aliases(planned.entry), self.adapters)

    def _options_of(self, planned: Plan) -> dict[str, str]:
        options = checked_options(self._all_options, self.backend)
        return without_latent_chunks(options, planned, self.backend, installed_version(RUNTIME))

    def _aliases(self, entry: ModelEntry) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*entry.aliases, *self.serving.aliases)))

    def _ready_precision(self, gpu: Gpu) -> Precision | None:
        """Return the first precision with a ready checkpoint for this GPU; None: the model's default."""
        if not self.options.ready or self.options.checkpoint is not None or self.backend is Backend.ENGINE:
            return None
        ready = self.entry.ready_checkpoints
        return next((each for each in self.entry.precisions if each in ready and each.runs_on(gpu)), None)

    def _repository(self, precision: Precision) -> str:
        """Return the repository of the checkpoint: the PyTorch backend converts none, so it takes a ready one.

        Raises:
            BuildError: there is none in this precision.
        """
        entry = self.entry
        if self.backend is Backend.ENGINE or precision == entry.precisions[0] or not precision.is_quantized:
            return entry.model_id
        if precision not in entry.ready_checkpoints:
            rule = f"the catalog has no ready checkpoint of {entry.model_id} in {precision}"
            raise BuildError(f"--precision {precision}: {rule}: name one with --checkpoint OWNER/NAME@REVISION")
        return entry.ready_checkpoints[precision]

    def _gpu(self, machine: Machine | None) -> Gpu:
        if self.options.gpu is not None:
            return GPUS[self.options.gpu]
        if machine is None:
            raise BuildError(f"--dry-run needs --gpu {'|'.join(GPUS)}")
        return gpu_of(machine)


def _script(recipe: Recipe, backend: Backend, folders: Folders) -> Iterator[str]:
    """Yield a build as a shell script: the plan in comments, then the commands."""
    plan = recipe.plan
    yield from (f"# {line}" for line in _plan_lines(recipe))
    if backend is Backend.PYTORCH:
        yield "# no commands: the PyTorch backend loads the checkpoint"
        return
    if plan.parallelism.num_nodes > 1:
        yield from (f"# {line}" for line in _node_lines(plan))
    for number, step in enumerate((checkpoint_step(recipe, folders), engine_step(recipe, folders)), start=1):
        yield f"# {number}. {step.name}: about {gigabytes(step.num_bytes)} in {len(step.files) - 1} ranks"
        yield step.text


def _plan_lines(recipe: Recipe) -> Iterator[str]:
    plan = recipe.plan
    yield f"{plan.entry.model_id} on {plan.parallelism.num_gpus} x {plan.gpu.name}: {plan.parallelism}"
    yield f"matrices {plan.precision}, KV cache {recipe.kv_precision}"
    yield (
        f"max_seq_len {plan.max_seq_len}, max_input_len {plan.max_input_len}, "
        f"max_batch_size {plan.max_batch_size}, max_num_tokens {plan.max_num_tokens}"
    )
    yield (
        f"each GPU: {gigabytes(plan.memory.weights_bytes)} of weights, "
        f"{gigabytes(plan.memory.kv_cache_bytes)} of KV cache: "
        f"{plan.num_concurrent_sequences} sequences of {plan.max_seq_len} tokens at once"
    )
    yield (
        f"the build: {gigabytes(plan.build_disk_bytes)} of disk with the checkpoint, "
        f"{gigabytes(recipe.ram_bytes)} of RAM, {plan.build_time_class}"
    )
    yield from (f"note: {note}" for note in plan.entry.notes)


def _node_lines(plan: Plan) -> Iterator[str]:
    parallelism = plan.parallelism
    yield (
        f"on one node: this command line; step 2 compiles the {parallelism.num_gpus} ranks on its "
        f"{parallelism.num_gpus_per_node} GPUs, one after the other on each"
    )
    yield (
        f"sooner, over {parallelism.num_nodes} nodes with one file system: "
        f"mpirun -n {parallelism.num_gpus} --map-by ppr:{parallelism.num_gpus_per_node}:node "
        "python -m build_engines build ... (this command line)"
    )
    yield "process 0 runs step 1; every process runs step 2 with --workers 1, and compiles the rank of its number"
