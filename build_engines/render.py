"""Renders artifacts to a Triton repository. `render` is pure; `write_repository` writes its result."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from google.protobuf import text_format
from msgspec.structs import replace
from tritonclient.grpc import model_config_pb2 as pb

from build_engines import artifact
from build_engines.artifact import Manifest
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.gpus import check_replicas
from build_engines.llama_cpp.device_trial import layer_memory
from build_engines.lock import lock_path, locked, remove_leftovers
from build_engines.memory_fit import ModelDemand
from build_engines.placement import ALL, AUTO, CORES, Candidate, Placement, chosen_devices, fit_and_place
from build_engines.replica_memory import ReplicaMemory
from build_engines.serving import Loading, check_names_differ, names_of
from model_repository.capabilities import Capability
from model_repository.contract.request import MAX_STREAM_INTERVAL_MS
from model_repository.contract.spec import StageSpec, TensorSpec
from model_repository.contract.tensors import (
    ARBITER,
    ARBITER_STAGE,
    LOADERS,
    model_id_to_ensemble,
    stage_name,
)
from model_repository.engine.adapters.root import AdapterRoot
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.tensorrt_llm.llm_options import check_llm_options
from model_repository.engine.tensorrt_llm.options import TensorRtLlmOptions
from model_repository.model_facts import Task
from model_repository.model_parameters import Load, ModelParameters, Preset
from model_repository.runtimes import RUNTIMES
from model_repository.system.cores import num_physical_cores
from model_repository.system.devices import Device, NoDevices, read_devices
from model_repository.system.llama_build import installed_build
from model_repository.system.machine import installed_version, read_machine
from model_repository.system.model_memory import MODEL_SHARE, model_memory_bytes
from model_repository.system.running_servers import ARTIFACT_FILE

logger = logging.getLogger(__name__)

DEFAULT_MAX_SEQUENCES = 16

_EMPTY_VERSION = "1/.keep"  # Triton needs a version folder, also in an ensemble without files


def _number(default: int | None, text: str, at_least: int = 0, at_most: int | None = None) -> Any:
    """Return a field with its bounds, and the text of its flag."""
    shown = text if default is None else f"{text} (%(default)s)"
    return field(default=default, metadata={"text": shown, "at_least": at_least, "at_most": at_most})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The settings of config.pbtxt that do not come from the artifact."""

    replicas: int = _number(
        1,
        "engines of the model, which share its requests; each takes as many GPUs as the artifact needs, or its share "
        "of the cores",
        at_least=1,
    )
    max_sequences: int | None = _number(
        None,
        f"sequences in one step (the limit of an engine, otherwise {DEFAULT_MAX_SEQUENCES} or what the memory holds)",
        at_least=1,
    )
    spare_sequences: int = _number(0, "further sequences, if the memory holds the whole window of each")
    max_waiting: int = _number(1024, "requests that may queue in the engine")
    num_threads: int = _number(0, "threads of an engine; 0: one for each physical core, of replicas all together")
    stream_interval_ms: int = _number(
        40,
        f"longest time that tokens of a stream may gather under load, 0 to {MAX_STREAM_INTERVAL_MS}",
        at_most=MAX_STREAM_INTERVAL_MS,
    )
    tokenizer_instances: int = _number(
        1,
        "tokenizer processes, each with the tokenizer in memory; one is enough for some thousand requests a second",
        at_least=1,
        at_most=64,
    )
    max_adapters: int = _number(8, "LoRA adapters that may be loaded at runtime", at_least=1)
    max_adapter_rank: int = _number(64, "largest rank of an adapter that is loaded at runtime", at_least=1)
    gpu_layers: str = AUTO  # layers that devices compute: AUTO, ALL or a number
    devices: tuple[str, ...] = ()  # that compute them; empty: all devices of the machine
    speculative: str | None = None  # how the engine drafts tokens; None: no drafts
    adapter_root: Path | None = None  # LoRA adapters that are loaded at runtime; None: loading is off
    llm_options: Mapping[str, Any] = field(default_factory=dict)  # further keywords of TensorRT-LLM's LLM
    loading: Loading = field(default_factory=Loading)  # in place of the artifact's
    presets: Mapping[str, Preset] = field(default_factory=dict)  # of the model, by name

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value, low, high = getattr(self, each.name), each.metadata.get("at_least"), each.metadata.get("at_most")
            if value is not None and low is not None and value < low:
                raise BuildError(f"{each.name}={value}: must be at least {low}")
            if value is not None and high is not None and value > high:
                raise BuildError(f"{each.name}={value}: must be at most {high}")
        if not re.fullmatch(rf"{AUTO}|{ALL}|0|[1-9][0-9]*", self.gpu_layers):
            raise BuildError(f"--gpu-layers {self.gpu_layers}: expected {AUTO}, {ALL} or a number of layers")
        if self.gpu_layers == "0" and self.devices:
            raise BuildError(f"--device {','.join(self.devices)}: excludes --gpu-layers 0")
        if self.spare_sequences and self.max_sequences is None:
            raise BuildError(f"spare_sequences={self.spare_sequences}: goes with max_sequences")

    def check_runtime(self, runtime: str) -> None:
        """Check the options that only some runtimes have.

        Raises:
            BuildError: the runtime does not have one.
        """
        if self.speculative is not None and self.speculative not in RUNTIMES[runtime].speculative:
            raise BuildError(f"--speculative {self.speculative}: the runtime {runtime} has no such speculation")
        if not RUNTIMES[runtime].takes_devices:
            given = (("--gpu-layers", self.gpu_layers, AUTO), ("--device", ",".join(self.devices), ""))
            for flag, value, default in given:
                if value != default:
                    raise BuildError(f"{flag} {value}: the runtime {runtime} has no such devices")
        if self.llm_options and not RUNTIMES[runtime].takes_llm_options:
            raise BuildError(f"--llm-option {next(iter(self.llm_options))}: the runtime {runtime} has no such options")

    def check_llm(self, backend: str, *, pp_size: int, has_adapters: bool) -> None:
        """Check the keywords of TensorRT-LLM's LLM for a model.

        Raises:
            BuildError: a key is unknown or Conch's own, or does not work with another setting.
        """
        has_adapters = has_adapters or self.adapter_root is not None
        try:
            version = installed_version("tensorrt_llm")
            check_llm_options(self.llm_options, backend, version, pp_size=pp_size, has_adapters=has_adapters)
        except ValueError as exc:
            raise BuildError(f"--llm-option {exc}") from exc

    def max_sequences_of(self, manifest: Manifest) -> int:
        """Return the number of sequences in one step.

        Raises:
            BuildError: the engine was built for fewer.
        """
        built_for = manifest.options.get("max_batch_size")
        if built_for is not None:
            self.check_batch(manifest.model_id, int(built_for))
        return self.max_sequences or int(built_for or DEFAULT_MAX_SEQUENCES)

    def check_batch(self, model_id: str, built_for: int) -> None:
        """Check max_sequences against the limit of an engine.

        Raises:
            BuildError: the engine was built for fewer.
        """
        if self.max_sequences is not None and self.max_sequences > built_for:
            raise BuildError(f"max_sequences={self.max_sequences}: {model_id} is built for {built_for}")


def render(
    manifest: Manifest,
    artifact_dir: Path,
    options: ServeOptions,
    version: str,
    gpus: Sequence[int] = (),
    replica: int = 1,
    position: int = 0,
    memory_bytes: int = 0,
    placement: Placement = CORES,
) -> dict[str, str]:
    """Return the files of the ensembles and stages of a model's replica: path in the repository to content.

    Args:
        version: of the software, which is part of the fingerprint.
        gpus: the numbers of its GPUs; empty: the first ones of the machine.
        replica: its number, from 1.
        position: of the model among those of the repository.
        memory_bytes: see ModelParameters.
        placement: of layers on devices.
    """
    options.check_runtime(manifest.runtime)
    preset = next(iter(options.presets), None)
    kinds = (("--speculative", options.speculative), ("--adapter-root", options.adapter_root), ("preset", preset))
    for flag, given in kinds:
        if manifest.task is not Task.GENERATE and given is not None:
            raise BuildError(f"{flag} {given}: {manifest.model_id} embeds, and takes none")
    if options.llm_options:
        own = TensorRtLlmOptions.of(manifest.options)
        options.check_llm(own.backend, pp_size=own.pp_size, has_adapters=bool(manifest.adapters))
        texts = {"llm_options": json.dumps(options.llm_options, sort_keys=True)}
        manifest = replace(manifest, options={**manifest.options, **texts})
    ensemble = model_id_to_ensemble(manifest.model_id, replica)
    parameters = model_parameters(manifest, artifact_dir, options, version, gpus, replica, position, placement)
    parameters = replace(parameters, memory_bytes=memory_bytes)
    layout = parameters.layout
    configs = {
        stage_name(ensemble, name): _ensemble_config(ensemble, name, steps) for name, steps in layout.ensembles.items()
    }
    for stage, spec in layout.stages.items():
        # The other stages have one instance: the detokenizer must keep order, the engine owns the model.
        num_instances = options.tokenizer_instances if stage == "tokenizer" else 1
        configs[stage_name(ensemble, stage)] = _stage_config(
            stage_name(ensemble, stage), spec, num_instances=num_instances
        )
    rendered = parameters.to_config().items()
    for config in configs.values():
        for name, value in rendered:
            config.parameters[name].string_value = value
    files = {f"{name}/config.pbtxt": text_format.MessageToString(config) for name, config in configs.items()}
    for name in layout.ensembles:
        files[f"{stage_name(ensemble, name)}/{_EMPTY_VERSION}"] = ""
    for stage in layout.stages:
        files[f"{stage_name(ensemble, stage)}/1/model.py"] = _model_source(stage)
    return files | {f"{ensemble}/{ARTIFACT_FILE}": artifact_dir.name}


def _capabilities(manifest: Manifest) -> frozenset[Capability]:
    if manifest.task is not Task.GENERATE:
        return frozenset({Capability.TEMPERATURE})  # of a greedy gRPC client; check_embedding refuses the others
    capabilities = RUNTIMES[manifest.runtime].capabilities_with(manifest.options)
    return capabilities if manifest.has_images else capabilities - {Capability.IMAGES}


def _adapter_root(manifest: Manifest, options: ServeOptions) -> AdapterRoot | None:
    if options.adapter_root is None:
        return None
    return AdapterRoot(
        folder=options.adapter_root.absolute(),
        ensemble=model_id_to_ensemble(manifest.model_id),
        runtime=manifest.runtime,
        base=manifest.base,
        max_adapters=options.max_adapters,
        max_rank=options.max_adapter_rank,
    )


def model_parameters(
    manifest: Manifest,
    artifact_dir: Path,
    options: ServeOptions,
    version: str,
    gpus: Sequence[int] = (),
    replica: int = 1,
    position: int = 0,
    placement: Placement = CORES,
) -> ModelParameters:
    """Return what the stages and the frontend must know of a model's replica.

    Raises:
        BuildError: the model has fewer sequences than it was built for contexts, or its engine fewer.
    """
    num_contexts, num_sequences = int(manifest.options.get("contexts", 1)), options.max_sequences_of(manifest)
    if num_contexts > num_sequences:
        rule = f"the model has {num_sequences} sequences (--max-sequences), and each context needs one"
        raise BuildError(f"{manifest.model_id}: option contexts={num_contexts}: {rule}")
    loading = _loading_of(manifest, options)
    return ModelParameters(
        **manifest.facts(),
        model_id=manifest.model_id,
        replica=replica,
        position=position,
        artifact_dir=artifact_dir,
        runtime=manifest.runtime,
        linked_files=manifest.linked,
        gpus=tuple(gpus),
        gpu_layers=placement.gpu_layers,
        devices=placement.devices,
        wanted_layers=options.gpu_layers,
        wanted_devices=options.devices,
        max_sequences=num_sequences,
        max_waiting=options.max_waiting,
        num_threads=options.num_threads,
        stream_interval_ms=options.stream_interval_ms,
        speculative=options.speculative,
        adapter_root=_adapter_root(manifest, options),
        created=manifest.created,
        fingerprint=_fingerprint(manifest, options, version, placement),
        aliases=manifest.serving.aliases,
        presets=options.presets,
        capabilities=_capabilities(manifest),
        defaults=manifest.defaults,
        load=loading.load or Load.START,
        keep_alive_s=loading.keep_alive_s,
        is_pinned=bool(loading.is_pinned),
    )


def _loading_of(manifest: Manifest, options: ServeOptions) -> Loading:
    return options.loading.or_else(manifest.serving.loading)


def _versions() -> str:
    """Return the versions of Conch and of the installed libraries that compute answers."""
    llama_cpp = [build.package] if (build := installed_build()) is not None else []
    libraries = [entry.library for entry in RUNTIMES.values() if entry.library]
    names = ("conch", *llama_cpp, *libraries, "llguidance", "tokenizers", "jinja2")
    return ", ".join(f"{name} {version}" for name in names if (version := installed_version(name)))


def _fingerprint(manifest: Manifest, options: ServeOptions, version: str, placement: Placement) -> str:
    """Return a digest of the artifact, its settings and the versions.

    The machine without its devices is not part of it, although processor and number of threads can change an answer
    too.
    """
    on_devices: dict[str, Any] = {}
    if placement.gpu_layers:
        names = {name: use.description for name, use in placement.devices.items()}
        on_devices = {"gpu_layers": placement.gpu_layers, "devices": names}
    digest = artifact.key_of(
        key=manifest.key,
        files=manifest.files,
        runtime=manifest.runtime,
        options=manifest.options,
        adapters=manifest.adapters,
        defaults=manifest.defaults,
        presets={name: msgspec.to_builtins(preset) for name, preset in options.presets.items()},
        # Floating-point sums depend on the batch and on the threads.
        max_sequences=options.max_sequences_of(manifest),
        num_threads=options.num_threads,
        speculative=options.speculative,
        version=version,
        **on_devices,
    )
    return f"fp_{digest}"


def render_artifacts(
    options: Mapping[Path, ServeOptions],
    gpus: Mapping[Path, Sequence[Sequence[int]]] = MappingProxyType({}),
    aliases: Iterable[str] = (),
    name: str | None = None,
    model_memory: int | None = None,
) -> dict[str, str]:
    """Return the files of a repository that serves these artifacts, after a check of each.

    Args:
        options: by artifact.
        gpus: the numbers of the GPUs of each replica of an artifact. They may be missing for a single model: its
            replicas then get the first ones of the machine, one after the other.
        aliases: further names of a single model, beside those of its artifact.
        name: the name of a single model; None: that of its artifact.
        model_memory: bytes that all models may hold together; None: by the machine.

    Raises:
        ArtifactInvalid: a file of an artifact is missing or changed.
        BuildError: two names of models, aliases, adapters or presets are the same, or GPUs of two models or replicas,
            or the machine has too few.
    """
    manifests: dict[Path, Manifest] = {}
    names: list[tuple[str, str]] = []
    placed: dict[str, Sequence[Sequence[int]]] = {}  # model to the GPUs of its replicas, if it needs any
    loadings: list[Loading] = []  # of these models
    for artifact_dir in options:
        # Large files with the same time and size are not read again, as `verify` does.
        manifest = artifact.verify(artifact_dir, Digests.beside(artifact_dir.resolve()))
        manifest = replace(manifest, serving=manifest.serving.with_aliases(aliases))
        if name is not None:
            manifest = manifest.named(name)
        presets = options[artifact_dir].presets
        owned = names_of(manifest.model_id, manifest.serving.aliases, manifest.adapters, presets)
        names += [(name, f"{owner} ({artifact_dir})") for name, owner in owned]
        check_names_differ(names)
        for numbers in gpus.get(artifact_dir, ()):
            _check_number_of_gpus(manifest, numbers)
        if "num_gpus" in manifest.requires:
            placed[manifest.model_id] = gpus.get(artifact_dir, ())
            loadings.append(_loading_of(manifest, options[artifact_dir]))
        manifests[artifact_dir] = manifest
    num_at_start = sum(each.load is not Load.DEMAND for each in loadings)
    _check_gpus_differ(placed, take_turns=num_at_start < 2 and not any(each.is_pinned for each in loadings))
    files = _arbiter_files()
    version = _versions()
    fitted = _fitted(manifests, options, model_memory)
    for position, (artifact_dir, (manifest, own_options, num_bytes, placement)) in enumerate(fitted.items()):
        folder, own_gpus = artifact_dir.resolve(), gpus.get(artifact_dir) or _first_gpus(manifest, own_options.replicas)
        for replica, numbers in enumerate(own_gpus, 1):
            files |= render(manifest, folder, own_options, version, numbers, replica, position, num_bytes, placement)
    return files


def _arbiter_files() -> dict[str, str]:
    """Return the files of the stages that load and unload the models of a repository."""
    files = dict[str, str]()
    for name, folder in {ARBITER: "arbiter", **dict.fromkeys(LOADERS, "loader")}.items():
        config = _stage_config(name, ARBITER_STAGE, num_instances=1)
        files |= {
            f"{name}/config.pbtxt": text_format.MessageToString(config),
            f"{name}/1/model.py": _model_source(folder),
        }
    return files


def demand_of(artifact_dir: Path, manifest: Manifest, options: ServeOptions) -> ModelDemand:
    """Return what an artifact needs of the memory."""
    num_sequences = options.max_sequences_of(manifest)
    built_for = int(manifest.options.get("max_batch_size", num_sequences + options.spare_sequences))
    loading = _loading_of(manifest, options)
    return ModelDemand(
        weight_bytes=sum(path.stat().st_size for path in artifact_dir.glob("*.gguf")),
        sequence_memory=manifest.sequence_memory,
        num_sequences=num_sequences,
        window=manifest.context_window,
        is_fixed=options.max_sequences is not None,
        num_spare=min(options.spare_sequences, built_for - num_sequences),
        num_replicas=options.replicas,
        is_pinned=bool(loading.is_pinned),
        is_on_demand=loading.load is Load.DEMAND,
        replica=ReplicaMemory.of(manifest, artifact_dir, options.tokenizer_instances, _num_threads(options)),
    )


def _num_threads(options: ServeOptions) -> int:
    """Return the threads of an engine; 0: one for each core. Replicas share the cores."""
    if options.num_threads or options.replicas == 1:
        return options.num_threads
    return max(1, num_physical_cores() // options.replicas)


def _fitted(
    manifests: Mapping[Path, Manifest], options: Mapping[Path, ServeOptions], model_memory: int | None
) -> dict[Path, tuple[Manifest, ServeOptions, int, Placement]]:
    """Reduce sequences and context windows to what this machine can use, except where a number is given.

    The replicas of a model are alike. The third value is the memory of each, 0 if it is unknown.
    """
    demands = {folder: demand_of(folder, manifest, options[folder]) for folder, manifest in manifests.items()}
    fitted = {}
    machine_bytes, num_cores = round(model_memory_bytes(model_memory) / MODEL_SHARE), num_physical_cores()
    candidates = _candidates(manifests, options, demands)
    fits, placements = fit_and_place(candidates, demands, machine_bytes, num_cores, layer_memory)
    for folder, model in demands.items():
        (num_sequences, window), own = fits[folder], options[folder]
        manifest = replace(manifests[folder], context_window=window)
        own = dataclasses.replace(own, max_sequences=num_sequences, num_threads=_num_threads(own))
        placement = placements.get(folder, CORES)
        if window != model.window:
            memory = machine_bytes if model_memory is None else model_memory
            name = "memory" if model_memory is None else "--model-memory"
            if placement.is_whole:
                devices = candidates[folder].devices
                memory = sum(device.free_bytes for device in devices)
                name = f"free memory of {' and '.join(device.name for device in devices)}"
            reduced = f"windows of {model.window:,} tokens are reduced for {memory / 1e9:.1f} GB of {name}"
            rule = "--max-sequences, or a build with a smaller --context-window, changes it"
            logger.warning("memory      %s: %s; %s", manifest.model_id, reduced, rule)
        each = f"each of {own.replicas} replicas: " if own.replicas > 1 else ""
        if text := model.text(num_sequences, window):
            logger.info("memory      %s: %s%s", manifest.model_id, each, text)
        if placement.text:
            logger.info("layers      %s: %s%s", manifest.model_id, each, placement.text)
        num_bytes = manifest.gpu_bytes if model.replica is None else model.replica.num_bytes(num_sequences, window)
        fitted[folder] = (manifest, own, placement.memory_bytes or num_bytes, placement)
    return fitted


def _candidates(
    manifests: Mapping[Path, Manifest], options: Mapping[Path, ServeOptions], demands: Mapping[Path, ModelDemand]
) -> dict[Path, Candidate]:
    """Return the models that devices of this machine may compute."""
    candidates, devices = dict[Path, Candidate](), None
    for folder, manifest in manifests.items():
        own = options[folder]
        if not RUNTIMES[manifest.runtime].takes_devices or own.gpu_layers == "0":
            continue
        if manifest.adapters or own.adapter_root is not None:
            rule = "a model with adapters stays on the cores: on devices, changes of adapters have corrupted memory"
            if own.gpu_layers != AUTO or own.devices:
                raise BuildError(f"{manifest.model_id}: --gpu-layers, --device: {rule}")
            if _devices(is_needed=False):
                logger.warning("layers      %s: %s", manifest.model_id, rule)
            continue
        devices = _devices(is_needed=own.gpu_layers != AUTO or bool(own.devices)) if devices is None else devices
        if chosen := chosen_devices(own.gpu_layers, own.devices, devices, installed_build()):
            config = EngineConfig(
                **manifest.facts(),
                runtime=manifest.runtime,
                artifact_dir=folder.resolve(),
                num_threads=_num_threads(own),
            )
            name, demand = manifest.model_id, demands[folder]
            candidates[folder] = Candidate(
                name=name, config=config, demand=demand, layers=own.gpu_layers, devices=chosen
            )
    return candidates


def _devices(*, is_needed: bool) -> Sequence[Device]:
    """Return the devices of this machine. Without them the cores compute everything, unless the user wants devices."""
    build = installed_build()
    try:
        devices = read_devices()
    except NoDevices as exc:
        if is_needed:
            raise BuildError(str(exc)) from exc
        logger.warning("warning: %s: the cores compute all layers", exc)
        return ()
    if build and build.devices and not devices and not is_needed:
        logger.warning("warning: no device of %s is found: the cores compute all layers", build.devices)
    return devices


def _check_number_of_gpus(manifest: Manifest, gpus: Sequence[int]) -> None:
    num_gpus = int(manifest.requires.get("num_gpus", 0))
    if gpus and (len(gpus) != num_gpus or len(set(gpus)) != num_gpus):
        numbers = ",".join(map(str, gpus))
        raise BuildError(f"{manifest.model_id}: GPUs {numbers}: the model needs {num_gpus} different ones")


def _first_gpus(manifest: Manifest, num_replicas: int) -> Sequence[Sequence[int]]:
    """Return the GPUs of each replica of the only model that needs some; empty: the replica sees all of them."""
    if "num_gpus" not in manifest.requires or num_replicas == 1:
        return ((),) * num_replicas
    num_gpus = int(manifest.requires["num_gpus"])
    num_nodes = int(manifest.options.get("tp_size", 1)) * int(manifest.options.get("pp_size", 1)) // num_gpus
    check_replicas(manifest.model_id, num_replicas, num_gpus, num_nodes, read_machine())
    return [range(first, first + num_gpus) for first in range(0, num_replicas * num_gpus, num_gpus)]


def _check_gpus_differ(placed: Mapping[str, Sequence[Sequence[int]]], *, take_turns: bool) -> None:
    """Check that no GPU has two engines. TensorRT-LLM starts each on the first GPUs that it sees.

    Args:
        take_turns: the models may have the same GPUs, since each can be unloaded for another one.
    """
    owners: dict[int, str] = {}
    for model_id, gpus in placed.items():
        if take_turns:
            owners.clear()
        elif not gpus and len(placed) > 1:
            raise BuildError(f"{model_id}: {len(placed)} models need GPUs: name those of each, as ARTIFACT:0,1")
        for gpu in chain.from_iterable(gpus):
            if gpu in owners:
                raise BuildError(f"{model_id}: GPU {gpu} is {owners[gpu]}'s already")
            owners[gpu] = model_id


def write_repository(files: Mapping[str, str], repository: Path) -> None:
    """Replace a repository by a rendered one. An equal repository is not touched.

    Raises:
        BuildError: the folder exists and is not a rendered repository.
    """
    if _holds(repository, files):
        return
    with locked(lock_path(repository), f"renders {repository}"):
        remove_leftovers(repository)
        if repository.exists():
            for path in repository.iterdir():
                if not (path / "config.pbtxt").is_file():
                    rule = "which is not a rendered model: name another folder"
                    raise BuildError(f"{repository}: holds {path.name}, {rule}")
        with artifact.written_aside(repository) as folder:
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(content, encoding="utf-8")


def read_config(path: Path) -> pb.ModelConfig:
    """Read a config.pbtxt.

    Raises:
        BuildError: the file is missing, or is no configuration.
    """
    try:
        return config_of(path.read_text(encoding="utf-8"))
    except (OSError, text_format.ParseError) as exc:
        raise BuildError(f"{path}: not a rendered configuration ({exc})") from exc


def config_of(text: str) -> pb.ModelConfig:
    """Return the configuration of a config.pbtxt."""
    return text_format.Parse(text, pb.ModelConfig())


def remove_artifact(artifact_dir: Path, repository: Path) -> None:
    """Remove the model of an artifact from a repository, if it is there."""
    with locked(lock_path(repository), f"changes {repository}"):
        for path in sorted(repository.glob("*/config.pbtxt")):
            if str(artifact_dir.resolve()) in path.read_text(encoding="utf-8"):
                shutil.rmtree(path.parent)


def _holds(repository: Path, files: Mapping[str, str]) -> bool:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    paths = [path.relative_to(repository) for path in repository.rglob("*") if path.is_file()]
    found = {str(path) for path in paths if not ignored("", list(path.parts))}
    return found == set(files) and all(
        (repository / name).read_text(encoding="utf-8") == content for name, content in files.items()
    )


def _ensemble_config(ensemble: str, name: str, steps: Mapping[str, StageSpec]) -> pb.ModelConfig:
    first, *_, last = steps.values()
    return pb.ModelConfig(
        name=stage_name(ensemble, name),
        platform="ensemble",
        max_batch_size=1,
        input=[_input(spec) for spec in first.inputs],
        output=[_output(spec) for spec in last.outputs],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True),
        ensemble_scheduling=pb.ModelEnsembling(step=[_step(ensemble, stage, spec) for stage, spec in steps.items()]),
    )


def _stage_config(name: str, spec: StageSpec, *, num_instances: int) -> pb.ModelConfig:
    return pb.ModelConfig(
        name=name,
        backend="python",
        max_batch_size=spec.max_batch_size,
        input=[_input(item) for item in spec.inputs],
        output=[_output(item) for item in spec.outputs],
        instance_group=[pb.ModelInstanceGroup(count=num_instances, kind=pb.ModelInstanceGroup.KIND_CPU)],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=spec.is_decoupled),
        # Batches never wait for more requests. Requests of different shapes are in different batches.
        dynamic_batching=pb.ModelDynamicBatching() if spec.max_batch_size > 1 else None,
    )


def _step(ensemble: str, stage: str, spec: StageSpec) -> pb.ModelEnsembling.Step:
    return pb.ModelEnsembling.Step(
        model_name=stage_name(ensemble, stage),
        model_version=-1,
        input_map={item.name: item.name for item in spec.inputs},
        output_map={item.name: item.name for item in spec.outputs},
    )


def _input(spec: TensorSpec) -> pb.ModelInput:
    return pb.ModelInput(name=spec.name, data_type=_data_type(spec), dims=spec.shape, optional=True)


def _output(spec: TensorSpec) -> pb.ModelOutput:
    return pb.ModelOutput(name=spec.name, data_type=_data_type(spec), dims=spec.shape)


def _data_type(spec: TensorSpec) -> pb.DataType:
    return pb.DataType.Value("TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}")


def _model_source(stage: str) -> str:
    return resources.files("model_repository").joinpath(stage, "1", "model.py").read_text(encoding="utf-8")
