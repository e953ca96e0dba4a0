"""The models of a repository, loaded or not, read from their config.pbtxt."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from model_repository.arbiter.types import OfferedModel
from model_repository.contract.tensors import ensemble_of_stage
from model_repository.model_parameters import PARAMETER, ModelParameters

# A parameter in protobuf's text format: its value is in double quotes, with the escapes of C, as Python's bytes have.
_VALUE = re.compile(rf'key: "{PARAMETER}"\s+value \{{\s+string_value: ("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalog."""

    replicas: tuple[ModelParameters, ...]
    texts: tuple[msgspec.Raw, ...]  # the parameters of each replica, as JSON

    @property
    def ensembles(self) -> list[str]:
        """The names of the replicas' ensembles in Triton."""
        return [replica.ensemble for replica in self.replicas]

    @property
    def offered(self) -> OfferedModel:
        """The model as the arbiter sees it: its replicas are loaded together."""
        first = self.replicas[0]
        size_bytes = sum(replica.memory_bytes for replica in self.replicas)
        return OfferedModel(first.model_id, size_bytes, first.is_pinned, first.max_idle_s)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models of one moment."""

    version: str = ""
    entries: Mapping[str, Entry] = field(default_factory=dict)  # by model id

    @classmethod
    def read(cls, repository: Path) -> Catalog:
        """Read a repository. Models of other projects and versions are left out."""
        texts: dict[str, list[bytes]] = {}
        digest = hashlib.blake2b(digest_size=16)
        replicas: dict[str, list[ModelParameters]] = {}
        for path in sorted(repository.glob("*/config.pbtxt")):
            name = path.parent.name
            found = _VALUE.search(path.read_text("utf-8")) if ensemble_of_stage(name) == name else None
            if found is None:
                continue
            text = ast.literal_eval(f"b{found[1]}")
            try:
                parameters = ModelParameters.from_config({PARAMETER: text.decode()})
            except ValueError:
                continue
            digest.update(text)
            texts.setdefault(parameters.model_id, []).append(text)
            replicas.setdefault(parameters.model_id, []).append(parameters)
        entries = {
            model_id: Entry(tuple(own), tuple(map(msgspec.Raw, texts[model_id]))) for model_id, own in replicas.items()
        }
        return cls(digest.hexdigest(), entries)
