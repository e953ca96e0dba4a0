"""The layers of models that devices compute, and the sequences and windows that fit beside them."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from build_engines.errors import BuildError
from build_engines.llama_cpp.device_trial import LayerMemory
from build_engines.memory_fit import ModelDemand, fit, fit_loaded
from build_engines.progress import size_text
from model_repository.engine.runtime import EngineConfig
from model_repository.model_facts import Task
from model_repository.system.devices import Device, DeviceUse, shown
from model_repository.system.llama_build import LlamaBuild
from model_repository.system.model_memory import MODEL_SHARE

logger = logging.getLogger(__name__)

AUTO, ALL = "auto", "all"  # numbers of layers on devices: those that fit; all of them, or an error
_ALL_LAYERS = 1 << 30  # llama.cpp takes as many as there are
_NUM_CORES = 1 << 10  # a device computes many sequences as fast as one

type Trial = Callable[[str, EngineConfig], LayerMemory]
type Rooms = Mapping[str, int]  # bytes by device


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The part of a model that devices compute."""

    gpu_layers: int = 0
    is_whole: bool = False  # devices compute all layers
    devices: Mapping[str, DeviceUse] = field(default_factory=dict)
    memory_bytes: int = 0  # of the machine, for a replica
    text: str = ""  # for people


CORES = Placement()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that devices may compute."""

    name: str
    config: EngineConfig  # without a placement
    demand: ModelDemand
    layers: str  # AUTO, ALL or a number
    devices: Sequence[Device]

    @property
    def names(self) -> list[str]:
        """The names of the devices."""
        return [device.name for device in self.devices]

    @property
    def num_wanted(self) -> int:
        """The number of layers on devices, which may be larger than that of all."""
        return _ALL_LAYERS if self.layers in (AUTO, ALL) else int(self.layers)


def chosen_devices(
    layers: str, names: Sequence[str], devices: Sequence[Device], build: LlamaBuild | None
) -> Sequence[Device]:
    """Return the devices of the options --gpu-layers and --device; without names all, if there are any.

    Raises:
        BuildError: a device is not there.
    """
    given = f"--device {','.join(names)}" if names else f"--gpu-layers {layers}"
    if not devices and (names or layers not in (AUTO, "0")):
        kind = build and build.devices
        if kind:
            raise BuildError(f"{given}: no device of {kind} is found: `conch doctor` says more")
        raise BuildError(f"{given}: this llama.cpp computes on the cores alone: install conch[vulkan] or conch[cuda12]")
    known = {device.name: device for device in devices}
    if unknown := [name for name in names if name not in known]:
        listed = ", ".join(f"{device.name} ({device.description})" for device in devices)
        raise BuildError(f"--device {unknown[0]}: expected one of {listed}")
    chosen = [known[name] for name in known if not names or name in names]
    if 1 < len(chosen) < len(known):  # beside the others, a device without layers makes wrong numbers
        others = ", ".join(name for name in known if name not in names)
        raise BuildError(
            f"{given}: expected one device or all: hide {others} (GGML_VK_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES)"
        )
    return chosen


def fit_and_place(
    candidates: Mapping[Path, Candidate],
    demands: Mapping[Path, ModelDemand],
    memory_bytes: int,
    num_cores: int,
    trial: Trial,
) -> tuple[dict[Path, tuple[int, int]], dict[Path, Placement]]:
    """Return sequences and window of each model, and the placement of each candidate.

    A model that devices compute completely has those of the devices' memory, each other one those of the machine's.

    Raises:
        BuildError: see place.
    """
    whole = fit_on_devices(candidates, trial)
    while True:
        beside = {folder: beside_devices(candidates[folder], fitted, trial) for folder, fitted in whole.items()}
        fits = fit_loaded({**demands, **beside}, memory_bytes, num_cores) | whole
        placements = place(candidates, fits, whole, trial)
        kept = {folder: fitted for folder, fitted in whole.items() if placements[folder].is_whole}
        if kept == whole:
            return fits, placements
        whole = kept


def fit_on_devices(candidates: Mapping[Path, Candidate], trial: Trial) -> dict[Path, tuple[int, int]]:
    """Return sequences and windows of the models that devices may compute completely, by the devices' memory.

    A model of AUTO that does not fit beside those before it is left out.
    """
    groups: dict[tuple[str, ...], dict[Path, ModelDemand]] = {}  # by names of devices
    for folder in sorted(candidates, key=lambda folder: _order(candidates[folder].demand)):
        each = candidates[folder]
        group = groups.setdefault(tuple(each.names), {})
        memory = _tried(each, each.demand.least, _ALL_LAYERS, trial)
        if memory is not None and (each.layers == AUTO or each.num_wanted >= memory.num_layers):
            demand = _on_devices(each, memory)
            beside = [other for other in group.values() if other.is_pinned or not _is_later(demand)]
            least_bytes = sum(other.num_replicas * other.least_bytes for other in (demand, *beside))
            if each.layers != AUTO or least_bytes <= sum(_rooms(each.devices).values()):
                group[folder] = demand
    fits: dict[Path, tuple[int, int]] = {}
    for group in groups.values():
        devices = candidates[next(iter(group))].devices if group else ()
        fits |= fit_loaded(group, sum(device.free_bytes for device in devices), _NUM_CORES)
    return fits


def beside_devices(candidate: Candidate, fitted: tuple[int, int], trial: Trial) -> ModelDemand:
    """Return the demand on the machine's memory of a model of `fit_on_devices`: processes, embeddings and buffers."""
    demand, memory = candidate.demand, _tried(candidate, fitted, _ALL_LAYERS, trial)
    num_bytes = 0
    if demand.replica is not None and memory is not None:
        num_bytes = demand.replica.bytes_beside(memory, memory.num_layers, candidate.names, fitted[0])
    return dataclasses.replace(demand, weight_bytes=num_bytes, sequence_memory=None, replica=None)


def place(
    candidates: Mapping[Path, Candidate], fits: dict[Path, tuple[int, int]], whole: Collection[Path], trial: Trial
) -> dict[Path, Placement]:
    """Return the placement of each model, and reduce sequences and windows of those that devices compute completely.

    Models that are loaded at the start have different parts of a device. Each other one has all beside the pinned ones.

    Args:
        fits: sequences and window of each model.
        whole: the models of `fit_on_devices`.

    Raises:
        BuildError: the layers that an option asks for do not fit.
    """
    placements: dict[Path, Placement] = {}
    devices = {device.name: device for each in candidates.values() for device in each.devices}
    rooms, beside_pinned = Counter(_rooms(devices.values())), Counter(_rooms(devices.values()))
    for folder in sorted(candidates, key=lambda folder: _order(candidates[folder].demand)):
        each = candidates[folder]
        own_rooms = beside_pinned if _is_later(each.demand) else rooms
        fits[folder], placement = _placed(each, fits[folder], own_rooms, trial, can_shrink=folder in whole)
        used = {name: each.demand.num_replicas * use.used_bytes for name, use in placement.devices.items()}
        rooms.subtract({} if _is_later(each.demand) else used)
        beside_pinned.subtract(used if each.demand.is_pinned else {})
        placements[folder] = placement
    return placements


def _order(demand: ModelDemand) -> tuple[bool, bool]:
    return not demand.is_pinned, demand.is_on_demand


def _is_later(demand: ModelDemand) -> bool:
    return demand.is_on_demand and not demand.is_pinned


def _rooms(devices: Iterable[Device]) -> Rooms:
    return {device.name: int(MODEL_SHARE * device.free_bytes) for device in devices}


def _on_devices(candidate: Candidate, memory: LayerMemory) -> ModelDemand:
    """Return the demand of a model for devices alone. The process of a projector counts as a further replica."""
    demand, fixed_bytes = candidate.demand, sum(memory.weight_bytes) + sum(memory.projector_bytes.values())
    fixed_bytes += sum(memory.buffer_bytes.get(device.name, 0) for device in candidate.devices)
    has_cache = candidate.config.task is Task.GENERATE and demand.sequence_memory is not None
    return dataclasses.replace(
        demand,
        weight_bytes=fixed_bytes if has_cache else fixed_bytes + sum(memory.cache_bytes),
        sequence_memory=demand.sequence_memory if has_cache else None,
        num_replicas=demand.num_replicas * memory.num_copies,
        replica=None,
    )


def _tried(candidate: Candidate, fitted: tuple[int, int], gpu_layers: int, trial: Trial) -> LayerMemory | None:
    """Return the memory of a model; None: it does not load on devices, and need not be there.

    Raises:
        BuildError: it does not load.
    """
    num_sequences, window = fitted
    uses = {
        device.name: DeviceUse(description=device.description, used_bytes=0, total_bytes=device.total_bytes)
        for device in candidate.devices
    }
    config = replace(
        candidate.config, max_sequences=num_sequences, context_window=window, gpu_layers=gpu_layers, devices=uses
    )
    try:
        return trial(candidate.name, config)
    except BuildError as exc:
        if candidate.layers != AUTO:
            raise
        logger.warning("warning: devices: %s", exc)
        return None


def _placed(
    candidate: Candidate, fitted: tuple[int, int], rooms: Rooms, trial: Trial, *, can_shrink: bool
) -> tuple[tuple[int, int], Placement]:
    gpu_layers = candidate.num_wanted
    while gpu_layers > 0:
        memory = _tried(candidate, fitted, gpu_layers, trial)
        if memory is None:
            return fitted, Placement(text="the cores compute all layers")
        gpu_layers = min(gpu_layers, memory.num_layers)
        used = {name: candidate.demand.num_replicas * memory.used_bytes[name] for name in candidate.names}
        lacking = {name: size - rooms[name] for name, size in used.items() if size > rooms[name]}
        if not lacking and not set(candidate.names) <= set(memory.devices):  # an idle one makes wrong numbers
            reason = "fewer layers fit than there are devices: --device names one of them"
            if candidate.layers != AUTO:
                raise BuildError(f"{candidate.name}: --gpu-layers {candidate.layers}: {reason}")
            return fitted, Placement(text=reason)
        if not lacking:
            return fitted, _placement(candidate, fitted, gpu_layers, memory)
        if can_shrink and (smaller := _smaller(candidate, fitted, memory, used, rooms)) != fitted:
            fitted = smaller
        elif candidate.layers != AUTO:
            name = next(iter(lacking))
            sizes = f"{used[name] / 1e9:.1f} GB of {name}, of which models may have {max(0, rooms[name]) / 1e9:.1f} GB"
            rule = "a smaller number, --max-sequences or a smaller --context-window changes it"
            raise BuildError(f"{candidate.name}: --gpu-layers {candidate.layers}: needs {sizes}: {rule}")
        else:
            gpu_layers = _fewer(gpu_layers, memory, sum(lacking.values()) // candidate.demand.num_replicas)
    free = ", ".join(f"{device.free_bytes / 1e9:.1f} GB of {device.name}" for device in candidate.devices)
    return fitted, Placement(text=f"no layer fits on devices, with {free} free: the cores compute all")


def _smaller(
    candidate: Candidate, fitted: tuple[int, int], memory: LayerMemory, used: Rooms, rooms: Rooms
) -> tuple[int, int]:
    """Return sequences and window that fit where all devices have the same part of their use free."""
    demand = _on_devices(candidate, memory)
    if demand.can_shrink:
        demand = dataclasses.replace(demand, num_sequences=fitted[0], window=fitted[1])
    share = min(rooms[name] / size for name, size in used.items() if size)
    pool_bytes = int(max(0.0, share) * sum(used.values()) / MODEL_SHARE)
    return fit([demand] * demand.num_replicas, pool_bytes, _NUM_CORES)[0]


def _fewer(gpu_layers: int, memory: LayerMemory, lacking_bytes: int) -> int:
    """Return the number of layers on devices without the first ones, which have the lacking memory."""
    sizes = [sum(each) for each in zip(memory.weight_bytes, memory.cache_bytes, strict=True)]
    for size in sizes[-gpu_layers:]:
        gpu_layers, lacking_bytes = gpu_layers - 1, lacking_bytes - size * memory.num_copies
        if lacking_bytes <= 0:
            break
    return gpu_layers


def _placement(candidate: Candidate, fitted: tuple[int, int], gpu_layers: int, memory: LayerMemory) -> Placement:
    rooms = _rooms(candidate.devices)
    uses = {
        device.name: DeviceUse(
            description=device.description,
            used_bytes=memory.used_bytes[device.name],
            total_bytes=device.total_bytes,
            room_bytes=rooms[device.name],
        )
        for device in candidate.devices
    }
    num_on_cores = memory.num_layers - gpu_layers
    text = f"{f'{gpu_layers} of' if num_on_cores else 'all'} {memory.num_layers} layers on {shown(uses)}"
    if num_on_cores:
        size = size_text(sum(memory.weight_bytes[:num_on_cores]))
        price = f"the cores compute {num_on_cores} layers, and read {size} of weights for each token"
        text += f"; {price} (--gpu-layers, --max-sequences or a smaller --context-window changes it)"
    replica = candidate.demand.replica
    memory_bytes = 0 if replica is None else replica.bytes_beside(memory, gpu_layers, candidate.names, fitted[0])
    return Placement(
        gpu_layers=gpu_layers, is_whole=not num_on_cores, devices=uses, memory_bytes=memory_bytes, text=text
    )
