"""The models that a Triton loads at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model_repository.arbiter.catalog import Catalog
from model_repository.contract.tensors import ARBITER, LOADER, stage_name
from model_repository.model_parameters import Load


@dataclass(frozen=True, slots=True)
class Start:
    """The models of a repository, by ids in the order in which the user has named them."""

    loaded: tuple[str, ...]  # at the start
    later: tuple[str, ...]  # at their first request
    names: tuple[str, ...]  # what Triton loads at the start, by its names

    @classmethod
    def of(cls, repository: Path, total_bytes: int) -> Start:
        """Return the start of a Triton with this memory for models: the pinned ones, and those that fit beside."""
        entries = Catalog.read(repository).entries.values()
        in_order = sorted(entries, key=lambda entry: (entry.replicas[0].position, entry.replicas[0].model_id))
        loaded, names, free_bytes = set[str](), [ARBITER, LOADER], total_bytes
        for entry in sorted(in_order, key=lambda entry: not entry.offered.is_pinned):
            if entry.replicas[0].load is Load.START and entry.offered.size_bytes <= free_bytes:
                free_bytes -= entry.offered.size_bytes
                loaded.add(entry.offered.name)
                names += [
                    stage_name(replica.ensemble, each)
                    for replica in entry.replicas
                    for each in replica.layout.ensembles
                ]
        ids = [entry.offered.name for entry in in_order]
        is_loaded = loaded.__contains__
        return cls(tuple(filter(is_loaded, ids)), tuple(each for each in ids if each not in loaded), tuple(names))
