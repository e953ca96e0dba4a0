"""The models that a Triton loads at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model_repository.arbiter.catalog import Catalog
from model_repository.arbiter.types import total_of
from model_repository.contract.tensors import ARBITER, LOADERS, stage_name
from model_repository.model_parameters import Load
from model_repository.system.devices import shown
from model_repository.system.model_memory import model_memory_bytes


@dataclass(frozen=True, slots=True)
class Start:
    """The models of a repository, by ids in the order in which the user has named them."""

    loaded: tuple[str, ...]  # at the start
    later: tuple[str, ...]  # at their first request
    presets: tuple[str, ...]  # of all models, by name
    names: tuple[str, ...]  # what Triton loads at the start, by its names
    total_bytes: int  # bound on the RAM of all models together
    on_devices: tuple[str, ...]  # a text for each loaded model with layers on devices

    @classmethod
    def of(cls, repository: Path, memory_bytes: int | None = None) -> Start:
        """Return the start of a Triton: the pinned models, and those that fit beside.

        Args:
            memory_bytes: bound on the memory of all models together; None: that of the machine. A single model is tried
                there whatever its size: it takes room from no other.
        """
        catalog = Catalog.read(repository)
        total_bytes = model_memory_bytes(memory_bytes)
        if memory_bytes is None and len(catalog.entries) == 1:
            total_bytes = max(total_bytes, *(entry.memory_bytes for entry in catalog.entries.values()))
        offered = {each.name: each for each in catalog.offered(total_bytes)}
        firsts = {name: entry.replicas[0] for name, entry in catalog.entries.items()}
        in_order = sorted(firsts, key=lambda name: (firsts[name].position, name))
        loaded, names, free = set[str](), [ARBITER, *LOADERS], total_of(offered.values(), total_bytes)
        for name in sorted(in_order, key=lambda name: not offered[name].is_pinned):
            if firsts[name].load is Load.START and offered[name].memory.fits_in(free):
                free -= offered[name].memory
                loaded.add(name)
                names += [
                    stage_name(replica.ensemble, each)
                    for replica in catalog.entries[name].replicas
                    for each in replica.layout.ensembles
                ]
        later = tuple(name for name in in_order if name not in loaded)
        presets = tuple(preset for name in in_order for preset in firsts[name].presets)
        in_order = [name for name in in_order if name in loaded]
        on_devices = tuple(
            f"{name}: {firsts[name].gpu_layers} layers on {shown(offered[name].devices)}"
            for name in in_order
            if offered[name].devices
        )
        return cls(tuple(in_order), later, presets, tuple(names), total_bytes, on_devices)
