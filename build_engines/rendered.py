"""Renders a repository again, with its own artifacts and settings, as after an upgrade."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from build_engines.artifact import Manifest
from build_engines.errors import BuildError
from build_engines.render import ServeOptions, config_of, read_config, render_artifacts
from build_engines.serving import Loading
from model_repository.contract.tensors import ensemble_of_stage, stage_name
from model_repository.model_parameters import ModelParameters

logger = logging.getLogger(__name__)


def rendered_again(repository: Path, model_memory: int | None = None) -> dict[str, str]:
    """Return the files of a repository that serves the same artifacts with the same settings.

    Args:
        model_memory: see render_artifacts.

    Raises:
        ArtifactInvalid: an artifact is missing or changed, or of another format.
        BuildError: the folder has no model, or the settings are of another form.
    """
    replicas: dict[Path, list[ModelParameters]] = {}
    for path in repository.glob("*/config.pbtxt"):
        if ensemble_of_stage(path.parent.name) == path.parent.name:
            replica = _parameters(read_config(path), path)
            replicas.setdefault(replica.artifact_dir, []).append(replica)
    if not replicas:
        raise BuildError(f"{repository}: no model in it")
    for each in replicas.values():
        each.sort(key=lambda replica: replica.replica)
    named = dict(sorted(replicas.items(), key=lambda item: (item[1][0].position, item[1][0].model_id)))
    options = {folder: _options(repository, each) for folder, each in named.items()}
    gpus = {folder: [replica.gpus for replica in each] for folder, each in named.items() if each[0].gpus}
    firsts = [first for first, *_ in named.values()]
    if len(firsts) > 1:
        files = render_artifacts(options, gpus, model_memory=model_memory)
    else:  # the names of a single model may have been given to `render`
        files = render_artifacts(options, gpus, firsts[0].aliases, firsts[0].model_id, model_memory)
    for first in firsts:
        _warn_of_less(first, _parameters(config_of(files[f"{first.ensemble}/config.pbtxt"]), repository))
    return files


def _warn_of_less(former: ModelParameters, found: ModelParameters) -> None:
    sizes = [(each.gpu_layers, each.max_sequences * each.context_window) for each in (former, found)]
    rooms = {name: use.room_bytes for name, use in found.devices.items()}
    fuller = [name for name, use in former.devices.items() if name not in rooms or rooms[name] < use.room_bytes]
    if fuller and any(size < before for before, size in zip(*sizes, strict=True)):
        rule = "stop a server that computes on it, and render again"
        logger.warning("devices     %s: less of %s is free than before: %s", former.model_id, ", ".join(fuller), rule)


def _options(repository: Path, replicas: list[ModelParameters]) -> ServeOptions:
    first, *_ = replicas
    root = first.adapter_root
    of_adapters: dict[str, Any] = (
        {}
        if root is None
        else {"adapter_root": root.folder, "max_adapters": root.max_adapters, "max_adapter_rank": root.max_rank}
    )
    # A window is reduced only where the number of sequences was free.
    is_reduced = first.context_window < Manifest.load(first.artifact_dir).context_window
    tokenizer = read_config(repository / stage_name(first.ensemble, "tokenizer") / "config.pbtxt")
    return ServeOptions(
        replicas=len(replicas),
        max_sequences=None if is_reduced else first.max_sequences,
        max_waiting=first.max_waiting,
        num_threads=first.num_threads,
        stream_interval_ms=first.stream_interval_ms,
        tokenizer_instances=tokenizer.instance_group[0].count,
        gpu_layers=first.wanted_layers,
        devices=first.wanted_devices,
        speculative=first.speculative,
        llm_options=json.loads(first.options.get("llm_options", "{}")),
        loading=Loading(load=first.load, keep_alive_s=first.keep_alive_s, is_pinned=first.is_pinned),
        presets=first.presets,
        **of_adapters,
    )


def _parameters(config: Any, path: Path) -> ModelParameters:
    try:
        return ModelParameters.from_config({name: value.string_value for name, value in config.parameters.items()})
    except ValueError as exc:
        raise BuildError(f"{path}: {exc}") from exc
