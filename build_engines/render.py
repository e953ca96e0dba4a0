"""From artifacts to the served Triton repository. `render` is pure; `write_repository` puts its result on disk."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from build_engines import artifact
from build_engines.artifact import Manifest
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.lock import lock_path, locked, remove_leftovers
from build_engines.serving import check_names_differ, names_of
from model_repository.contract import tensors
from model_repository.contract.request import MAX_STREAM_INTERVAL_MS
from model_repository.contract.spec import StageSpec, TensorSpec
from model_repository.contract.tensors import model_id_to_slug, stage_name
from model_repository.engine.runtime import RUNTIMES
from model_repository.model_parameters import ModelParameters

DEFAULT_MAX_SEQUENCES = 16
MAX_TOKENIZER_INSTANCES = 64

_EMPTY_VERSION = "1/.keep"  # Triton wants a version folder, also in an ensemble, which has no files


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How an artifact is served, as far as its config.pbtxt decides."""

    max_sequences: int | None = None  # None: as many as the engine was built for, or DEFAULT_MAX_SEQUENCES
    max_waiting: int = 1024
    num_threads: int = 0
    stream_interval_ms: int = 40
    tokenizer_instances: int = 1
    adapter_root: Path | None = None  # of LoRA adapters that are loaded while the model runs; None: none are
    max_adapters: int = 8  # of those
    max_adapter_rank: int = 64

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_sequences", 1, None),
            ("max_waiting", 0, None),
            ("num_threads", 0, None),
            ("stream_interval_ms", 0, MAX_STREAM_INTERVAL_MS),
            ("tokenizer_instances", 1, MAX_TOKENIZER_INSTANCES),
            ("max_adapters", 1, None),
            ("max_adapter_rank", 1, None),
        ):
            value = getattr(self, name)
            if value is not None and value < low:
                raise BuildError(f"{name}={value}: must be at least {low}")
            if value is not None and high is not None and value > high:
                raise BuildError(f"{name}={value}: must be at most {high}")

    def max_sequences_of(self, manifest: Manifest) -> int:
        """Return how many sequences are decoded in one step.

        Raises:
            BuildError: more than the engine was built for.
        """
        built_for = manifest.options.get("max_batch_size")
        if built_for is None:
            return DEFAULT_MAX_SEQUENCES if self.max_sequences is None else self.max_sequences
        self.check_batch(manifest.model_id, int(built_for))
        return int(built_for) if self.max_sequences is None else self.max_sequences

    def check_batch(self, model_id: str, built_for: int) -> None:
        """Check that an engine for so many sequences in one step can do what is asked for.

        Raises:
            BuildError: it is built for fewer.
        """
        if self.max_sequences is not None and self.max_sequences > built_for:
            raise BuildError(f"max_sequences={self.max_sequences}: {model_id} is built for {built_for}")


def render(manifest: Manifest, artifact_dir: Path, options: ServeOptions, version: str) -> dict[str, str]:
    """Return the files of one model's ensembles and its three stages: path in the repository to content.

    Args:
        version: the distribution's, of which the fingerprint depends.
    """
    slug = model_id_to_slug(manifest.model_id)
    shared = {"artifact_dir": str(artifact_dir), "ensemble": slug, "context_window": str(manifest.context_window)}
    tokenizer = shared | {
        "runtime": manifest.runtime,
        "capabilities": json.dumps(sorted(RUNTIMES[manifest.runtime].capabilities_with(manifest.options))),
        "tool_call_format": manifest.tool_call_format,
    }
    engine = shared | {
        "runtime": manifest.runtime,
        "runtime_options": json.dumps(manifest.options),
        "precision": manifest.precision,
        "adapters": json.dumps(manifest.adapters),
        "requires": json.dumps(manifest.requires),
        "eos_token_ids": json.dumps(manifest.eos_token_ids),
        "max_sequences": str(options.max_sequences_of(manifest)),
        "max_waiting": str(options.max_waiting),
        "num_threads": str(options.num_threads),
        "stream_interval_ms": str(options.stream_interval_ms),
    }
    if options.adapter_root is not None:
        engine["adapter_root"] = json.dumps(_adapter_root(manifest, options.adapter_root, options))
    configs = {stage_name(slug, name): _ensemble_config(slug, name) for name in tensors.ENSEMBLES}
    _set_parameters(configs[slug], model_parameters(manifest, options, version).to_parameters())
    for stage, parameters in (("tokenizer", tokenizer), ("engine", engine), ("detokenizer", shared)):
        # One instance of the others: the detokenizer must keep order, the engine owns the model.
        num_instances = options.tokenizer_instances if stage == "tokenizer" else 1
        configs[stage_name(slug, stage)] = _stage_config(
            slug, stage, tensors.STAGES[stage], parameters, num_instances=num_instances
        )
    files = {f"{name}/config.pbtxt": text_format.MessageToString(config) for name, config in configs.items()}
    for name in tensors.ENSEMBLES:
        files[f"{stage_name(slug, name)}/{_EMPTY_VERSION}"] = ""
    for stage in tensors.STAGES:
        files[f"{stage_name(slug, stage)}/1/model.py"] = _model_source(stage)
    return files


def _adapter_root(manifest: Manifest, folder: Path, options: ServeOptions) -> dict[str, object]:
    return {
        "folder": str(folder.absolute()),
        "base": manifest.base,
        "max_adapters": options.max_adapters,
        "max_rank": options.max_adapter_rank,
    }


def model_parameters(manifest: Manifest, options: ServeOptions, version: str) -> ModelParameters:
    """Return what the ensemble's configuration says of the model."""
    return ModelParameters(
        model_id=manifest.model_id,
        context_window=manifest.context_window,
        max_sequences=options.max_sequences_of(manifest),
        created=manifest.created,
        owned_by="conch",
        runtime=manifest.runtime,
        fingerprint=_fingerprint(manifest, options, version),
        aliases=manifest.serving.aliases,
        adapters=tuple(manifest.adapters),
        capabilities=RUNTIMES[manifest.runtime].capabilities_with(manifest.options),
        tool_call_format=manifest.tool_call_format,
        template_fields=manifest.template_fields,
        defaults=manifest.serving.defaults,
    )


def _versions() -> str:
    """Return the versions of what computes answers here: ours, and the libraries that are installed beside us."""
    names = ("conch", "cyllama", "tensorrt_llm", "llguidance", "tokenizers", "jinja2")
    installed = {distribution.name.lower(): distribution.version for distribution in importlib.metadata.distributions()}
    return ", ".join(f"{name} {installed[name]}" for name in names if name in installed)


def _fingerprint(manifest: Manifest, options: ServeOptions, version: str) -> str:
    """Return a digest of what was built, how it is served and by what versions, and of nothing else.

    Of what can change the answer to a request it leaves out the machine: its processor, and how many threads 0 means.
    """
    digest = artifact.key_of(
        key=manifest.key,
        files=manifest.files,
        runtime=manifest.runtime,
        options=manifest.options,
        adapters=manifest.adapters,
        defaults=manifest.serving.defaults,
        # Sums of floating-point numbers depend on what else is in the batch, and on how threads share them.
        max_sequences=options.max_sequences_of(manifest),
        num_threads=options.num_threads,
        version=version,
    )
    return f"fp_{digest}"


def render_artifacts(artifact_dirs: Iterable[Path], options: ServeOptions) -> dict[str, str]:
    """Return the files of a repository that serves these artifacts, after a check that each is what it says.

    Raises:
        ArtifactInvalid: one is not.
        BuildError: two names of models, aliases or adapters are the same.
    """
    files: dict[str, str] = {}
    names: list[tuple[str, str]] = []
    version = _versions()
    for artifact_dir in artifact_dirs:
        # A file that was changed or replaced is found; `verify` reads large ones that look unchanged, too.
        manifest = artifact.verify(artifact_dir, Digests.beside(artifact_dir))
        owned = names_of(manifest.model_id, manifest.serving.aliases, manifest.adapters)
        names += [(name, f"{owner} ({artifact_dir})") for name, owner in owned]
        check_names_differ(names)
        files |= render(manifest, artifact_dir.resolve(), options, version)
    return files


def write_repository(files: Mapping[str, str], repository: Path) -> None:
    """Put a rendered repository in the place of the one that is there; one without changes is not touched.

    Raises:
        BuildError: there is a folder, and it is not a rendered repository.
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


def _holds(repository: Path, files: Mapping[str, str]) -> bool:
    return {name: _read(repository / name) for name in files} == dict(files) and _names(repository) == set(files)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _names(repository: Path) -> set[str]:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    paths = [path.relative_to(repository) for path in repository.rglob("*") if path.is_file()]
    return {str(path) for path in paths if not ignored("", list(path.parts))}


def _ensemble_config(slug: str, name: str) -> pb.ModelConfig:
    steps = list(tensors.ENSEMBLES[name].items())
    (_, first), (_, last) = steps[0], steps[-1]
    return pb.ModelConfig(
        name=stage_name(slug, name),
        platform="ensemble",
        max_batch_size=1,
        input=[_input(spec) for spec in first.inputs],
        output=[_output(spec) for spec in last.outputs],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True),
        ensemble_scheduling=pb.ModelEnsembling(step=[_step(slug, stage, spec) for stage, spec in steps]),
    )


def _stage_config(
    slug: str, stage: str, spec: StageSpec, parameters: Mapping[str, str], *, num_instances: int
) -> pb.ModelConfig:
    config = pb.ModelConfig(
        name=stage_name(slug, stage),
        backend="python",
        max_batch_size=spec.max_batch_size,
        input=[_input(item) for item in spec.inputs],
        output=[_output(item) for item in spec.outputs],
        instance_group=[pb.ModelInstanceGroup(count=num_instances, kind=pb.ModelInstanceGroup.KIND_CPU)],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=spec.is_decoupled),
        # None is put off for others to come. Requests of other shapes, as with more stop words, come in other batches.
        dynamic_batching=pb.ModelDynamicBatching() if spec.max_batch_size > 1 else None,
    )
    _set_parameters(config, parameters)
    return config


def _step(slug: str, stage: str, spec: StageSpec) -> pb.ModelEnsembling.Step:
    return pb.ModelEnsembling.Step(
        model_name=stage_name(slug, stage),
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


def _set_parameters(config: pb.ModelConfig, parameters: Mapping[str, str]) -> None:
    for name, value in parameters.items():
        config.parameters[name].string_value = value


def _model_source(stage: str) -> str:
    return resources.files("model_repository").joinpath(stage, "1", "model.py").read_text(encoding="utf-8")
